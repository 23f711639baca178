#!/usr/bin/env python3
"""torch_hosts_test.py BIN PACKAGE: the backend rondo of torch.distributed on two hosts, under a torchrun on each, rondo-run and mpirun.
torch_ranks.py is what a rank does. No secret is given where the ranks meet by the process group's store: it passes one on."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "harness"))
from fork_server import ForkServer  # noqa: E402
from hosts import Hosts  # noqa: E402

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "RONDO_", "OMPI_", "PM", "PALS_", "SLURM", "TORCHELASTIC")


def start(*words, **more):
    return subprocess.Popen([str(word) for word in words], env={**os.environ, **more}, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


class TwoHosts(unittest.TestCase):
    def end(self, ranks, cases, *jobs):
        """Of jobs that shall succeed: what they print."""
        said = ""
        try:
            for job in jobs:
                said += job.communicate(timeout=400)[0]
        finally:
            for job in jobs:
                job.kill()
        self.assertEqual(([job.returncode for job in jobs], said.count(": ok")), ([0] * len(jobs), ranks * len(cases)), said)
        return said

    def test_torchrun(self):
        """Of a program of torch, and of another one, which has to be given a secret."""
        cases = ("reductions", "moves", "messages", "works", "futures", "groups", "data_parallel", "sharded", "buckets")
        script = f'"$@" && RONDO_SECRET=s3cret exec {BIN}/rondo-perf all_reduce -b 8 -e 8K -n 2 -w 1'
        said = self.end(4, cases, *(
            start(*HOSTS.on(host, [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(host),
                                   "--nproc-per-node", "2", "--master-addr", HOSTS.address(0), "--master-port", "29500",
                                   "--no-python", "sh", "-c", script, "sh", *RANKS.words, *cases])) for host in (0, 1)))
        self.assertIn("# Out of bounds values : 0 OK", said)

    def test_rondo_run(self):
        for hosts, ranks in (("h0,h1", 2), ("h0:2,h1", 3)):
            with self.subTest(hosts=hosts):
                self.end(ranks, ["reductions"], start(f"{BIN}/rondo-run", "--hosts", hosts, "--agent", " ".join(HOSTS.agent()),
                                                      "--timeout", 300, "--", *RANKS.words, "reductions"))

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "no mpirun of Open MPI here")
    def test_mpirun(self):
        cases = ("reductions", "data_parallel")
        passed = [word for name in ("UCX_TLS", "OMP_NUM_THREADS", "RONDO_SECRET", "MASTER_ADDR") for word in ("-x", name)]
        with tempfile.TemporaryDirectory() as own:
            self.end(3, cases, start(*HOSTS.on(0, [
                "mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", HOSTS.agent_file(own), "--oversubscribe",
                "--bind-to", "none", *passed, "--host", "h0:2,h1:1", *RANKS.words, "--import", *cases]),
                TMPDIR=own, RONDO_SECRET="s3cret", MASTER_ADDR="h0"))


if __name__ == "__main__":
    BIN, PACKAGE = (os.path.abspath(path) for path in sys.argv[1:3])
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        del os.environ[name]
    os.environ |= {"PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "UCX_TLS": "tcp"}
    with ForkServer(str(HERE / "torch_ranks.py")) as RANKS, Hosts(2) as HOSTS:
        done = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False)
    sys.exit(not done.result.wasSuccessful())
