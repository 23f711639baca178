#!/usr/bin/env python3
"""course_test.py BIN: the commands of docs/course.md, run with the programs in BIN as they stand there, print what stands below them, and
their results are in the ranges of its tables."""
import re

import common

PAGE = (common.ROOT / "docs/course.md").read_text(encoding="utf-8")
FAILS = ("share-{rank}", "lone-read")  # on purpose


def exercise(number):
    return re.search(rf"^## {number}\. .*?(?=^## |\Z)", PAGE, re.S | re.M)[0]


def rows(text):
    """Of the tables: first cell, and the others."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in cells}


class Course(common.PageTest):
    def carry_out(self, text, count=None):
        """Its commands; if `count` is given, there are so many."""
        found = common.commands(text)
        self.assertIn(count, (None, len(found)))
        for command, expected in found:
            with self.subTest(command):
                made = self.run_in_folder("bash", "-c", command, fails=any(word in command for word in FAILS))
                for line in expected:
                    self.assertIn(line, made.stdout + made.stderr)

    def test_1_bytes(self):
        self.carry_out(exercise(1), 3)

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
        self.assertEqual(summaries["after.json"]["hidden_fraction"], 0)
        self.assertLess(summaries["half.json"]["exposed_comm_ms"], summaries["after.json"]["exposed_comm_ms"])

    def test_4_more_ranks(self):
        text = exercise(4)
        self.carry_out(text)
        two = next(row for row in self.document("scaling.json")["scaling"] if row["ranks"] == 2)
        least = float(re.search(r"at least (\d+) ms", text)[1])
        self.assertGreaterEqual(two["step_ms"], least)

    def test_5_mistakes(self):
        self.carry_out(exercise(5), 4)

    def test_every_exercise_is_there(self):
        for number in range(1, 6):
            text = exercise(number)
            for part in ("**Predict.**", "**What one sees.**", "**Answer.**"):
                self.assertIn(part, text)
            self.assertRegex(text, "[Cc]hapter")


if __name__ == "__main__":
    common.run_tests()
