#!/usr/bin/env python3
"""plot_test.py: scripts/plot draws what rondo-train --json and scripts/compare --report write, and refuses everything else by name.
Without matplotlib only the refusals are checked, and the exit status is 77: skipped."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

PLOT = pathlib.Path(__file__).resolve().parents[2] / "scripts/plot"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
# As scripts/plot does: Debian's python3-matplotlib belongs to the system's Python.
SYSTEM = "/usr/bin/python3"
if not HAS_MATPLOTLIB and os.path.exists(SYSTEM) and os.path.realpath(sys.executable) != os.path.realpath(SYSTEM):
    os.execv(SYSTEM, [SYSTEM, *sys.argv])


def document(steps=20, **more):
    """As report.cpp and summary.cpp write it, as far as it is drawn."""
    return {"program": "rondo-train", "config": {"model": "mlp"},
            "steps": [{"step": s, "epoch": 0, "loss": 5.5 / s, "step_ms": 10.0} for s in range(1, steps + 1)],
            "summary": {"ranks": 4, "compute_ms": 8.0, "hidden_comm_ms": 3.0, "exposed_comm_ms": 1.5, "other_wait_ms": 0.25,
                        "data_wait_ms": 0.5, "hidden_fraction": 3.0 / 4.5}, **more}


SCALING = [{"ranks": 1, "samples_per_s": 100.0, "efficiency": 1.0, "oversubscribed": False},
           {"ranks": 2, "samples_per_s": 190.0, "efficiency": 0.95, "oversubscribed": False},
           {"ranks": 4, "samples_per_s": 200.0, "efficiency": 0.5, "oversubscribed": True}]


REPORT = """# scripts/compare

| size | rondo plain | rondo library | MPI A | MPI A sm | against the fastest of all |
| ---: | ---: | ---: | ---: | ---: | ---: |
| 8 | 1.00 | 0.50 | 2.00 (2.00 / 4.00) | - | 2.00 / 4.00 (MPI A) |
| 8K | 2.00 | 1.00 | 3.00 (1.50 / 3.00) | 8.00 (4.00 / 8.00) | 1.50 / 3.00 (MPI A) |

| size | rondo plain | rondo library | another table | |
"""

PYTORCH = """# PyTorch on rondo and gloo, 2 ranks

all_reduce, microseconds:

| size | rondo plain | rondo library | gloo |
| ---: | ---: | ---: | ---: |
| 8 | 1.00 | 0.50 | 2.00 (2.00 / 4.00) |

broadcast, microseconds:

| size | rondo plain | rondo library | gloo |
| ---: | ---: | ---: | ---: |
| 1M | 2.00 | 1.00 | 3.00 (1.50 / 3.00) |

A step, milliseconds:

| step | rondo | gloo |
| ---: | ---: | ---: |
| DDP | 1.00 | 2.00 (2.00) |
"""


class PlotTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    def module(self):
        sys.dont_write_bytecode = True
        spec = importlib.util.spec_from_loader("plot", importlib.machinery.SourceFileLoader("plot", str(PLOT)))
        plot = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(plot)
        return plot

    def plot(self, *arguments):
        return subprocess.run([sys.executable, str(PLOT), *arguments], capture_output=True, text=True, check=False)

    def draw(self, *files, out="pictures"):
        """The names of the pictures that were drawn, all of which are PNG files with an extent."""
        result = self.plot("--out", str(self.folder / out), *files)
        self.assertEqual(result.returncode, 0, result.stderr)
        pictures = [pathlib.Path(line) for line in result.stdout.splitlines()]
        for picture in pictures:
            content = picture.read_bytes()
            self.assertEqual(content[:8], b"\x89PNG\r\n\x1a\n")
            width, height = struct.unpack(">II", content[16:24])
            self.assertGreater(min(width, height), 200)
        self.assertEqual(sorted(pictures), sorted((self.folder / out).iterdir()))
        return [picture.name for picture in pictures]

    def assert_refused(self, content, *words):
        result = self.plot("--out", str(self.folder / "refused"), self.write("run.json", content))
        self.assertEqual(result.returncode, 1)
        for word in ("run.json", *words):
            self.assertIn(word, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertFalse((self.folder / "refused").exists())

    def test_help_needs_nothing(self):
        result = self.plot("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("loss.png", "overlap.png", "scaling.png", "--out"):
            self.assertIn(word, result.stdout)
        self.assertEqual(self.plot().returncode, 2)

    def test_wrong_files(self):
        missing = self.plot(str(self.folder / "missing.json"))
        self.assertEqual(missing.returncode, 1)
        self.assertIn("missing.json': cannot be read: No such file", missing.stderr)
        self.assert_refused("", "not JSON")
        self.assert_refused('{"program": "rondo-train", ', "not JSON")
        self.assert_refused("[1, 2]", "not written by rondo-train")
        self.assert_refused({"program": "rondo-perf"}, "not written by rondo-train")
        self.assert_refused({"program": "rondo-train", "steps": []}, "nothing to draw")
        self.assert_refused(document(steps=2) | {"steps": 3}, "steps is not a list")
        self.assert_refused(document() | {"steps": [{"step": 1}]}, "steps[0] has no loss")
        self.assert_refused(document() | {"steps": [{"step": 1, "loss": "low"}]}, 'steps[0].loss is "low"')
        self.assert_refused(document() | {"summary": {"compute_ms": 1}}, "summary has no hidden_comm_ms")
        self.assert_refused(document() | {"summary": document()["summary"] | {"compute_ms": None}}, "not numbers")
        self.assert_refused(document() | {"summary": [1]}, "summary is not an object")
        self.assert_refused(document(scaling=[{"ranks": 1}]), "scaling[0] has no efficiency")
        # One wrong file among good ones: nothing is drawn.
        good = self.write("good.json", document())
        result = self.plot("--out", str(self.folder / "refused"), good, self.write("bad.json", "{}"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("bad.json", result.stderr)

    def test_parts_add_up_to_the_step(self):
        plot = self.module()
        parts = [ms for _, _, ms in plot.parts_of_step(document()["summary"])]
        self.assertEqual(parts, [5.0, 3.0, 1.5, 0.25, 0.5])  # hidden communication is a share of computing
        crowded = document()["summary"] | {"hidden_comm_ms": 9.0}
        self.assertEqual([ms for _, _, ms in plot.parts_of_step(crowded)], [0.0, 8.0, 1.5, 0.25, 0.5])
        self.assertEqual(plot.overlap_of(document()["summary"]), "67 % hidden")
        alone = document()["summary"] | {"ranks": 1}
        self.assertEqual(plot.overlap_of(alone), "no communication")

    def test_comparisons(self):
        report = self.module().Comparison(self.write("report.md", REPORT))
        self.assertEqual(report.lines, {"MPI A": [(8, 2.0, 4.0), (8192, 1.5, 3.0)], "MPI A sm": [(8192, 4.0, 8.0)]})
        report = self.module().Comparison(self.write("report.md", PYTORCH))
        self.assertEqual(report.lines, {"all_reduce": [(8, 2.0, 4.0)], "broadcast": [(1 << 20, 1.5, 3.0)]})
        self.assertEqual(report.peer, "gloo")
        for content, word in (("nothing", "no table"), (REPORT.replace("| 8K |", "| many |"), "'many'")):
            result = self.plot("--out", str(self.folder), self.write("wrong.md", content))
            self.assertEqual(result.returncode, 1)
            self.assertIn(word, result.stderr)

    def test_lines_of_steps(self):
        lines = '[0] {"step": 1, "loss": 0.5}\nwords\n[0] {"step": 2, "loss": 0.25}\n[0] {"bytes_sent_per_step": 7}\n'
        run = self.module().Run(self.write("run.jsonl", lines))
        self.assertEqual((run.steps, run.losses), ([1, 2], [0.5, 0.25]))
        result = self.plot(self.write("bad.jsonl", '[0] {"step": 1,'))
        self.assertEqual(result.returncode, 1)
        self.assertIn("not JSON", result.stderr)

    @unittest.skipUnless(HAS_MATPLOTLIB, "no matplotlib")
    def test_a_comparison_is_named_as_its_report(self):
        self.assertEqual(self.draw(self.write("a-report.md", REPORT), self.write("run.json", document(steps=3))),
                         ["loss.png", "overlap.png", "a-report.png"])

    @unittest.skipIf(HAS_MATPLOTLIB, "matplotlib is here")
    def test_without_matplotlib(self):
        result = self.plot(self.write("run.json", document()))
        self.assertEqual(result.returncode, 1)
        self.assertIn("needs matplotlib", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    @unittest.skipUnless(HAS_MATPLOTLIB, "no matplotlib")
    def test_pictures(self):
        run = self.write("run.json", document())
        self.assertEqual(self.draw(run), ["loss.png", "overlap.png"])
        other = self.write("other/run.json", document(steps=100, scaling=SCALING))
        self.assertEqual(self.draw(run, other, out="two"), ["loss.png", "overlap.png", "scaling.png"])

    @unittest.skipUnless(HAS_MATPLOTLIB, "no matplotlib")
    def test_pictures_show_the_numbers(self):
        def pictures(out, change=lambda d: None):
            content = json.loads(json.dumps(document(scaling=SCALING)))
            change(content)
            return {name: (self.folder / out / name).read_bytes() for name in self.draw(self.write("run.json", content), out=out)}

        def change_some(d):
            d["steps"][3].update(loss=5.4)
            d["summary"].update(exposed_comm_ms=3.0)
            d["scaling"][2].update(efficiency=0.7)

        def change_others(d):
            d["summary"].update(data_wait_ms=2.0)
            d["scaling"][1].update(oversubscribed=True)

        before, some, others = pictures("before"), pictures("some", change_some), pictures("others", change_others)
        self.assertEqual(before, pictures("again"))
        self.assertEqual([name for name in before if before[name] == some[name]], [])
        self.assertEqual([name for name in before if before[name] == others[name]], ["loss.png"])

    @unittest.skipUnless(HAS_MATPLOTLIB, "no matplotlib")
    def test_runs_that_broke_off_or_diverged(self):
        broken = document(error="peer died: rank 2")
        del broken["summary"]
        broken["steps"][4]["loss"] = None  # NaN
        run = self.write("broken.json", broken)
        result = self.plot("--out", str(self.folder / "pictures"), run)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("peer died: rank 2", result.stderr)
        self.assertEqual([p.name for p in (self.folder / "pictures").iterdir()], ["loss.png"])

    @unittest.skipUnless(HAS_MATPLOTLIB, "no matplotlib")
    def test_folder_that_cannot_be_written(self):
        run = self.write("run.json", document())
        result = self.plot("--out", run, run)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write", result.stderr)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    sys.exit(0 if HAS_MATPLOTLIB else 77)
