#!/usr/bin/env python3
"""lessons_test.py RONDO_TRAIN RONDO_RUN: every lesson through the program: the symptom shows, the commands can be repeated, and
TROUBLESHOOTING.md has a section for each. And the documents name only flags that exist."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

TRAINER = pathlib.Path(__file__).resolve().parents[2] / "trainer"
sys.path.insert(0, str(TRAINER / "lessons"))
sys.dont_write_bytecode = True
from lessons import LESSONS, Run  # noqa: E402

NAMES = ["same-data", "no-set-epoch", "uneven-inputs", "no-buckets", "no-overlap", "straggler", "local-batch-norm",
         "wrong-learning-rate", "star"]
TROUBLESHOOTING = (TRAINER / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in LAUNCHER}


def run(*words):
    return subprocess.run(words, env=ENVIRONMENT, cwd=TRAINER, capture_output=True, encoding="utf-8", timeout=240, check=False)


def flags_in(text):
    """Every --flag; no rule of a table, nor the end of an option that another is described by."""
    return set(re.findall(r"(?<![a-z-])--[a-z][a-z-]*", text))


def section(document, heading):
    """What stands between this heading and the next of the same kind."""
    return document.partition(f"\n{heading}\n")[2].partition("\n## ")[0]


class LessonsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def commands_of(self, output):
        return [line.strip() for line in output.splitlines() if line.startswith("  ") and "rondo-train --" in line]

    def test_the_program_lists_nine_lessons(self):
        for words in (["--lesson"], ["--lesson", "list"]):
            made = run(TRAIN, *words)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertEqual([line.split()[0] for line in made.stdout.splitlines()], NAMES)

    def test_an_unknown_lesson_lists_all_with_what_they_break(self):
        made = run(TRAIN, "--lesson", "patience")
        self.assertEqual(made.returncode, 1)
        self.assertIn("'patience' is unknown", made.stderr)
        self.assertEqual([line.split()[0] for line in made.stderr.splitlines()[1:]], NAMES)

    def test_every_lesson_shows_its_symptom_and_says_what_to_look_at_first_and_where_to_read_on(self):
        for name in NAMES:
            with self.subTest(name):
                made = run(TRAIN, "--lesson", name, "--lesson-folder", f"{self.folder}/{name}")
                self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
                self.assertIn("Look first: ", made.stdout)
                self.assertTrue(all(len(line) < 80 for line in made.stdout.splitlines()
                                    if self.folder not in line and not line.startswith("More: ")), made.stdout)
                self.check_page(name)
                self.assertIn(f"section '{name}'", made.stdout)
                self.assertIn(f"--lesson {name}", section(TROUBLESHOOTING, f"## {name}"))
                commands = self.commands_of(made.stdout)
                self.assertGreaterEqual(len(commands), 2)
                for i in range(len(commands)):
                    self.assertTrue(os.path.getsize(f"{self.folder}/{name}/run{i}.json"))

    def check_page(self, name):
        """What the page says that rondo prints, it did print, into a file that stayed."""
        said = section(TROUBLESHOOTING, f"## {name}").partition("**rondo prints**")[2].partition("\n- **")[0]
        phrases = [" ".join(phrase.split()) for phrase in re.findall(r"`([^`]*)`", said)]
        files = [*pathlib.Path(self.folder, name).glob("run*.err"), *pathlib.Path(self.folder, name).glob("run*.json")]
        printed = "".join(file.read_text(encoding="utf-8") for file in files)
        self.assertTrue(phrases)
        for phrase in phrases:
            self.assertIn(phrase, printed)

    def test_a_lesson_fails_where_its_symptom_does_not_show(self):
        healthy = pathlib.Path(self.folder, "healthy")  # as if the program could not be broken
        healthy.write_text(f"""#!/usr/bin/env python3
import os, sys
words = sys.argv[1:]
if "--break" in words:
    del words[words.index("--break"):words.index("--break") + 2]
os.execv({TRAIN!r}, [{TRAIN!r}, *words])
""", encoding="utf-8")
        healthy.chmod(0o755)
        made = run(sys.executable, "-B", str(TRAINER / "lessons/lesson.py"), "same-data", "--program", str(healthy), "--folder",
                   self.folder)
        self.assertNotEqual(made.returncode, 0, made.stdout)
        self.assertIn("did not show", made.stderr)

    def test_a_lesson_whose_healthy_run_fails_says_why_and_ends(self):
        words = ["straggler", "--device", "cuda:99"]  # there is no such device
        made = run(sys.executable, "-B", str(TRAINER / "lessons/lesson.py"), *words, "--program", TRAIN, "--folder", self.folder)
        self.assertEqual(made.returncode, 1)
        self.assertRegex(made.stderr, r"^lesson: the healthy run failed: .*(CUDA|GPU|device)")
        self.assertEqual(len(self.commands_of(made.stdout)), 1)
        self.assertNotIn("|", made.stdout)  # no table

    def test_the_error_of_a_run_is_the_programs_or_else_its_last_line(self):
        for errors, said in [("[0] rondo-train: no GPU\n[1] rondo-run: ended\n", "no GPU"),
                             ("killed\nout of memory\n\n", "out of memory"), ("", "it says nothing")]:
            self.assertEqual(Run("", False, errors, {}, {}).error(), said)

    def test_a_lesson_says_so_where_the_machine_was_too_busy_to_show_its_times(self):
        def made(exposed_ms):
            return Run("", True, "", {"summary": {"exposed_comm_ms": exposed_ms}}, {})

        judging = [lesson.name for lesson in LESSONS if lesson.not_judged([made(4), made(2)])]
        self.assertEqual(judging, ["no-buckets", "no-overlap", "star"])
        self.assertFalse(any(lesson.not_judged([made(2), made(4)]) for lesson in LESSONS))

    def test_a_command_can_be_repeated_as_it_is_printed(self):
        kept = f"{self.folder}/new/folder"
        lesson = run(TRAIN, "--lesson", "uneven-inputs", "--lesson-folder", kept)
        self.assertEqual(lesson.returncode, 0, lesson.stdout + lesson.stderr)
        self.assertIn(f"stay in {kept}", lesson.stdout)
        healthy, broken = [run(TRAIN, *shlex.split(command)[1:]) for command in self.commands_of(lesson.stdout)]
        self.assertEqual(healthy.returncode, 0, healthy.stderr)
        self.assertNotEqual(broken.returncode, 0)
        self.assertIn("uneven inputs", broken.stderr)

    def test_an_unknown_lesson_one_with_settings_and_one_among_ranks_are_refused(self):
        for words, named in [(["--lesson", "patience"], "straggler"),
                             (["--lesson", "star", "--ranks", "8"], "--ranks"),
                             (["--lesson-folder", self.folder], "--lesson"),
                             (["--lesson", "star", "--lesson-folder", "/proc/none"], "/proc/none"),
                             (["--break", "everything"], "same-data")]:
            with self.subTest(words):
                made = run(TRAIN, *words)
                self.assertNotEqual(made.returncode, 0)
                self.assertIn(named, made.stderr)
        nested = run(LAUNCH, "-n", "2", "--", TRAIN, "--lesson", "star")
        self.assertNotEqual(nested.returncode, 0)
        self.assertIn("without a launcher", nested.stderr)

    def steps(self, *words):
        file = pathlib.Path(self.folder) / "run.json"
        made = run(TRAIN, "--ranks", "2", "--width", "64", "--log-every", "0", "--json", str(file), *words)
        self.assertEqual(made.returncode, 0, made.stderr)
        return json.loads(file.read_text(encoding="utf-8"))["steps"]

    def losses(self, *words):
        return [step["loss"] for step in self.steps(*words)]

    def test_a_sum_of_gradients_is_as_many_times_their_mean_as_there_are_ranks(self):
        common = ["--batch", "8", "--steps", "6"]
        norms = [self.steps(*common, "--clip", "1000000", *words)[0]["gradient_norm"] for words in ([], ["--break", "sum"])]
        self.assertEqual(norms[1], 2 * norms[0])
        # With SGD that is twice the rate.
        self.assertEqual(self.losses(*common, "--lr", "0.03125", "--break", "sum"), self.losses(*common, "--lr", "0.0625"))
        # AdamW hardly notices, though it would twice the rate.
        adamw = [*common, "--optimizer", "adamw", "--lr", "0.01"]
        mean, summed, doubled = self.losses(*adamw), self.losses(*adamw, "--break", "sum"), self.losses(*adamw[:-1], "0.02")
        self.assertNotEqual(mean, summed)
        self.assertLess(abs(summed[-1] - mean[-1]), abs(doubled[-1] - mean[-1]) / 100)

    def test_unshuffled_data_comes_in_its_own_order(self):
        data = pathlib.Path(self.folder) / "sorted"
        data.write_bytes(b"a" * 1000 + b"0123456789" * 100)
        losses = self.losses("--data", str(data), "--batch", "16", "--steps", "60", "--lr", "0.1", "--break", "unshuffled")
        self.assertLess(losses[25], 0.5)  # a's only
        self.assertGreater(max(losses[28:40]), 3)  # where the digits begin

    def test_a_rank_that_reads_the_loss_alone_is_named_with_both_calls(self):
        made = run(TRAIN, "--ranks", "2", "--width", "64", "--steps", "8", "--log-every", "0", "--break", "lone-read")
        self.assertNotEqual(made.returncode, 0)
        for call in ("rank 0 called all_reduce(double, sum, count 1)", "rank 1 called all_reduce(double, sum, count 2)"):
            self.assertIn(call, made.stderr)  # in the order of the rank that found it

    def test_the_documents_name_flags_that_exist_and_the_knobs_table_all_of_its_group(self):
        there = flags_in(run(TRAIN, "--help").stdout)
        self.assertIn("--bucket-cap-mb", there)
        named = flags_in(section((TRAINER / "README.md").read_text(encoding="utf-8"), "## Knobs"))
        self.assertGreater(len(named), 20)
        self.assertLessEqual(named, there)
        self.assertLessEqual(flags_in(TROUBLESHOOTING), there | {"--no-prefix"})
        self.assertLessEqual({"--ranks", "--strategy", "--compute-threads", "--bucket-cap-mb", "--no-overlap", "--average-over", "--join",
                              "--no-broadcast-buffers", "--compress", "--tied-rows", "--reproducible", "--algorithm", "--pace", "--accum",
                              "--sampler-tail", "--drop-last", "--sync-batch-norm", "--no-split-tied", "--layer-drop", "--break",
                              "--lesson"}, named)


if __name__ == "__main__":
    LAUNCH, TRAIN = sys.argv.pop(), sys.argv.pop()
    unittest.main()
