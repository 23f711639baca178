#!/usr/bin/env python3
"""torch_examples_test.py BIN PACKAGE: python/examples/ddp.py and fsdp.py as their users start them, by rondo-run and by torchrun."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

import torch_python

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "python/examples"


def lines_of(launcher, program, *arguments):
    """What two ranks print, sorted, without what torchrun says itself."""
    starts = {"rondo-run": (f"{BIN}/rondo-run", "-n", "2", "--no-prefix", "--timeout", "240", "--", sys.executable),
              "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")}
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*starts[launcher], str(EXAMPLES / program), *arguments], env=environment, capture_output=True, text=True,
                          timeout=300, check=False)
    if done.returncode != 0 and "gloo" not in arguments:  # Gloo's threads sometimes end a process that has done its work
        raise AssertionError(done.stdout + done.stderr)
    return sorted(re.findall(r"(?:step|rank) \d.*?(?=rank \d|step \d|$)", done.stdout, re.MULTILINE))  # lines of ranks can meet


def losses_of(lines):
    """In the order of the steps."""
    found = (re.fullmatch(r"step (\d+): loss ([\d.]+)", line) for line in lines)
    return [loss for _, loss in sorted((int(match[1]), float(match[2])) for match in found if match)]


class Examples(unittest.TestCase):
    def test_ddp_prints_the_same_on_gloo(self):
        on_gloo = lines_of("torchrun", "ddp.py", "gloo")
        self.assertEqual(on_gloo[:2], [f"rank {rank} of 2: the replicas are equal" for rank in range(2)])
        self.assertEqual(len(losses_of(on_gloo)), 4)
        for launcher in ("torchrun", "rondo-run"):
            self.assertEqual(lines_of(launcher, "ddp.py"), on_gloo)

    def test_fsdp_divides_the_parameters_and_learns(self):
        for launcher in ("torchrun", "rondo-run"):
            lines = lines_of(launcher, "fsdp.py")
            kept = [re.fullmatch(r"rank \d of 2 keeps (\d+) of (\d+) parameters", line) for line in lines[:2]]
            self.assertEqual(sum(int(match[1]) for match in kept), int(kept[0][2]))
            losses = losses_of(lines)
            self.assertEqual(len(losses), 5)
            self.assertLess(losses[-1], 0.3 * losses[0])


if __name__ == "__main__":
    if not torch_python.has_torch():
        sys.exit(77)
    BIN, PACKAGE = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1], verbosity=2)
