"""How scripts/compare merges runs: ratios within a run, the fastest of all by ratio and not by microseconds."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = os.environ.get("RONDO_COMPARE_SCRIPT", str(Path(__file__).resolve().parents[2] / "scripts" / "compare"))


def load():
    loader = importlib.machinery.SourceFileLoader("compare", SCRIPT)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
    loader.exec_module(module)
    return module


compare = load()


def run(mpi, name, rounds):
    backends = [{"name": label, "rounds_us": us} for label, us in rounds.items()]
    return {"mpi": mpi, "name": name, "results": [{"size": 1024, "backends": backends}]}


class Merging(unittest.TestCase):
    def setUp(self):
        # the second run saw a machine half as fast: B took longer than A, but is the faster one beside rondo
        self.rows = compare.merge([
            run("A", "A", {"rondo plain": [1, 1, 2], "rondo library": [0.5, 0.5, 1], "A": [3, 3, 6], "Gloo (tcp)": [10, 10, 20]}),
            run("B", "B sm", {"rondo plain": [2, 2, 4], "rondo library": [1, 1, 2], "B": [4, 4, 8], "Gloo (tcp)": [20, 20, 40]}),
        ])

    def test_ratios_are_taken_within_a_run(self):
        peers = self.rows[0]["peers"]
        self.assertEqual(sorted(peers), ["A", "B sm", "Gloo (tcp)"])
        self.assertEqual(peers["A"]["ratio"], {"rondo plain": 3, "rondo library": 6})
        self.assertEqual(peers["B sm"]["ratio"], {"rondo plain": 2, "rondo library": 4})
        self.assertEqual(peers["Gloo (tcp)"]["ratio"]["rondo plain"], 10)

    def test_the_fastest_is_fastest_beside_rondo(self):
        self.assertEqual(self.rows[0]["fastest"]["rondo plain"], {"name": "B sm", "ratio": 2})
        self.assertEqual(self.rows[0]["fastest"]["rondo library"], {"name": "B sm", "ratio": 4})

    def test_what_iperf3_moves_is_compared_within_a_run(self):
        self.assertNotIn("of_limit", self.rows[0])
        times = {"rondo plain": [2, 2, 2], "rondo library": [1, 1, 1], "A": [3, 3, 6]}
        rows = compare.merge([{**run("A", "A", times), "iperf3_gb_per_s": 1.024}])
        self.assertEqual(rows[0]["of_limit"], {"rondo plain": 0.5, "rondo library": 1})
        self.assertIn("of iperf3", compare.table_of(rows)[0])

    def test_one_odd_round_does_not_move_the_median(self):
        self.assertEqual(compare.ratio([1, 1, 1], [2, 2, 50]), 2)

    def test_tables_have_a_cell_for_every_peer(self):
        header, lines = compare.table_of(self.rows)
        self.assertEqual(header[-1], "against the fastest of all")
        self.assertTrue(all(len(line) == len(header) for line in lines))
        self.assertEqual(lines[0][0], "1K")
        self.assertIn("B sm", lines[0][-1])
        self.assertTrue(compare.markdown_of(header, lines).startswith("| size |"))


class Commands(unittest.TestCase):
    def peer(self, open_mpi):
        return {"suffix": "x", "mpirun": "/m/mpirun", "variant": "", "flags": ["--mca", "a", "1"], "env": {}, "open_mpi": open_mpi}

    def test_open_mpi_is_told_to_yield_when_oversubscribed(self):
        words = compare.command_of(self.peer(True), 4, True, "/p", ["all_reduce"])
        self.assertEqual(words[:3], ["/m/mpirun", "-n", "4"])
        self.assertIn("mpi_yield_when_idle", words)
        self.assertEqual(words[-2:], ["/p", "all_reduce"])
        self.assertLess(words.index("a"), words.index("/p"))

    def test_other_mpis_get_no_flags_of_open_mpi(self):
        words = compare.command_of({**self.peer(False), "flags": []}, 2, True, "/p", [])
        self.assertEqual(words, ["/m/mpirun", "-n", "2", "/p"])

    def test_broadcast_is_in_place_unless_asked(self):
        """As MPI_Bcast is called: it has one buffer, and out of place a copy would be charged to it."""
        for words, in_place in (([], False), (["--in-place"], True), (["broadcast"], True), (["reduce"], False),
                                (["broadcast", "--out-of-place"], False)):
            self.assertEqual(compare.parse_arguments(words).in_place, in_place, words)

    def test_on_two_hosts_both_places_are_measured(self):
        arguments = compare.parse_arguments(["--namespaces"])
        self.assertEqual((arguments.places, arguments.maxbytes), ([False, True], "256M"))
        self.assertEqual(compare.parse_arguments(["--namespaces", "--in-place"]).places, [True])
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            compare.parse_arguments(["--namespaces", "--ranks", "3"])

    def test_two_hosts_are_joined_by_tcp_only(self):
        """Namespaces of one kernel share memory, which is no network."""
        hosts = compare.compare_namespaces.Namespaces()
        hosts.name = "x"
        with tempfile.TemporaryDirectory() as folder:
            for open_mpi in (True, False):
                words = compare.command_of(self.peer(open_mpi), 4, False, "/p", ["all_reduce"],
                                           hosts.launch(self.peer(open_mpi), 4, folder))
                self.assertIn("UCX_TLS=tcp,self", words)
                self.assertIn("h0:2,h1:2", words)
                self.assertEqual("btl" in words, open_mpi)
                self.assertEqual(words[-2:], ["/p", "all_reduce"])

    def test_missing_mpis_are_left_out(self):
        with tempfile.TemporaryDirectory() as empty:
            found = compare.find_compilers(compare.parse_arguments(["--venv", empty]))
        self.assertNotIn("openmpi", found)
        self.assertNotIn("mpich", found)


class Report(unittest.TestCase):
    def test_a_report_says_where_its_numbers_come_from(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.md"
            arguments = compare.parse_arguments(["-b", "64", "--report", str(path)])
            compare.save(arguments, [], "", ["-b", "64", "--report", str(path)])
            self.assertIn("Nothing has been measured yet.", path.read_text())
            compare.save(arguments, [], "| the table |\n", ["-b", "64"])
            text = path.read_text()
        for line in ("- command: `scripts/compare -b 64`", "- date: 20", "- machine: ", "- commit: ", "| the table |"):
            self.assertIn(f"\n{line}", text)
        self.assertNotIn("Nothing has been", text)

    def test_a_report_that_cannot_be_written_ends_the_run(self):
        with self.assertRaises(SystemExit):
            compare.save(compare.parse_arguments(["--report", "/nowhere/report.md"]), [], "", [])


class Nccl(unittest.TestCase):
    """On stand-ins for the driver's tool and both programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)
        self.bin = self.build / "bin"
        self.bin.mkdir()

    def stub(self, name, text):
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def perf(self, name, counted, times):
        """Its n-th run takes times[n] microseconds."""
        self.stub(name, f"""
for word; do last=$word; done
echo x >>{self.bin}/{counted}
set -- "$@" {' '.join(map(str, times))}
shift $(($# - {len(times)} + $(wc -l <{self.bin}/{counted}) - 1))
echo '{{"results": [{{"size": 8, "out_of_place": {{"time": '$1'}}, "in_place": {{"time": 1}}}}]}}' >"$last"
""")

    def test_it_is_left_out_with_a_sentence(self):
        for count, sentence in ((0, "no GPU here"), (1, "has no rondo-perf"), (2, "has no rondo-perf")):
            self.assertIn(sentence, compare.compare_nccl.why_left_out(count, self.bin))
        for name in compare.compare_nccl.PROGRAMS:
            self.stub(name, "")
        self.assertEqual(compare.compare_nccl.why_left_out(2, self.bin), "")

    def test_ratios_are_taken_within_a_round(self):
        self.perf("rondo-perf", "own", [1, 2, 10])
        self.perf("rondo-perf-nccl", "peers", [3, 6, 10])
        arguments = compare.parse_arguments(["--rounds", "3"])
        rows = compare.compare_nccl.measure(arguments, 1, self.bin)
        self.assertEqual(rows, [{"size": 8, "nccl_us": 6, "rondo": {"threads": {"us": 2, "ratio": 3}}}])
        self.assertEqual(compare.compare_nccl.table_of(rows), (["size", "NCCL", "rondo, threads"], [["8", "6.00", "2.00 (3.00)"]]))

    def test_on_several_gpus_ranks_are_threads_and_processes(self):
        self.perf("rondo-perf", "own", [1, 2, 2, 4])
        self.perf("rondo-perf-nccl", "peers", [4, 8])
        rows = compare.compare_nccl.measure(compare.parse_arguments(["--rounds", "2"]), 2, self.bin)
        self.assertEqual(rows[0]["rondo"], {"threads": {"us": 1.5, "ratio": 4}, "processes, registered memory": {"us": 3, "ratio": 2}})

    def test_where_no_memory_can_be_registered_threads_are_measured(self):
        for words, expected in (("--memory library: no access", ["threads"]), ("a rank died", "code 1: a rank died")):
            self.perf("rondo-perf-nccl", f"peers {words}".replace(" ", "-"), [4, 4])
            self.perf("rondo-perf", f"own {words}".replace(" ", "-"), [1, 2])
            own = self.bin / "rondo-perf"
            own.write_text(own.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\ncase \"$*\" in *library*) echo '{words}' >&2; exit 1 ;; esac\n"))
            rows = compare.compare_nccl.measure(compare.parse_arguments(["--rounds", "1"]), 2, self.bin)
            if isinstance(expected, str):
                self.assertIn(expected, rows)
            else:
                self.assertEqual(list(rows[0]["rondo"]), expected)

    def test_what_becomes_of_it(self):
        arguments = compare.parse_arguments(["--rounds", "1", "--build-dir", str(self.build)])
        results, failures = [], []
        self.assertEqual(compare.beside_nccl(arguments, 1, results, failures), "")
        for said, gpus, failed in (("NCCL 2.28.9 has one rank per GPU; GPUs here: 1", 1, []), ("a GPU is gone", 2, ["a GPU is gone"])):
            self.perf("rondo-perf", f"own{gpus}", [1, 1])
            self.stub("rondo-perf-nccl", f"echo '{said}' >&2; exit 1")
            self.assertEqual(compare.beside_nccl(arguments, gpus, results, failures), "")
            self.assertEqual((results, len(failures)), ([], len(failed)))
        self.assertIn("code 1: a GPU is gone", failures[0])
        self.perf("rondo-perf", "own", [1, 1])
        self.perf("rondo-perf-nccl", "peers", [4])
        self.assertIn("1.00 (4.00)", compare.beside_nccl(arguments, 2, results, failures))
        self.assertEqual((results[0]["ranks"], results[0]["device"]), (2, "cuda"))

    def test_two_ranks_on_one_gpu(self):
        arguments = compare.parse_arguments(["--rounds", "1", "--build-dir", str(self.build)])
        results = []
        for name in compare.compare_nccl.PROGRAMS:
            self.stub(name, f"""echo "$NCCL_MULTI_RANK_GPU_ENABLE $*" >>{self.bin}/words
for word; do last=$word; done
echo '{{"results": [{{"size": 8, "out_of_place": {{"time": 2}}}}]}}' >"$last\"""")
        self.assertIn("2 ranks, 1 rounds; two ranks on one GPU", compare.beside_nccl(arguments, 1, results, []))
        self.assertEqual((results[0]["ranks"], results[0]["gpus"]), (2, 1))
        for words in (self.bin / "words").read_text().splitlines():
            self.assertRegex(words, "^1 all_reduce .*--ranks 2 ")

    def test_only(self):
        self.assertTrue(compare.wants_nccl(compare.parse_arguments([])))
        self.assertTrue(compare.wants_nccl(compare.parse_arguments(["--only", "NCCL"])))
        self.assertFalse(compare.wants_nccl(compare.parse_arguments(["--only", "mpich"])))
        self.assertFalse(compare.wants_nccl(compare.parse_arguments(["--device", "cpu"])))

    def start(self, *words):
        """The script with `bin` alone in PATH, but for Python."""
        return subprocess.run([sys.executable, SCRIPT, "--build-dir", str(self.build), "--rounds", "1", *words], capture_output=True, text=True,
                              check=False, env={**os.environ, "PATH": f"{self.bin}:/usr/bin:/bin"})

    def test_device_cuda_measures_beside_nccl_only(self):
        for name in ("mpicxx", "nvidia-smi"):
            self.stub(name, "exit 9")
        self.stub("cmake", 'case "$*" in *help*) echo rondo-perf: phony; echo rondo-perf-nccl: phony ;; esac')
        refused = self.start("--device", "cuda")
        self.assertEqual((refused.returncode, refused.stderr), (1, "compare: --device cuda: nvidia-smi -L shows no GPU here\n"))
        self.assertEqual(self.start("--device", "cuda", "--oversubscribe").returncode, 2)
        self.stub("nvidia-smi", "echo 'GPU 0: a stub'; echo 'GPU 1: another'")
        self.perf("rondo-perf", "own", [1, 1])
        self.perf("rondo-perf-nccl", "peers", [4])
        done = self.start("--device", "cuda", "--only", "NCCL")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1.00 (4.00)", done.stdout)
        self.assertNotIn("left out", done.stderr)


if __name__ == "__main__":
    unittest.main()
