#!/usr/bin/env python3
"""walked_train_test.py WALKED_TRAIN: rondo-train --device cuda as a program, over the stand-in for CUDA: its messages, its files,
its exit codes, and lessons."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TRAINER = pathlib.Path(__file__).resolve().parents[3] / "trainer"
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
SMALL = ("--ranks", "2", "--width", "64", "--batch", "4")


def run(*words):
    return subprocess.run([WALKED, *words], env=ENVIRONMENT, cwd=TRAINER, capture_output=True, encoding="utf-8", timeout=500,
                          check=False)


class WalkedTrainTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def document(self):
        return json.loads((self.folder / "run.json").read_text(encoding="utf-8"))

    def test_a_run_leaves_what_one_on_the_host_leaves_and_names_the_stand_in(self):
        trace = self.folder / "run.trace"
        made = run("--device", "cuda", *SMALL, "--steps", "3", "--control-steps", "1", "--json", str(self.folder / "run.json"),
                   "--trace", str(trace))
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("no GPU computes, but a stand-in", made.stderr)
        self.assertIn("rank 0 computes on GPU 0: stand-in on a CPU", made.stderr)
        document = self.document()
        self.assertEqual(len(document["steps"]), 3)
        self.assertEqual(document["config"]["device"], "cuda")
        self.assertEqual(document["summary"]["device"], "stand-in on a CPU")
        self.assertEqual(document["summary"]["accounting"]["control_steps"], 1)
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        for rank in 0, 1:
            self.assertEqual(sum(e["ph"] == "X" and e["pid"] == rank and e["name"] == "forward" for e in events), 3)

    def test_a_run_that_fails_says_why_once_and_in_its_document(self):
        made = run("--device", "cuda:1", *SMALL, "--steps", "40", "--lr", "1e5", "--json", str(self.folder / "run.json"))
        self.assertEqual(made.returncode, 1, made.stderr)
        self.assertEqual(made.stderr.count("the loss became"), 1, made.stderr)
        self.assertIn("the loss became", json.dumps(self.document()))

    def test_a_run_that_is_resumed_says_so_where_the_losses_will_differ(self):
        saves = ["--device", "cuda", "--ranks", "2", "--width", "64", "--checkpoint-dir", str(self.folder / "checkpoints")]
        self.assertEqual(run(*saves, "--batch", "4", "--steps", "1").returncode, 0)
        latest = self.folder / "checkpoints/latest"
        first = latest.read_text(encoding="utf-8")
        for words, said in [(["--batch", "4"], ""), (["--batch", "2"], ": the losses will differ"),
                            (["--batch", "4", "--bucket-cap-mb", "0.01"], "with another bucket layout; training continues")]:
            with self.subTest(words):
                latest.write_text(first, encoding="utf-8")
                made = run(*saves, *words, "--steps", "2", "--resume")
                self.assertEqual(made.returncode, 0, made.stderr)
                self.assertIn(said, made.stderr)
                self.assertEqual("will differ" in made.stderr, said != "", made.stderr)

    def test_flags_that_it_cannot_follow_are_refused(self):
        for words, named, code in [((*SMALL, "--steps", "1"), "--device cuda", 1),
                                   (("--device", "cuda", "--pace", "1GB/s,20us"), "--pace", 2)]:
            with self.subTest(words):
                made = run(*words)
                self.assertEqual(made.returncode, code, made.stderr)
                self.assertIn(named, made.stderr)

    def lesson(self, name, device="cuda"):
        return run("--lesson", name, "--device", device, "--lesson-folder", str(self.folder / name))

    def test_lessons_show_their_symptoms(self):
        for name, device, ranks in [("same-data", "cuda", 2), ("no-set-epoch", "cuda:0,1", 2), ("uneven-inputs", "cuda:1", 2),
                                    ("no-buckets", "cuda", 2), ("no-overlap", "cuda", 2), ("star", "cuda", 4)]:
            with self.subTest(name):
                made = self.lesson(name, device)
                self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
                self.assertIn("Look first: ", made.stdout)
                self.assertEqual(made.stdout.count(f"walked_train --device {device} --ranks {ranks}"), 2, made.stdout)
                config = json.loads((self.folder / name / "run0.json").read_text(encoding="utf-8"))["config"]
                self.assertEqual(config["device"], device)


if __name__ == "__main__":
    WALKED = sys.argv.pop()
    unittest.main()
