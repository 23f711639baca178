#!/usr/bin/env python3
"""hosts_test.py BIN PACKAGE: the Python module on two hosts, by each way to meet. ranks.py is what a rank does."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/harness"))
from hosts import Hosts  # noqa: E402

RANKS = ROOT / "tests/python/ranks.py"
CASES = ("equal_blocks", "roots", "varying_blocks", "kinds_of_memory", "messages", "asynchronous", "finishes", "places")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "RONDO_", "OMPI_", "PM", "PALS_", "SLURM")
# A rank whose number and size are arguments; the id comes as a line of stdin, or is made and printed.
BY_ID = """
import sys, numpy as np, rondo
rank, size = int(sys.argv[1]), int(sys.argv[2])
text = rondo.make_unique_id() if rank == 0 else sys.stdin.readline().strip()
if rank == 0:
    print(text, flush=True)
with rondo.Communicator(rank, size, unique_id=text, bootstrap_timeout=60) as c:
    print(c.all_reduce(np.full(1000, rank + 1.0)).sum())
"""
BY_MPI4PY = """
import numpy as np, rondo
from mpi4py import MPI
with rondo.Communicator.from_mpi(MPI.COMM_WORLD) as c:
    print(f"sum {c.all_reduce(np.full(1000, c.rank + 1.0)).sum()}\\n", end="")  # one write: mpirun mixes those of ranks
"""


def start(words, **more):
    return subprocess.Popen([str(word) for word in words], env={**os.environ, **more}, text=True, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class TwoHosts(unittest.TestCase):
    def ends(self, process, code=0):
        """What it has printed."""
        try:
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        self.assertEqual(process.returncode, code, said)
        return said

    def test_rondo_run(self):
        said = self.ends(start((f"{BIN}/rondo-run", "--hosts", "h0:2,h1", "--agent", " ".join(HOSTS.agent()), "--timeout", 100, "--",
                                sys.executable, RANKS, *CASES)))
        self.assertEqual(said.count(": ok"), 3 * len(CASES), said)

    def by_hand(self, rank, *cases, **variables):
        return start(HOSTS.on(rank, [sys.executable, RANKS, *cases]), RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="h0",
                     MASTER_PORT="29500", **variables)

    def test_variables_by_hand(self):
        ranks = [self.by_hand(rank, *CASES, RONDO_SECRET="s3cret") for rank in range(2)]
        for rank in ranks:
            self.assertEqual(self.ends(rank).count(": ok"), len(CASES))

    def test_without_a_secret_the_error_says_what_to_set(self):
        said = self.ends(self.by_hand(1, "equal_blocks"), code=1)
        self.assertIn('MASTER_ADDR is "h0", which is not this host', said)
        self.assertIn("RONDO_SECRET_FILE", said)

    def test_an_id_alone(self):
        ranks = [start(HOSTS.on(rank // 2, [sys.executable, "-c", BY_ID, str(rank), "3"])) for rank in range(3)]
        made = ranks[0].stdout.readline()
        for rank in ranks[1:]:
            rank.stdin.write(made)
            rank.stdin.flush()
        for rank in ranks:
            self.assertIn("6000.0", self.ends(rank))

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "no mpirun of Open MPI here")
    def test_mpi4py(self):
        with tempfile.TemporaryDirectory() as own:
            probe = start(["mpirun.openmpi", "--allow-run-as-root", sys.executable, "-c", "from mpi4py import MPI"], TMPDIR=own)
            said, _ = probe.communicate(timeout=120)
            if probe.returncode != 0:
                self.skipTest(f"no mpi4py that works with Open MPI: {said}")
            said = self.ends(start(HOSTS.on(0, [
                "mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", HOSTS.agent_file(own), "--oversubscribe",
                "--bind-to", "none", "-x", "PYTHONPATH", "-x", "UCX_TLS", "--host", "h0:2,h1:1", sys.executable, "-c", BY_MPI4PY]),
                TMPDIR=own))
            self.assertEqual(said.count("sum 6000.0"), 3, said)


if __name__ == "__main__":
    BIN, PACKAGE = (os.path.abspath(path) for path in sys.argv[1:3])
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        del os.environ[name]
    os.environ |= {"PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "UCX_TLS": "tcp", "RONDO_TEST_TWO_HOSTS": "1"}
    with Hosts(2) as HOSTS:
        done = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False)
    sys.exit(not done.result.wasSuccessful())
