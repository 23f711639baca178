#!/usr/bin/env python3
"""scripts/gpu-check on stand-ins for the driver's tool, CMake, CTest and the programs: that its report says what became of each stage,
also of one that fails, hangs or cannot run, and that it goes on after it. Needs no GPU.
    gpu_check_test.py SOURCE [-k PART-OF-A-NAME]"""
import argparse
import copy
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock

SOURCE = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE / "scripts"))
sys.dont_write_bytecode = True
import gpu_arguments
import gpu_report
import gpu_training
from gpu_stand_ins import PERF, PROGRAMS, TOOLS, TRAIN, write_program
from stages import Stages, last_line


class Machine:
    """A machine with a GPU, as stand-ins in a folder, and what gpu-check reported there last."""

    def make(self):
        self.folder = tempfile.TemporaryDirectory()
        self.work = pathlib.Path(self.folder.name)
        self.stubs = self.work / "stubs"
        for name in ("bin", "programs"):
            (self.stubs / name).mkdir(parents=True)
        for name, text in TOOLS.items():
            write_program(self.stubs / "bin" / name, text)
        for name, (behaviour, document) in PROGRAMS.items():
            self.program(name, f"behave {behaviour} \"$@\"\n[ \"$1\" != --topology ] || echo 'GPUs: 1, a stub'", document)
        (self.work / "deps").mkdir()
        (self.work / "deps/manifest.json").write_text("{}")
        return self

    def program(self, name, text, document=None):
        """It runs this, and writes the document for --json."""
        writes = "" if document is None else f"\njson \"$@\" <<'END'\n{json.dumps(document)}\nEND"
        write_program(self.stubs / "programs" / name, text + writes)

    def program_first(self, name, text):
        """It runs this before what it did."""
        path = self.stubs / "programs" / name
        write_program(path, text + "\n" + path.read_text())

    def calls(self, begin):
        return [line for line in (self.stubs / "calls").read_text().splitlines() if line.startswith(begin)]

    def start(self, *words):
        environment = {**os.environ, "PATH": f"{self.stubs / 'bin'}:{os.environ['PATH']}", "STUBS": str(self.stubs), "SOURCE": str(SOURCE),
                       "RONDO_UCX": "", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.work / "site")}
        source = [] if "--pack" in words or "--prebuilt" in words else [self.work / "deps"]
        return subprocess.Popen([SOURCE / "scripts/gpu-check", *source, "--out", self.work / "out", "--build-dir",
                                 self.work / "build", *([] if "--prebuilt" in words else ["--commit", "abc"]), *words], env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish(self, process):
        """Exit code and report."""
        self.output, _ = process.communicate(timeout=400)
        report = self.work / "out/report.json"
        self.report = json.loads(report.read_text()) if report.exists() else None
        self.markdown = (self.work / "out/report.md").read_text() if report.exists() else ""
        return process.returncode

    def check(self, *words, **behaviours):
        """A whole run in which these stand-ins do what they are told."""
        for name, how in behaviours.items():
            (self.stubs / name.replace("_", "-" if name == "compute_sanitizer" else "_")).write_text(how)
        return self.finish(self.start(*words))

    def stage(self, name):
        return next(stage for stage in self.report["stages"] if stage["name"] == name)

    def states(self):
        return {stage["name"]: stage["state"] for stage in self.report["stages"]}

    def goal(self, part):
        return next(goal for goal in self.report["goals"] if part in goal["what"])

    def pack(self):
        """An archive, made where there is no GPU; afterwards this is the machine with one, and without a compiler."""
        archive = self.work / "prebuilt.tar.xz"
        (self.stubs / "no-gpu").write_text("")
        assert self.finish(self.start("--pack", str(archive))) == 0, self.output
        (self.stubs / "no-gpu").unlink()
        (self.stubs / "calls").unlink()
        for name in ("cmake", "ctest", "nvcc"):
            write_program(self.stubs / "bin" / name, 'echo "$0" >>"$STUBS/compilers"; exit 1')
        subprocess.run(["rm", "-r", self.work / "build", self.work / "out"], check=True)
        return str(archive)

    def run_packed(self, *words):
        return self.finish(self.start("--prebuilt", self.pack(), *words))

    def cases_that_are_there(self, of):
        """How many cases these stages name, each of which is in the sources."""
        folders = [SOURCE / "tests" / name / "cuda" for name in ("kernels", "comm/device")]
        sources = "".join(path.read_text() for folder in folders for path in folder.glob("*_test.cpp"))
        found = [words for stage in self.report["stages"] if of(stage) for words in re.findall(r"\*([^*,']+)\*", stage["command"])]
        for words in found:
            assert re.search(rf"TEST_CASE\([^)]*{words}", sources), words
        return len(found)

    def assert_limits_know(self, stages, **how):
        """--limit has to know each stage that there is."""
        known = gpu_arguments.stages_of(argparse.Namespace(**{"pack": None, "prebuilt": None, "quick": False, **how}))
        assert {name for name in stages if not name.startswith("test-")} <= set(known), (stages, known)


@functools.cache
def well():
    """A machine on which all went well."""
    machine = Machine().make()
    assert machine.check() == 0, machine.output
    return machine


class AllIsWell(Machine, unittest.TestCase):
    """What one run says."""

    def setUp(self):
        vars(self).update(vars(well()))

    def test_all_is_well(self):
        self.assertTrue(self.report["complete"])
        self.assertEqual(self.report["devices"], [{"name": "Stub GPU 9000", "driver": "580.1", "memory_mib": "81920", "compute_capability": "9.0"}])
        self.assertEqual((self.report["commit"], self.report["nvcc"]), ("abc", "13.0"))
        states = self.states()
        for name in ("configure", "build", "test-one_test", "test-two_test", "kernels", "engine", "perf-1-threads", "perf-8-threads-large",
                     "perf-2-processes", "perf-2-processes-all_gather", "perf-scatter_v", "perf-types", "memcheck-kernels_cuda_test", "memcheck-device_engine_test"):
            self.assertEqual(states.pop(name), "passed", name)
        self.assertEqual(states["nccl"], "skipped")
        self.assertNotIn("failed", states.values())
        self.assert_limits_know(states)
        self.assertIn("## Topology\n\n    GPUs: 1, a stub\n", self.markdown)
        self.assertNotIn(str(self.work / "deps"), self.markdown)
        [build] = self.calls("build")
        self.assertEqual(self.cases_that_are_there(lambda stage: stage["name"].partition("-")[0].endswith("check")), 4)
        self.assertTrue(build.endswith("--target one_test two_test kernels_bench_cuda device_engine_bench rondo-perf layers_bench_cuda rondo-train rank_threads_cuda -- -k 0"), build)
        self.assertIn("--graph 20", self.stage("perf-8-threads")["command"])
        self.assertNotIn("--graph", self.stage("perf-2-processes")["command"])  # it would take time slices for each operation

    def test_what_matters_most_comes_first(self):
        names = [stage["name"] for stage in self.report["stages"]]
        first = [names.index(name) for name in ("test-one_test", "test-two_test", "layers", "train-gpt2-logged", "kernels", "perf-2-processes",
                                                "perf-reduce_scatter", "memcheck-kernels_cuda_test")]
        self.assertEqual(first, sorted(first))

    def test_training_is_measured_against_its_goals(self):
        goals = {goal["what"].split(":")[0]: goal for goal in self.report["goals"]}
        layers = goals["layers of GPT-2 in bf16"]
        self.assertEqual((layers["value"], layers["met"]), (0.5, False))
        self.assertEqual(layers["how"], "attention; 1 of 2 reach it")
        self.assertEqual(goals["convolutions in bf16"]["value"], 0.1)
        losses = goals["nano in fp32, the same seeds on host and GPU"]
        self.assertEqual((losses["value"], losses["met"], losses["how"]), (0, True, "40 steps"))
        # Beside programs that were built elsewhere there is no default text.
        self.assertIn("--data LICENSE", self.stage("train-nano-host")["command"])
        hidden = goals["two ranks on one GPU"]
        self.assertTrue(hidden["met"], hidden)
        self.assertEqual(goals["logging every step against never"]["value"], 1)
        self.assertIn("| train-gpt2-2-threads |", re.sub(" +", " ", self.markdown))
        self.assertIn("| GPT-2's layers, each alone | 1 | 26.50 |", re.sub(" +", " ", self.markdown))
        self.assertIn("attention", self.markdown)
        # GPT-2 has 124439808 parameters; (6 * 124439808 + 6 * 12 * 768 * 1024) * 16 * 1024 operations in 30 ms are 438e12/s.
        gpt2 = dict(TRAIN, summary=dict(TRAIN["summary"], parameters=124439808))
        share = gpu_training.utilisation(gpt2, [{"name": "NVIDIA H100 80GB HBM3"}], 30)
        self.assertEqual(share, "; 44% of the peak of 989 Tflop/s")
        self.assertEqual(gpu_training.utilisation(gpt2, [{"name": "Stub GPU 9000"}], 30), "")
        self.assertIn("rondo-train --model gpt", self.stage("form-processes")["command"])
        self.assertRegex(self.stage("lesson-no-overlap")["command"], "^env -C .* .*/rondo-train --lesson no-overlap --device cuda --lesson-folder lesson-no-overlap$")
        forms = goals["nano's two ranks in every form of training"]
        self.assertEqual((forms["value"], forms["met"]), (0, True))
        # One form has other losses than the first.
        other = {"steps": [dict(step, loss=step["loss"] * 1.0002) for step in TRAIN["steps"]]}
        judged = gpu_training.farthest_form({"form-enqueued": TRAIN, "form-tf32": other, "form-bf16": other})
        self.assertAlmostEqual(judged[0], 0.2)
        self.assertEqual(judged[1], "form-tf32: 2.0e-04, 40 steps")
        # Or has to have the same bits.
        judged = gpu_training.farthest_form({"form-enqueued": TRAIN, "form-tf32": other, "form-zero": other})
        self.assertGreater(judged[0], 1)
        self.assertEqual(judged[1], "form-zero: 2.0e-04, 40 steps")
        # Any run that broke off.
        for name, document in self.report["measured"].items():
            document = {"error": "stopped", "steps": TRAIN["steps"]} if "steps" in document else {**document, "error": "stopped", "results": []}
            broken = {**self.report, "devices": [{**self.report["devices"][0], "name": "NVIDIA H200"}], "measured": {**self.report["measured"], name: document}}
            broken["measured"].setdefault("train-gpt2-torch", {"step_ms": 30.0})
            for report in (broken, {**broken, "measured": {name: document}}):
                report["goals"] = gpu_report.goals_of(report)
                self.assertIn("# gpu-check", gpu_report.markdown(report), name)
        # Two runs of other losses.
        losses = dict(self.report, measured={"train-nano": TRAIN, "train-nano-host": {"steps": [{"step_ms": 1, "loss": 5.0}] * 40}})
        judged = next(goal for goal in gpu_report.goals_of(losses) if goal["what"].startswith("nano"))
        self.assertFalse(judged["met"])
        self.assertAlmostEqual(judged["value"], 0.078)

    def test_goals_are_judged_by_the_slowest_kernel_and_by_right_results(self):
        sums, orders, averages, two, two_by_perf, *_, small, small_by_perf = self.report["goals"]
        # Integers are summed faster or slower than their bytes are copied: no goal.
        self.assertEqual((sums["value"], sums["met"]), (0.9, False))
        self.assertIn("half sum, 8 to 1; 1 of 2 reach it", sums["how"])
        self.assertEqual([(each["value"], each["met"]) for each in (orders, averages)], [(0.91, True), (0.3, False)])
        self.assertIn("3.25 us without an operation", small["how"])
        self.assertRegex(self.markdown, r"\| 8 +\| no operation")
        self.assertEqual((two["value"], two["met"]), (0.8, True))
        self.assertIn("two_shot", two["how"])
        self.assertEqual((small["value"], small["met"]), (9.5, True))
        # What is wanted beyond the targets.
        self.assertEqual((two["second"], small["second"]), ([">= 0.85", False], ["< 6.50", False]))
        self.assertRegex(self.markdown, r"0\.800 +\| reached, short of >= 0\.85 ")
        self.assertEqual((two_by_perf["value"], two_by_perf["met"]), (0.64, False))
        self.assertEqual((small_by_perf["value"], small_by_perf["met"]), (11.5, True))
        self.assertEqual(small_by_perf["how"], "one_shot")
        self.assertIn("**short**", self.markdown)

    def test_processes_share_the_gpu_by_mps_where_they_can(self):
        self.assertRegex(self.stage("perf-2-processes")["command"], "^env CUDA_MPS_PIPE_DIRECTORY=mps CUDA_MPS_LOG_DIRECTORY=mps .*/rondo-perf all_reduce")
        self.assertEqual([re.sub(r" /\S*/mps", "", call).split() for call in self.calls("mps ")], [["mps", "-d"], ["mps", "quit", "-t", "5"]])
        self.assertNotIn("MPS", self.stage("perf-2-processes-all_gather")["command"])


class GpuCheck(Machine, unittest.TestCase):
    def setUp(self):
        self.make()
        self.addCleanup(self.folder.cleanup)

    def test_a_part_that_uses_up_its_time_leaves_the_others_theirs(self):
        changes = []
        stages = Stages(self.work / "logs", 1000, {}, lambda: changes.append(1), str)
        stages.begin_part("tests", time.monotonic())
        self.assertEqual(stages.run("one", ["true"], 100).text(), "failed: not run: no time was left for tests")
        stages.begin_part("training", time.monotonic() + 500)
        self.assertEqual(stages.run("two", ["true"], 100).state, "passed")
        stages.begin_part("training", time.monotonic() + 1.5)
        self.assertRegex(stages.run("three", ["sleep", "300"], 100).text(), "^failed: cut off after [12] s: no time was left for training$")
        stages.begin_part("benchmarks", time.monotonic() + 5000)
        self.assertLess(stages.left(), 1001)
        self.assertEqual(len(changes), 3)

    def test_the_reason_of_a_failure_is_a_ranks_not_its_launchers(self):
        self.assertEqual(last_line("rondo-perf: no GPU\nrondo-run: rank 0 exited with code 1\nrondo-run: rank 0's last line: 0\n"), "rondo-perf: no GPU")
        self.assertEqual(last_line("rondo-run: no such program\n"), "rondo-run: no such program")
        self.assertEqual(last_line("\n"), "it printed nothing")

    def test_what_was_packed_elsewhere_runs_here(self):
        self.assertEqual(self.run_packed(), 0, self.output)
        self.assertFalse((self.stubs / "compilers").exists())
        self.assertEqual((self.report["commit"], self.report["nvcc"], self.report["architectures"]), ("abc", "13.0", "80-real;90"))
        states = self.states()
        self.assertNotIn("configure", states)
        self.assertEqual([states[name] for name in ("test-one_test", "kernels", "engine", "perf-8-threads-large")], ["passed"] * 4)
        self.assertEqual(self.stage("test-one_test")["command"], "env ONE=1 programs/bin/one_test cases")
        # A test that is a script of the tree.
        self.assertEqual(self.stage("test-two_test")["command"], "env python3 scripts/origin.py programs/bin/two_test")
        # Few files come back from such a machine.
        self.assertEqual(sorted(os.listdir(self.work / "out")), ["logs.tar.gz", "report.json", "report.md"])
        with tarfile.open(self.work / "out/logs.tar.gz") as logs:
            self.assertIn("logs/test-one_test.log", logs.getnames())
            self.assertIn("engine.json", logs.getnames())

    def test_of_libraries_all_but_large_ones_are_packed_and_what_lacks_one_is_skipped(self):
        for name in ("libone.so", "libnccl.so.2"):
            (self.stubs / name).write_text("a library")
        (self.stubs / "libraries").write_text("".join(f"\t{name} => {self.stubs / name} (0x1)\n" for name in ("libone.so", "libnccl.so.2")))
        archive = self.pack()
        with tarfile.open(archive) as tar:
            self.assertEqual([name for name in tar.getnames() if name.startswith("lib/")], ["lib/libone.so"])
        (self.stubs / "libraries").write_text("\tlibnccl.so.2 => not found\n")
        self.assertEqual(self.finish(self.start("--prebuilt", archive)), 0, self.output)
        self.assertEqual(self.stage("test-two_test")["reason"], "two_test needs libnccl.so.2, which is not here")
        self.assertEqual(self.states()["test-one_test"], "passed")

    def test_ucx_is_carried_along(self):
        for name in ("libucp.so.0", "libuct.so.0"):
            (self.stubs / name).write_text("a library")
        (self.stubs / "ldconfig").write_text(f"2 libs found\n\tlibucp.so.0 (libc6,x86-64) => {self.stubs / 'libucp.so.0'}\n")
        (self.stubs / "libraries-of-ucx").write_text(f"\tlibuct.so.0 => {self.stubs / 'libuct.so.0'} (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n")
        self.program("one_test", 'cat "$RONDO_UCX" "${RONDO_UCX%/*}/libuct.so.0" >"$STUBS/ucx"')
        archive = self.pack()
        with tarfile.open(archive) as tar:
            self.assertEqual([name for name in tar.getnames() if name.startswith("lib/")], ["lib/libucp.so.0", "lib/libuct.so.0"])
        self.assertEqual(self.finish(self.start("--prebuilt", archive)), 0, self.output)
        self.assertEqual((self.stubs / "ucx").read_text(), "a librarya library")

    def test_cases_that_ctest_ran_and_that_were_not_tested_are_named(self):
        (self.stubs / "words").write_text("7: warning:\n7:   not tested: no\n7:   UCX\n7: \n7: ===\n1/1 Test #7: one_test ... Passed\n")
        write_program(self.stubs / "bin/ctest", TOOLS["ctest"].replace("behave one_test", 'cat "$STUBS/words"'))
        self.assertEqual(self.check(), 0, self.output)
        self.assertEqual(self.stage("test-one_test")["reason"], "in part not tested: no UCX")

    def test_quick_runs_only_what_proves_the_engine(self):
        self.assertEqual(self.run_packed("--quick"), 0, self.output)
        self.assertEqual(self.states(), {"quick-kernels": "passed", "quick-engine": "passed", "quick-communicators": "passed",
                                         "quick-threads": "passed", "quick-graph": "passed", "quick-processes": "passed"})
        self.assertGreater(self.cases_that_are_there(lambda _: True), 4)

    def test_quick_without_a_program_proves_nothing(self):
        (self.stubs / "programs/device_engine_test").unlink()
        self.assertEqual(self.check("--quick"), 1)
        self.assertEqual(self.stage("quick-engine")["reason"], "this build has no device_engine_test")

    def test_quick_after_building(self):
        self.assertEqual(self.check("--quick"), 0, self.output)
        self.assertEqual([name for name in self.states() if not name.startswith("quick")], ["configure", "build"])
        self.assert_limits_know(self.states(), quick=True)

    def test_nothing_is_packed_that_was_not_built(self):
        self.assertEqual(self.check("--pack", str(self.work / "prebuilt.tar.xz"), build="fails"), 1)
        self.assertFalse((self.work / "prebuilt.tar.xz").exists())

    def test_cmakes_own_words_say_why_configuring_failed(self):
        error = """CMake Error at /cmake-3.25/Modules/CMakeDetermineCUDACompiler.cmake:279 (message):
  CMAKE_CUDA_ARCHITECTURES:

    nonsense

  is not one of the following:

    * a special value: all, all-major, native

Call Stack (most recent call first):
  CMakeLists.txt:40 (include)

-- Configuring incomplete, errors occurred!
See also "CMakeOutput.log".
"""
        write_program(self.stubs / "bin/cmake", f"cat <<'END'\n-- The C compiler is GNU\n{error}END\nexit 1")
        self.assertEqual(self.check("--pack", str(self.work / "prebuilt.tar.xz")), 1)
        sentence = "CMAKE_CUDA_ARCHITECTURES: nonsense is not one of the following: * a special value: all, all-major, native"
        self.assertEqual(self.stage("configure")["reason"], f"CMake: {sentence}")
        self.assertIn(f"nothing was packed; the logs are in {self.work.resolve() / 'out/logs.tar.gz'}", self.output)
        with tarfile.open(self.work / "out/logs.tar.gz") as logs:
            self.assertIn("logs/configure.log", logs.getnames())
        write_program(self.stubs / "bin/cmake", "echo 'CMake Error: The source directory does not exist.'; echo Specify --help; exit 1")
        self.assertEqual(self.check("--pack", str(self.work / "prebuilt.tar.xz")), 1)
        self.assertEqual(self.stage("configure")["reason"], "CMake: The source directory does not exist.")

    def test_a_faster_run_with_more_channels_counts(self):
        faster = copy.deepcopy(PERF)
        faster["results"][1]["out_of_place"]["time"] = 1000.0
        self.program("faster", "", faster)
        self.program_first("rondo-perf", 'case "$*" in *--channels*) exec "${0%/*}/faster" "$@" ;; esac')
        self.check()
        two = self.report["goals"][4]
        self.assertEqual((two["value"], two["met"]), (0.8, True))
        self.assertIn("channels for the whole GPU", two["how"])
        self.assertIn("--channels 64", self.stage("perf-2-threads-large-channels")["command"])

    def test_wrong_results_of_rondo_perf_reach_no_goal(self):
        document = copy.deepcopy(PERF)
        document["results"][0]["out_of_place"]["nwrong"] = 3
        self.program("rondo-perf", "", document)
        self.check()
        self.assertIsNone(self.report["goals"][-1]["met"])

    def test_without_mps_they_take_turns(self):
        for how in ("fails", "mute"):
            self.assertEqual(self.check(mps=how), 0, self.output)
            self.assertEqual((self.stage("mps")["state"], self.stage("mps")["reason"]), ("skipped", "nvidia-cuda-mps-control -d failed"))
            self.assertNotIn("MPS", self.stage("perf-2-processes")["command"])
            self.assertEqual(self.states()["perf-types"], "passed")

    def test_an_mps_daemon_that_does_not_quit_is_killed_and_the_rest_goes_on(self):
        self.assertEqual(self.check(mps="deaf"), 0, self.output)
        states = self.states()
        self.assertEqual([states[name] for name in ("mps", "perf-2-processes", "perf-types")], ["passed"] * 3)
        self.assertTrue(self.report["complete"])
        self.check_ended()

    def test_after_a_client_of_mps_that_hung_no_other_uses_its_server(self):
        self.program_first("rondo-perf", 'case "$*" in *"--ranks 2 "*" 2M "*) sleep 1000 ;; esac')
        self.assertEqual(self.check("--limit", "perf-2-processes=1"), 1)
        self.assertEqual(self.stage("perf-2-processes")["state"], "hung")
        self.assertEqual(self.stage("perf-2-processes-large")["state"], "skipped")
        self.assertIn("perf-2-processes hung as a client of MPS", self.stage("perf-2-processes-large")["reason"])
        self.assertEqual(self.states()["perf-2-processes-all_gather"], "passed")

    def test_a_failure_is_reported_and_the_rest_goes_on(self):
        self.assertEqual(self.check(one_test="fails", engine="fails"), 1)
        self.assertEqual(self.stage("test-one_test")["reason"], "exit code 3: one_test is broken")
        states = self.states()
        self.assertEqual((states["engine"], states["test-two_test"], states["kernels"], states["perf-2-processes"]),
                         ("failed", "passed", "passed", "passed"))
        self.assertEqual([goal["met"] for goal in self.report["goals"]], [False, True, False, *[None] * 6, False, False, True, None, True, True, True, *[None] * 7, True])
        self.assertIn("engine: exit code 3: engine is broken", self.markdown)
        self.assertIn("not well: test-one_test, engine", self.output)

    def assert_stages(self, **wanted):
        """{the stage's name, with _ for -: (its state, the reason)}"""
        for stage in self.report["stages"]:
            state, reason = wanted.pop(stage["name"].replace("-", "_"), (None, None))
            if state is not None:
                self.assertEqual((stage["state"], stage["reason"]), (state, reason), stage["name"])
        self.assertEqual(wanted, {})

    def test_what_goes_wrong_is_said(self):
        self.program_first("rondo-perf", 'case "$*" in *--channels*) echo "ranks 0, 1 share one GPU and take 64 thread blocks each, '
                           'but it holds only 108"; exit 1 ;; esac')
        self.program("kernels_bench_cuda", "true")
        self.program("rondo-perf-nccl", "echo 'invalid argument: --ranks means 2 ranks, but NCCL 2.28.9 has one rank per GPU; "
                     "GPUs here: 1'; exit 1")
        (self.stubs / "memory").write_text("[N/A]")
        self.assertEqual(self.check("--limit", "test-nosuch=9", "--limit", "test-one_test=9", two_test="skips"), 1)
        self.assertEqual(self.states()["perf-2-threads-large-channels"], "skipped")
        self.assertEqual(self.states()["test-two_test"], "failed")
        self.assertIn("-b 256M", self.stage("perf-2-threads-large")["command"])
        self.assert_stages(kernels=("failed", "it wrote no JSON to kernels.json"), test_one_test=("passed", ""),
                           nccl=("skipped", "NCCL 2.28.9 has one rank per GPU, and here is one GPU"),
                           test_nosuch=("failed", "--limit names it, but no such test needs a GPU"))

    def test_what_goes_wrong_with_packed_tests_is_said(self):
        """Of long logs both ends come back; cuBLASLt is PyTorch's."""
        library = self.work / "site/nvidia/cu13/lib/libcublasLt.so.13"
        library.parent.mkdir(parents=True)
        library.write_text("a library")
        self.program("one_test", 'echo "$RONDO_CUBLASLT" >"$STUBS/cublaslt"; echo half; kill -SEGV $$')
        self.program("communicator_device_cuda_test", "echo 'no CUDA device: too old a driver'; exit 77")
        self.program("device_engine_test", "echo first; head -c 3000000 /dev/urandom; echo last; exit 1")
        words = "a_test.cpp:213: warning:\n  not tested: unavailable: cannot load UCX,\n  which carries messages\n\n=====\nAll tests passed"
        self.program("kernels_cuda_test", f"echo '{words}'")
        self.assertEqual(self.run_packed(), 1)
        self.assertEqual((self.stubs / "cublaslt").read_text(), f"{library}\n")
        self.assert_stages(
            test_one_test=("failed", "ended by signal 11: half"),
            test_communicator_device_cuda_test=("failed", "it skipped itself, with a GPU here: no CUDA device: too old a driver"),
            test_kernels_cuda_test=("skipped", "in part not tested: unavailable: cannot load UCX, which carries messages"))
        self.assertEqual(self.states()["kernels"], "passed")
        self.assertLess((self.work / "out/logs.tar.gz").stat().st_size, 1 << 20)
        with tarfile.open(self.work / "out/logs.tar.gz") as logs:
            log = logs.extractfile("logs/test-device_engine_test.log").read()
        self.assertTrue(log.startswith(b"first\n") and log.endswith(b"last\n"))
        self.assertIn(b"bytes left out]", log)

    def test_a_hang_ends_with_all_its_processes(self):
        self.assertEqual(self.check("--limit", "kernels=1", kernels="hangs"), 1)
        self.assertEqual((self.stage("kernels")["state"], self.stage("kernels")["reason"]), ("hung", "hung after 1 s"))
        self.assertIn("**hung after 1 s**", self.markdown)
        self.assertEqual(self.states()["engine"], "passed")
        self.check_ended()

    def check_ended(self):
        begin = time.monotonic()
        for pid in (self.stubs / "pids").read_text().split():
            while self.is_running(pid):
                self.assertLess(time.monotonic() - begin, 60, "the hung program still runs")

    @staticmethod
    def is_running(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def test_one_that_is_ended_leaves_its_report_and_no_process(self):
        (self.stubs / "engine").write_text("hangs")
        process = self.start()
        while not (self.stubs / "pids").exists():
            self.assertIsNone(process.poll(), "it ended before the program that hangs")
        process.terminate()
        self.assertEqual(self.finish(process), 1)
        self.assertIn("ended by signal 15", self.output)
        self.assertFalse(self.report["complete"])
        self.assertEqual(self.states()["kernels"], "passed")
        self.assertIn("has not come to its end", self.markdown)
        self.check_ended()

    def test_no_time_left_is_a_failure(self):
        self.assertEqual(self.check("--seconds", "1"), 1)
        self.assertEqual(self.stage("configure")["reason"], "not run: no time was left")

    def test_what_cannot_run_here_is_skipped_with_its_reason(self):
        self.assertEqual(self.check(compute_sanitizer="refuses", perf="unable"), 0, self.output)
        states = self.states()
        self.assertEqual([states[name] for name in states if "check-" in name], ["skipped"] * 4)
        self.assertEqual(self.stage("memcheck-device_engine_test")["reason"],
                         "compute-sanitizer does not work here: Error: Device not supported.")
        self.assertEqual(self.stage("perf-probe")["reason"], "this rondo-perf cannot measure device memory")
        self.assertNotIn("perf-1-threads", states)

    def test_what_could_be_built_is_run(self):
        write_program(self.stubs / "bin/cmake", TOOLS["cmake"].replace('behave build "$@"; mkdir', "mkdir").replace("fi ;;", "fi; exit 1 ;;"))
        (self.stubs / "programs/device_engine_bench").unlink()
        self.assertEqual(self.check(), 1)
        self.assertEqual((self.states()["build"], self.states()["kernels"]), ("failed", "passed"))
        self.assertEqual(self.stage("engine")["reason"], "this build has no device_engine_bench")

    def test_two_ranks_of_nccl_on_one_gpu(self):
        theirs = copy.deepcopy(PERF)
        theirs["results"][0]["in_place"]["time"] = 23.0
        theirs["results"][0]["out_of_place"]["time"] = 25.0
        theirs["results"][1]["out_of_place"]["time"] = 1000.0
        self.program("rondo-perf-nccl", "", theirs)
        self.assertEqual(self.check(), 0, self.output)
        self.assertRegex(self.stage("nccl")["command"], "^env NCCL_MULTI_RANK_GPU_ENABLE=1 .*/rondo-perf-nccl all_reduce -b 8 -e 1G -f 8 --ranks 2")
        judged = self.goal("NCCL's two ranks")
        self.assertEqual((judged["value"], judged["met"], judged["how"]), (0.8, False, "1G; 1 of 2 sizes reach it"))

        threads = self.goal("two threads on one GPU, against")
        self.assertEqual((threads["value"], threads["met"]), (0.8, False))
        self.assertRegex(self.stage("nccl-own")["command"], "/rondo-perf all_reduce -b 8 -e 1G -f 8 --ranks 2 --device cuda --threads")
        self.assertIn("--memory library", self.stage("perf-2-processes")["command"])
        self.assertEqual(self.stage("nccl-drop-in")["reason"], "this build has no librondo-nccl.so")

    def test_gpus_without_access_to_each_other_register_nothing(self):
        self.program_first("rondo-perf", "case \"$*\" in *library*) echo 'rondo-perf: unavailable: --memory library: no access'; exit 1;; esac")
        self.assertEqual(self.check(), 0, self.output)
        self.assertEqual(self.stage("perf-2-processes")["reason"], "buffers cannot be registered here: --memory library: no access")

    def test_rondo_in_the_place_of_nccl(self):
        through = copy.deepcopy(PERF)
        through["results"][0]["in_place"]["time"] = 12.5  # 1 us more, and less than 3 %
        through["results"][1]["out_of_place"]["time"] = 1300.0  # 4 % more
        self.program("rondo-perf-nccl", "[[ $LD_PRELOAD == */librondo-nccl.so ]] || exit", through)
        (self.stubs / "librondo-nccl.so").write_text("a library")
        (self.stubs / "libraries").write_text("\tlibnccl.so.2 => not found\n")
        self.assertEqual(self.run_packed(), 0, self.output)
        # NCCL itself is not here.
        self.assertEqual(self.states()["nccl"], "skipped")
        self.assertRegex(self.stage("nccl-drop-in")["command"], "LD_PRELOAD=programs/lib/librondo-nccl.so .*/rondo-perf-nccl all_reduce -b 8 -e 1G -f 8 --ranks 2")
        judged = self.goal("NCCL's functions")
        self.assertEqual((judged["value"], judged["met"], judged["how"]), (round(1300 / (1250 * 1.03), 3), False, "1G"))

    def drop_in_of_torch(self, words):
        """PyTorch's stages on a stand-in for PyTorch, of which importing does what `words` say."""
        (self.work / "site").mkdir()
        (self.work / "site/torch.py").write_text(f"import os, sys\nif os.environ.get('LD_PRELOAD', '').endswith('/librondo-nccl.so'):\n    {words}\nsys.exit(1)\n")
        (self.stubs / "librondo-nccl.so").write_text("a library")
        code = self.run_packed()
        return code, self.stage("nccl-drop-in-torch"), self.stage("nccl-drop-in-torch-left")

    def test_pytorch_on_rondo_in_the_place_of_nccl(self):
        code, torch, left = self.drop_in_of_torch("print('DDP: rank 1: a wrong sum'); sys.exit(1)")
        self.assertEqual(code, 1)
        self.assertRegex(torch["command"], "^env CUDA_MPS_PIPE_DIRECTORY=mps .* LD_PRELOAD=programs/lib/librondo-nccl.so .*python3? tests/nccl/torch_drop_in.py$")
        self.assertTrue(left["command"].endswith("torch_drop_in.py --leave"), left)
        self.assertTrue(torch["reason"].endswith("DDP: rank 1: a wrong sum"), torch)
        self.assert_limits_know(self.states(), prebuilt=True)

    def test_pytorch_without_cuda_is_not_put_on_rondo(self):
        _, torch, left = self.drop_in_of_torch("print('no PyTorch with CUDA here'); sys.exit(77)")
        self.assertEqual([(each["state"], each["reason"]) for each in (torch, left)], [("skipped", "no PyTorch with CUDA here")] * 2)

    def test_a_rank_of_pytorch_that_was_killed_ends_the_use_of_mps(self):
        _, torch, left = self.drop_in_of_torch("print('rank 1 ended with -6'); sys.exit(9)")
        self.assertEqual((torch["state"], left["state"]), ("failed", "skipped"))

    def test_several_gpus_without_nccl(self):
        (self.stubs / "gpus").write_text("1 2")
        self.assertEqual(self.check(), 0, self.output)
        self.assertEqual(len(self.report["devices"]), 2)
        self.assertEqual(self.stage("nccl")["reason"], "this build has no rondo-perf-nccl")
        self.assertEqual((self.stage("gpus-nccl")["state"], self.stage("gpus-threads")["state"]), ("skipped", "passed"))

    def test_of_several_gpus_each_has_a_rank_and_what_is_said_of_one_sees_one(self):
        note = 'echo "$* sees ${CUDA_VISIBLE_DEVICES-all}" >>"$STUBS/seen"'
        self.program_first("rondo-perf", note)
        theirs = copy.deepcopy(PERF)
        theirs["results"][0]["in_place"]["time"] = 15.0
        self.program("rondo-perf-nccl", note, theirs)
        (self.stubs / "gpus").write_text("1 2 3")
        for visible, one, several in ((None, "0", "all"), ("5,1,2", "5", "5,1,2")):
            (self.stubs / "seen").unlink(missing_ok=True)
            with unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": visible} if visible else {}):
                self.assertEqual(self.check(), 0, self.output)
            seen = [line.rsplit(" sees ", 1) for line in (self.stubs / "seen").read_text().splitlines()]
            of = {places for words, places in seen if "--ranks 3" in words and "-b 8 -e 1G" in words}
            self.assertEqual((of, len(self.report["devices"])), ({several}, 3))
            self.assertEqual({places for words, places in seen if "--ranks 8" in words}, {one})
            # Clients of MPS number what its daemon sees.
            self.assertEqual({places for words, places in seen if "--ranks 2" in words and "-t" not in words.split()}, {one, "0"})
        self.assertIn("--memory library", self.stage("gpus-processes")["command"])
        self.assertIn("--ranks 3", self.stage("gpus-train")["command"])
        goals = [goal for goal in self.report["goals"] if "a rank on each GPU" in goal["what"]]
        self.assertEqual([(goal["target"], goal["value"], goal["met"]) for goal in goals],
                         [(">= 1", 1.0, True), (">= 1", 1.0, True), (">= 1.5", round(12.5 / 11.5, 3), False)])
        self.assert_limits_know(self.states())

    def test_nothing_is_checked_where_it_cannot_be(self):
        (self.stubs / "no-gpu").write_text("")
        self.assertEqual(self.check(), 1)
        self.assertIn("gpu-check: no GPU here", self.output)
        self.assertFalse((self.stubs / "calls").exists())
        # Also without a GPU, what is wrong with DIR or the archive takes precedence.
        (self.work / "deps/manifest.json").unlink()
        self.assertEqual(self.check(), 1)
        self.assertIn("not what scripts/bundle-deps makes: it has no manifest.json", self.output)

    def test_an_archive_that_is_none_is_refused(self):
        half = pathlib.Path(self.pack())
        half.write_bytes(half.read_bytes()[:-100])
        with tarfile.open(self.work / "other.tar", "w") as tar:
            tar.add(self.stubs, "stubs")
        (self.work / "none").write_text("no archive")
        for archive, why in ((half, ""), (self.work / "none", ""), ("missing", ": No such file or directory"),
                             (self.work / "other.tar", ": it does not begin with prebuilt.json")):
            self.assertEqual(self.check("--prebuilt", str(archive)), 1)
            self.assertIn(f"{archive} is not what gpu-check --pack makes{why}", self.output)

    def test_places_that_cannot_be_written_are_refused_before_building(self):
        taken = self.work / "taken"
        taken.write_text("")
        for words, why in ((("--pack", "/proc/a.tar.xz"), "--pack /proc/a.tar.xz: /proc cannot be written to as a folder: No such file"),
                           (("--pack", str(self.work)), "that is a folder, not a file to write"),
                           (("--pack", str(taken / "a.tar.xz")), "cannot be written to as a folder: "),
                           (("--out", str(taken)), f"--out {taken}: {taken} cannot be written to as a folder: it is a file"),
                           (("--build-dir", str(taken)), f"--build-dir {taken}: ")):
            self.assertEqual(self.check(*words), 1, self.output)
            self.assertIn(why, self.output)
            self.assertNotIn("Traceback", self.output)
            self.assertFalse((self.stubs / "calls").exists())

    def test_wrong_arguments_are_refused(self):
        for words, why in ((("--limit", "nosuch=9"), "there is no stage 'nosuch' here. There are: configure, build, tests, layers, "),
                           (("--limit", "quick-kernels=9"), "there is no stage 'quick-kernels'"),
                           (("--quick", "--limit", "quick-kernels=-1"), "'-1' is not a number of seconds from 1 to 86400"),
                           (("--limit", "kernels"), "is not STAGE=SECONDS"),
                           (("--pack", "a", "--limit", "test-one_test=9"), "There are: configure, build\n"),
                           (("--seconds", "0"), "'0' is not a number of seconds"), (("--seconds", "nan"), "'nan' is not a number"),
                           (("--prebuilt", "a", "deps"), "give it or DIR (deps), not both"),
                           (("--prebuilt", "a", "--pack", "b"), "--pack runs nothing: it stands alone, or with DIR"),
                           (("--architectures", "90"), "--architectures is for --pack"),
                           (("--prebuilt", "a", "--architectures", "90"), "--architectures is for --pack")):
            self.assertEqual(self.check(*words), 2, self.output)
            self.assertIn(why, self.output)
        self.assertFalse((self.stubs / "calls").exists())

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
