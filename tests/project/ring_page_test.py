#!/usr/bin/env python3
"""ring_page_test.py BIN: docs/ring.md says what the programs in BIN say: its commands print the lines that stand below them, its pictures
are those that rondo-plan draws. And scripts/demo_table.py has the same bytes in its rows."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/ring.md").read_text(encoding="utf-8")


def run(command, folder):
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "RONDO_LINKS": "built-in"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


class RingPage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_the_commands_print_what_stands_below_them(self):
        blocks = re.findall(r"^( *)```console\n(.*?)^ *```$", PAGE, re.S | re.M)
        self.assertGreaterEqual(len(blocks), 5)
        for indent, block in blocks:
            command, *expected = (line.removeprefix(indent) for line in block.splitlines())
            self.assertTrue(command.startswith("$ ") and expected, command)
            done = run(["bash", "-o", "pipefail", "-c", command[2:]], self.folder)
            with self.subTest(command):
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = iter(done.stdout.splitlines())
                for line in expected:
                    self.assertIn(line, lines, done.stdout)  # in this order

    def test_the_pictures_are_those_that_the_program_draws(self):
        check = [ROOT / "scripts/pictures", "--check", f"{BIN}/rondo-plan"]
        done = run(check, self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        other = self.folder / "rondo-plan"
        other.write_text('#!/bin/sh\nrondo-plan "$@" | sed "s/664,832/664,833/"\n', encoding="utf-8")
        other.chmod(0o755)
        done = run([*check[:2], other], self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("docs/ring-1.svg docs/ring-2.svg", done.stderr)

    def test_the_demo_starts_with_a_ring(self):
        first = re.search(r'^ +"\$\{train\[@\]\}".*', (ROOT / "scripts/demo").read_text(encoding="utf-8"), re.M)[0]
        self.assertIn("--algorithm ring", first)

    def test_the_demo_table_has_the_algorithm_and_every_byte(self):
        for name in "train", "train-paced", "train-paced-no-overlap":
            done = run(["rondo-train", "--ranks", "2", "--algorithm", "ring", "--width", "32", "--steps", "2", "--log-every", "0",
                        "--data", ROOT / "docs", "--json", self.folder / f"{name}.json"], self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
        row = {"size": 8, "algorithm": "ring", "predicted_us": 2.0, "out_of_place": {"time": 3.0, "bus_bw": 1.0}}
        for name in "perf", "perf-paced":
            (self.folder / f"{name}.json").write_text(json.dumps({"config": {"ranks": 2}, "results": [row]}), encoding="utf-8")
        done = run([ROOT / "scripts/demo_table.py", self.folder], self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        cells = {line[0]: line[1] for line in (re.split(r"  +", line.strip()) for line in done.stdout.splitlines()) if len(line) > 1}
        self.assertEqual(cells["all-reduces by"], "ring")
        number = lambda title: int(cells[title].replace(",", ""))
        gradients = number("gradients (bytes)")
        self.assertEqual(number("formula: 2(N-1)/N of the gradients"), gradients)  # the factor of two ranks is 1
        self.assertEqual(number("+ 2(N-1)/N of the loss and a stop word, 16 bytes"), 16)
        self.assertEqual(number("+ 32 bytes of headers to each other rank"), 32)
        self.assertEqual(number("= each rank on average"), gradients + 48)
        self.assertEqual(number("sent by the rank that sent most"), gradients + 48)

    def test_the_demo_table_leaves_out_what_has_not_run(self):
        table = [ROOT / "scripts/demo_table.py", self.folder]
        done = run(table, self.folder)
        self.assertEqual((done.returncode, done.stdout), (0, "  no step has left a measurement\n"), done.stderr)
        (self.folder / "train.json").write_text('{"error": "stopped", "steps": []}', encoding="utf-8")
        row = {"size": 8, "algorithm": "ring", "predicted_us": 2.0, "out_of_place": {"time": 3.0, "bus_bw": 1.0}}
        (self.folder / "perf.json").write_text(json.dumps({"config": {"ranks": 2}, "results": [row]}), encoding="utf-8")
        done = run(table, self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all-reduce, 2 ranks", done.stdout)
        self.assertNotIn("whole step", done.stdout)


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv.pop())
    unittest.main()
