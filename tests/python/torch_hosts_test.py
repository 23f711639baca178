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

import torch_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/harness"))
from hosts import Hosts  # noqa: E402

RANKS = ROOT / "tests/python/torch_ranks.py"
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "RONDO_", "OMPI_", "PM", "PALS_", "SLURM", "TORCHELASTIC")


def start(words, **more):
    environment = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHERS)}
    environment |= {"PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "UCX_TLS": "tcp", **more}
    return subprocess.Popen([str(word) for word in words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class TwoHosts(unittest.TestCase):
    def torchrun(self, host, ranks, program, *options, **more):
        return start(HOSTS.on(host, [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(host),
                                     "--nproc-per-node", str(ranks), "--master-addr", HOSTS.address(0), "--master-port", "29500",
                                     *options, *program]), **more)

    def end(self, *jobs):
        said = []
        try:
            said += [job.communicate(timeout=400)[0] for job in jobs]
        finally:
            for job in jobs:
                job.kill()
        return "\n".join(said), [job.returncode for job in jobs]

    def passes(self, ranks, cases, *jobs):
        said, codes = self.end(*jobs)
        self.assertEqual((codes, said.count(": ok")), ([0] * len(jobs), ranks * len(cases)), said)

    def test_torchrun(self):
        cases = ("reductions", "moves", "messages", "works", "futures", "groups", "data_parallel", "sharded", "buckets")
        for each, cases in ((1, cases[:1]), (2, cases)):
            with self.subTest(ranks_on_each=each):
                self.passes(2 * each, cases, *(self.torchrun(host, each, (str(RANKS), *cases)) for host in (0, 1)))

    def test_torchrun_starts_a_program_that_is_not_python(self):
        program = (f"{BIN}/rondo-perf", "all_reduce", "-b", "8", "-e", "8K", "-n", "2", "-w", "1")
        said, codes = self.end(*(self.torchrun(host, 2, program, "--no-python", RONDO_SECRET="s3cret") for host in (0, 1)))
        self.assertEqual(codes, [0, 0], said)
        self.assertIn("# Out of bounds values : 0 OK", said)
        said, codes = self.end(*(self.torchrun(host, 2, program, "--no-python") for host in (0, 1)))
        self.assertNotIn(0, codes)
        self.assertIn("RONDO_SECRET_FILE", said)

    def test_rondo_run(self):
        cases = ("reductions",)
        self.passes(3, cases, start((f"{BIN}/rondo-run", "--hosts", "h0:2,h1", "--agent", " ".join(HOSTS.agent()), "--timeout", 300, "--",
                                     sys.executable, RANKS, *cases)))

    def test_mpirun(self):
        mpirun = shutil.which("mpirun.openmpi")
        if not mpirun:
            self.skipTest("no mpirun of Open MPI here")
        cases = ("reductions", "data_parallel")
        with tempfile.TemporaryDirectory() as own:
            agent = pathlib.Path(own, "agent")
            agent.write_text(f'#!/bin/sh\nexec {" ".join(HOSTS.agent())} "$@"\n')
            agent.chmod(0o700)
            passed = [word for name in ("PYTHONPATH", "UCX_TLS", "OMP_NUM_THREADS", "RONDO_SECRET", "MASTER_ADDR") for word in ("-x", name)]
            self.passes(3, cases, start(HOSTS.on(0, [
                mpirun, "--allow-run-as-root", "--mca", "plm_rsh_agent", str(agent), "--oversubscribe", "--bind-to", "none", *passed,
                "--host", "h0:2,h1:1", sys.executable, str(RANKS), "--import", *cases]), TMPDIR=own, RONDO_SECRET="s3cret", MASTER_ADDR="h0"))


if __name__ == "__main__":
    BIN, PACKAGE = (os.path.abspath(path) for path in sys.argv[1:3])
    if not torch_python.has_torch():
        sys.exit(77)
    with Hosts(2) as HOSTS:
        done = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False)
    sys.exit(not done.result.wasSuccessful())
