#!/usr/bin/env python3
"""torch_test.py BIN PACKAGE [TEST...]: the backend rondo of torch.distributed. torch_ranks.py is what a rank does. Run it with a Python
that has torch 2.15."""
import concurrent.futures
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "harness"))
from fork_server import ForkServer  # noqa: E402

AT_ONCE = 3


class Backend(unittest.TestCase):
    def run_with(self, *words, **variables):
        return subprocess.run([str(word) for word in words], env={**os.environ, **variables}, capture_output=True, text=True,
                              timeout=300, check=False)

    def ranks(self, ranks, *cases, ended=None, elastic=True, **variables):
        """With rondo-run. `ended`: how many ranks come to the end of the last case if not all do; then no exit code is judged, and
        by default the job is elastic."""
        done = self.run_with(f"{BIN}/rondo-run", "-n", ranks, "--timeout", 240, *["--elastic"] * (elastic and ended is not None), "--",
                             *RANKS.words, *cases, **variables)
        if ended is None:
            self.assertEqual((done.returncode, done.stdout.count(": ok")), (0, ranks * len(cases)), done.stdout + done.stderr)
        else:
            self.assertEqual(done.stdout.count(f"{cases[-1]}: ok"), ended, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_one_rank(self):
        self.ranks(1, "reductions", "moves", "messages", "works", "future_values", "outputs_without_wait", "futures", "groups", "ends",
                   "library_memory", "bad_input", "strided", "profiled", "compiled")

    def test_two_ranks_which_may_fail(self):
        self.ranks(2, "reductions", "data_parallel", "sharded", "bad_input", "forked", "disagreement", "only_sends", "late",
                   "late_for_group", "late_for_new_group", "reductions")

    def test_signals(self):
        self.ranks(2, "interrupted", "signalled", "reductions")

    def test_ends_while_callbacks_are_pending(self):
        for _ in range(2):
            done = self.run_with(f"{BIN}/rondo-run", "-n", 2, "--timeout", 240, "--", *RANKS.words, "ends_with_pending_callbacks")
            self.assertEqual((done.returncode, done.stdout.count("called")), (0, 16), done.stdout + done.stderr)

    def test_three_ranks(self):
        self.ranks(3, "reductions", "moves", "messages", "works", "future_values", "outputs_without_wait", "futures", "numbered",
                   "strided", "profiled", "concurrent", "released", "no_threads", "threads", "groups", "ends", "layouts",
                   "reductions")

    def test_three_ranks_that_train(self):
        self.ranks(3, "data_parallel", "buckets", "sharded", "checkpointed", "library_memory")

    def test_logs_name_groups(self):
        said = self.ranks(4, "named", RONDO_LOG="info")
        for words, times in ((r"world: rank \d of 4", 4), (r"mesh_dp-\d: rank \d of 2", 4), (r"mesh_tp-\d: rank \d of 2", 4),
                             (r"group-\d: rank \d of 3", 3), (r"group-[0-9a-f]{8}: rank \d of 2", 2), (r"_a_b__-\d: rank \d of 4", 4),
                             (r"half0-[0-9a-f]{8}: rank \d of 2", 2), (r"half2-[0-9a-f]{8}: rank \d of 2", 2),
                             (r"turned1-[0-9a-f]{8}: rank \d of 3", 3), (r"group-\d: rank \d of 4", 4), (r"d{40}-\d: rank \d of 4", 4)):
            self.assertEqual(len(re.findall(rf"[ \]]{words}: ", said)), times, words + said)

    def test_no_library_memory(self):
        self.ranks(2, "without_library_memory", RONDO_ARENA_BYTES="0")

    def test_torchs_own_checks(self):
        self.ranks(2, "reductions", "moves", "numbered", "aborted", TORCH_DISTRIBUTED_DEBUG="DETAIL")

    def test_a_death_is_an_error_of_the_others(self):
        self.ranks(3, "death_in_backward", ended=2, elastic=False)

    def test_shrinks_after_failure(self):
        self.ranks(4, "shrinks_after_failure", ended=3)

    def test_shrinks_waiting(self):
        self.ranks(4, "shrinks_subgroup", "shrinks_waiting", ended=4, RONDO_BOOTSTRAP_TIMEOUT="6")

    def test_shrinks_without_the_living(self):
        self.ranks(4, "shrinks_without_the_living", ended=4)

    def test_shrinks_differently(self):
        self.ranks(4, "shrinks_differently", ended=4, RONDO_BOOTSTRAP_TIMEOUT="6")

    def test_shrinks_after_deaths(self):
        self.ranks(4, "shrinks_after_deaths", ended=1)

    def test_shrinks_without_store(self):
        self.ranks(4, "shrinks_without_store", ended=3)

    def test_torchrun_starts_again(self):
        done = self.run_with(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1,
                             "--no-python", *RANKS.words, "restarted")
        self.assertEqual((done.returncode, done.stdout.count("restarted: ok")), (0, 2), done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpirun(self):
        """Without forks: a new interpreter finds the backend."""
        done = self.run_with("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, sys.executable, HERE / "torch_ranks.py",
                             "--import", "reductions")
        self.assertEqual((done.returncode, done.stdout.count("reductions: ok")), (0, 2), done.stdout + done.stderr)


def run(name):
    """Whether it passed; what it prints comes at once."""
    said = io.StringIO()
    result = unittest.TextTestRunner(said, verbosity=2).run(Backend(name))
    print(said.getvalue(), flush=True)
    return result.wasSuccessful()


if __name__ == "__main__":
    BIN, PACKAGE, *NAMES = sys.argv[1:]
    os.environ |= {"PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    with ForkServer(str(HERE / "torch_ranks.py")) as RANKS, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        passed = [*pool.map(run, NAMES or unittest.defaultTestLoader.getTestCaseNames(Backend))]
    sys.exit(not all(passed))
