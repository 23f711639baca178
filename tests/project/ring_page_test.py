#!/usr/bin/env python3
"""ring_page_test.py BIN: docs/ring.md says what the programs in BIN say: its commands print the lines that stand below them, its pictures
are those that rondo-plan draws. And scripts/demo_table.py has the same bytes in its rows."""
import json
import re

import common

ROOT = common.ROOT
PAGE = (ROOT / "docs/ring.md").read_text(encoding="utf-8")
PERF = {"config": {"ranks": 2}, "results": [{"size": 8, "algorithm": "ring", "predicted_us": 2.0,
                                              "out_of_place": {"time": 3.0, "bus_bw": 1.0}}]}


class RingPage(common.PageTest):
    VARIABLES = {"RONDO_LINKS": "built-in"}

    def test_the_commands_print_what_stands_below_them(self):
        commands = common.commands(PAGE)
        self.assertGreaterEqual(len(commands), 5)
        for command, expected in commands:
            with self.subTest(command):
                self.assertTrue(expected)
                lines = iter(self.run_in_folder("bash", "-o", "pipefail", "-c", command).stdout.splitlines())
                for line in expected:
                    self.assertIn(line, lines)  # in this order

    def test_the_pictures_are_those_that_the_program_draws(self):
        check = ROOT / "scripts/pictures", "--check"
        self.run_in_folder(*check, f"{self.BIN}/rondo-plan")
        other = self.folder / "rondo-plan"
        other.write_text('#!/bin/sh\nrondo-plan "$@" | sed "s/664,832/664,833/"\n', encoding="utf-8")
        other.chmod(0o755)
        self.assertIn("docs/ring-1.svg docs/ring-2.svg", self.run_in_folder(*check, other, fails=True).stderr)

    def test_the_demo_starts_with_a_ring(self):
        first = re.search(r'^ +"\$\{train\[@\]\}".*', (ROOT / "scripts/demo").read_text(encoding="utf-8"), re.M)[0]
        self.assertIn("--algorithm ring", first)

    def test_the_demo_table_has_the_algorithm_and_every_byte(self):
        for name in "train", "train-paced", "train-paced-no-overlap":
            self.run_in_folder("rondo-train", "--ranks", 2, "--algorithm", "ring", "--width", 32, "--steps", 2, "--log-every", 0,
                               "--data", ROOT / "docs", "--json", f"{name}.json")
        for name in "perf", "perf-paced":
            (self.folder / f"{name}.json").write_text(json.dumps(PERF), encoding="utf-8")
        lines = self.run_in_folder(ROOT / "scripts/demo_table.py", ".").stdout.splitlines()
        cells = {line[0]: line[1] for line in (re.split(r"  +", line.strip()) for line in lines) if len(line) > 1}
        self.assertEqual(cells["all-reduces by"], "ring")
        number = lambda title: int(cells[title].replace(",", ""))
        gradients = number("gradients (bytes)")
        self.assertEqual(number("formula: 2(N-1)/N of the gradients"), gradients)  # the factor of two ranks is 1
        self.assertEqual(number("+ 2(N-1)/N of the loss and a stop word, 16 bytes"), 16)
        self.assertEqual(number("+ 32 bytes of headers to each other rank"), 32)
        self.assertEqual(number("= each rank on average"), gradients + 48)
        self.assertEqual(number("sent by the rank that sent most"), gradients + 48)

    def test_the_demo_table_leaves_out_what_has_not_run(self):
        table = ROOT / "scripts/demo_table.py", "."
        self.assertEqual(self.run_in_folder(*table).stdout, "  no step has left a measurement\n")
        (self.folder / "train.json").write_text('{"error": "stopped", "steps": []}', encoding="utf-8")
        (self.folder / "perf.json").write_text(json.dumps(PERF), encoding="utf-8")
        said = self.run_in_folder(*table).stdout
        self.assertIn("all-reduce, 2 ranks", said)
        self.assertNotIn("whole step", said)


if __name__ == "__main__":
    common.run_tests()
