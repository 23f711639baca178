#!/usr/bin/env python3
"""course_test.py BIN: the commands of docs/course.md, run with the programs in BIN as they stand there, print what stands below them, and
their results are in the ranges of its tables."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/course.md").read_text(encoding="utf-8")
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FAILS = ("share-{rank}", "lone-read")  # on purpose


def exercise(number):
    return re.search(rf"^## {number}\. .*?(?=^## |\Z)", PAGE, re.S | re.M)[0]


def commands(text):
    """Each command, and the lines below it."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.S | re.M):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def rows(text):
    """Of the tables: first cell, and the others."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in cells}


class Course(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def carry_out(self, text):
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        environment["PATH"] = f"{BIN}:{environment['PATH']}"
        for command, expected in commands(text):
            made = subprocess.run(["bash", "-c", command], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120,
                                  check=False)
            with self.subTest(command):
                self.assertEqual(made.returncode != 0, any(word in command for word in FAILS), made.stderr)
                for line in expected:
                    self.assertIn(line, made.stdout + made.stderr)

    def document(self, name):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def test_1_bytes(self):
        text = exercise(1)
        self.assertEqual(len(commands(text)), 3)
        self.carry_out(text)

    def test_2_latency_or_bandwidth(self):
        text = exercise(2)
        self.carry_out(text)
        table = rows(text)
        for name in ("small", "large", "ring", "star"):
            least, most = (float(cell.removesuffix(" ms")) for cell in table[f"{name}.json"])
            time_ms = self.document(f"{name}.json")["results"][0]["out_of_place"]["time"] / 1e3
            self.assertTrue(least <= time_ms <= most, f"{name}: {time_ms} ms, and not {least} to {most}")

    def test_3_hiding(self):
        text = exercise(3)
        self.carry_out(text)
        summaries = {name: self.document(name)["summary"] for name in ("half.json", "each.json", "after.json")}
        table = rows(text)
        for name, summary in summaries.items():
            self.assertEqual(len(summary["buckets"]), int(table[name][0]))
            said = float(table[name][1].removeprefix("about "))
            self.assertLess(abs(summary["predicted_comm_us"] - said), 0.15 * said)
        self.assertEqual((table["half.json"][2], table["after.json"][2]), ("the most", "the least"))
        self.assertLess(summaries["after.json"]["hidden_fraction"], summaries["half.json"]["hidden_fraction"])

    def test_4_more_ranks(self):
        text = exercise(4)
        self.carry_out(text)
        two = next(row for row in self.document("scaling.json")["scaling"] if row["ranks"] == 2)
        least = float(re.search(r"at least (\d+) ms", text)[1])
        self.assertGreaterEqual(two["step_ms"], least)

    def test_5_mistakes(self):
        text = exercise(5)
        self.assertEqual(len(commands(text)), 4)
        self.carry_out(text)

    def test_every_exercise_is_there(self):
        for number in range(1, 6):
            text = exercise(number)
            for part in ("**Predict.**", "**What one sees.**", "**Answer.**"):
                self.assertIn(part, text)
            self.assertRegex(text, "[Cc]hapter")


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv.pop())
    unittest.main()
