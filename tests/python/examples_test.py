#!/usr/bin/env python3
"""examples_test.py BIN PACKAGE: the programs of python/examples, as their users start them, with the module of the folder PACKAGE. What
they print is compared with itself; times are not judged."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "python/examples"


def run(*command, **more):
    environment = {**os.environ, **more, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=120, check=False)


class Examples(unittest.TestCase):
    def lines(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def test_numpy_allreduce(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                heading, *rows = self.lines(run(f"{BIN}/rondo-run", "-n", ranks, "--no-prefix", "--timeout", 100, "--", sys.executable,
                                                EXAMPLES / "numpy_allreduce.py", "--min-bytes", 4096, "--max-bytes", "64K", "--repeat", 3))
                self.assertEqual(heading.split(), ["bytes", "memory", "calls", "op", "time", "(us)", "algbw", "busbw"])
                self.assertEqual([int(row.split()[0]) for row in rows], [4096] * 4 + [16384] * 4 + [65536] * 4)
                for row in rows:
                    nbytes, _, _, _, took, algbw, busbw = row.split()
                    if float(took) >= 1:  # else its two decimals are too few
                        self.assertAlmostEqual(float(algbw), int(nbytes) / float(took) / 1000, delta=0.01 * float(algbw) + 0.01)
                    self.assertAlmostEqual(float(busbw), float(algbw) * 2 * (ranks - 1) / ranks, delta=0.02)

    def test_mpi4py_ring(self):
        mpirun = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
        if not mpirun:
            self.skipTest("no mpirun here")
        with tempfile.TemporaryDirectory() as own:  # Open MPI 4 fails where two jobs make their common folder at the same moment
            def under_mpirun(ranks, *program):
                return run(mpirun, "--oversubscribe", "--bind-to", "none", "-n", ranks, sys.executable, *program, TMPDIR=own)

            probe = under_mpirun(1, "-c", "from mpi4py import MPI")
            if probe.returncode != 0:
                self.skipTest(f"no mpi4py that works with {mpirun}: {probe.stderr}")
            for ranks in (1, 2, 3):
                with self.subTest(ranks=ranks):
                    rows = self.lines(under_mpirun(ranks, EXAMPLES / "mpi4py_ring.py", "--count", 1000, "--repeat", 3))
                    self.assertEqual([row.split(":")[0] for row in rows], ["ring", "all_reduce"])
                    for row in rows:
                        self.assertIn(f": 8000 bytes on {ranks} ranks, the same sums; mpi4py ", row)
                        self.assertRegex(row, r"mpi4py \d+\.\d\d us, rondo \d+\.\d\d us, \d+\.\d\d times as fast$")


if __name__ == "__main__":
    BIN, PACKAGE = (os.path.abspath(path) for path in sys.argv[1:3])
    del sys.argv[1:3]
    unittest.main()
