#!/usr/bin/env python3
"""gpt2_page_test.py BIN: the commands of docs/gpt2.md, run with the programs in BIN one after the other as they stand there, do what the page
says; its flags are rondo-train's."""
import importlib.util
import re
import sys

import common

PAGE = (common.ROOT / "docs/gpt2.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)


class Gpt2Page(common.PageTest):
    VARIABLES = {"RONDO": str(common.ROOT)}

    def test_its_commands(self):
        write_tokens, sample = blocks("python")
        (self.folder / "write_tokens.py").write_text(write_tokens, encoding="utf-8")
        lines = [command for command, _ in common.commands(PAGE)]
        self.assertGreater(len(lines), 10)
        self.run_in_folder("bash", "-ec", "\n".join(lines))
        whole, rest, tuned = (self.document(name) for name in ("whole.json", "rest.json", "tuned.json"))
        self.assertEqual([len(document["steps"]) for document in (whole, rest, tuned)], [200, 100, 20])
        self.assertGreater(whole["steps"][0]["loss"], 5)
        self.assertLess(whole["summary"]["final_loss"], 3.2)
        self.assertGreater(whole["summary"]["tokens_per_s"], 0)
        self.assertEqual(rest["summary"]["parameter_hash"], whole["summary"]["parameter_hash"])
        self.assertLess(tuned["steps"][0]["loss"], 3.2)
        if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
            self.assertTrue(self.run_in_folder(sys.executable, "-c", sample).stdout.startswith("A rank "))

    def test_tokens_of_nanogpt_are_the_same(self):
        """By the line that is a comment in the page's program."""
        program = blocks("python")[0]
        line = re.search(r"^# (tokens = struct.*)$", program, re.M)[1]
        (self.folder / "of_bytes").write_bytes(b"abcdefghijklmnopqrst")
        (self.folder / "of_words").write_bytes(b"".join(bytes([byte, 0]) for byte in b"abcdefghijklmnopqrst"))
        self.run_in_folder(sys.executable, "-c", program, "of_bytes")
        wanted = (self.folder / "train.bin").read_bytes()
        self.run_in_folder(sys.executable, "-c", re.sub(r"^tokens = .*$", lambda _: line, program, flags=re.M), "of_words")
        self.assertEqual((self.folder / "train.bin").read_bytes(), wanted)
        self.assertEqual(len(wanted), 1024 + 2 * 18)

    def test_its_flags_are_there(self):
        there = set(re.findall(r"--[a-z][\w-]*", self.run_in_folder("rondo-train", "--help").stdout))
        named = set(re.findall(r"--[a-z][\w-]*", PAGE))
        self.assertFalse(named - there)


if __name__ == "__main__":
    common.run_tests()
