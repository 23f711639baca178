#!/usr/bin/env python3
"""torch_test.py BIN PACKAGE [Backend.TEST]: the backend rondo of torch.distributed. torch_ranks.py is what a rank does. Run it with a Python that has
torch 2.15."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import torch_python

RANKS = pathlib.Path(__file__).resolve().parent / "torch_ranks.py"


class Backend(unittest.TestCase):
    def run_with(self, launcher, *cases, script=(RANKS,), **variables):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **variables}
        command = [str(word) for word in (*launcher, *script, *cases)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    def ranks(self, ranks, *cases, **variables):
        done = self.run_with((f"{BIN}/rondo-run", "-n", ranks, "--timeout", 240, "--", sys.executable), *cases, **variables)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(": ok"), ranks * len(cases))

    def test_one_rank(self):
        self.ranks(1, "reductions", "moves", "messages", "works", "future_values", "outputs_without_wait", "futures", "groups", "ends",
                   "library_memory", "bad_input", "strided", "profiled", "compiled")

    def test_two_ranks_which_may_fail(self):
        self.ranks(2, "reductions", "data_parallel", "sharded", "bad_input", "forked", "disagreement", "only_sends", "late", "late_for_group",
                   "late_for_new_group", "reductions")

    def test_signals(self):
        self.ranks(2, "interrupted", "signalled", "reductions")

    def test_ends_while_callbacks_are_pending(self):
        """They run, before the interpreter ends: a thread that it ended in C++ would abort the process."""
        program = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("rondo")
if dist.get_rank() == 1: time.sleep(0.3)
for _ in range(8):
    dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda _: (time.sleep(0.1), sys.stdout.write("called\\n")))
"""
        launcher = (f"{BIN}/rondo-run", "-n", 2, "--timeout", 240, "--", sys.executable, "-c", program)
        for _ in range(2):
            done = self.run_with(launcher, script=())
            self.assertEqual((done.returncode, done.stdout.count("called")), (0, 16), done.stdout + done.stderr)

    def test_three_ranks(self):
        self.ranks(3, "reductions", "moves", "messages", "works", "future_values", "outputs_without_wait", "futures", "numbered", "strided", "profiled", "concurrent", "released", "no_threads", "threads", "groups", "ends",
                   "layouts", "reductions")

    def test_three_ranks_that_train(self):
        self.ranks(3, "data_parallel", "buckets", "sharded", "checkpointed", "library_memory")

    def test_logs_name_groups(self):
        done = self.run_with((f"{BIN}/rondo-run", "-n", 4, "--timeout", 240, "--", sys.executable), "named", RONDO_LOG="info")
        self.assertEqual(done.stdout.count("named: ok"), 4, done.stdout + done.stderr)
        for words, times in ((r"world: rank \d of 4", 4), (r"mesh_dp-\d: rank \d of 2", 4), (r"mesh_tp-\d: rank \d of 2", 4),
                             (r"group-\d: rank \d of 3", 3), (r"group-[0-9a-f]{8}: rank \d of 2", 2), (r"_a_b__-\d: rank \d of 4", 4),
                             (r"half0-[0-9a-f]{8}: rank \d of 2", 2), (r"half2-[0-9a-f]{8}: rank \d of 2", 2),
                             (r"turned1-[0-9a-f]{8}: rank \d of 3", 3), (r"group-\d: rank \d of 4", 4), (r"d{40}-\d: rank \d of 4", 4)):
            self.assertEqual(len(re.findall(rf"[ \]]{words}: ", done.stdout + done.stderr)), times, words + done.stdout + done.stderr)

    def test_no_library_memory(self):
        self.ranks(2, "without_library_memory", RONDO_ARENA_BYTES="0")

    def test_torchs_own_checks(self):
        self.ranks(2, "reductions", "moves", "numbered", "aborted", TORCH_DISTRIBUTED_DEBUG="DETAIL")

    def test_a_death_is_an_error_of_the_others(self):
        done = self.run_with((f"{BIN}/rondo-run", "-n", 3, "--timeout", 240, "--", sys.executable), "death_in_backward")
        self.assertEqual(done.stdout.count("death_in_backward: ok"), 2, done.stdout + done.stderr)

    def test_shrinks(self):
        launcher = (f"{BIN}/rondo-run", "-n", 4, "--timeout", 240, "--elastic", "--", sys.executable)
        for cases, ended in ((("shrinks_after_failure",), 3), (("shrinks_subgroup", "shrinks_waiting"), 4), (("shrinks_without_the_living",), 4),
                             (("shrinks_differently",), 4), (("shrinks_after_deaths",), 1), (("shrinks_without_store",), 3)):
            done = self.run_with(launcher, *cases, RONDO_BOOTSTRAP_TIMEOUT="6" if cases[-1] in ("shrinks_waiting", "shrinks_differently") else "60")
            self.assertEqual(done.stdout.count(f"{cases[-1]}: ok"), ended, done.stdout + done.stderr)

    def test_torchrun_starts_again(self):
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
        done = self.run_with(launcher, "restarted")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("restarted: ok"), 2)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpirun(self):
        launcher = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, sys.executable)
        done = self.run_with(launcher, "--import", "reductions")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("reductions: ok"), 2)


if __name__ == "__main__":
    BIN, PACKAGE = sys.argv[1:3]
    if not torch_python.has_torch():
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
