#!/usr/bin/env python3
"""own_tensors_test.py OWN_TENSORS RONDO_RUN RANKS...: the example that registers its own tensors follows one rank on each
number of ranks, though their batches differ in size; with PowerSGD it sends less, and its loss stays near the plain one's."""
import json
import subprocess
import sys

program, rondo_run, *numbers_of_ranks = sys.argv[1:]


def losses(ranks, *arguments):
    """The loss of each step, and the bytes that rank 0 sends in one."""
    done = subprocess.run([rondo_run, "-n", str(ranks), "--timeout", "100", "--", program, *arguments], capture_output=True,
                          text=True, timeout=120, check=False)
    if done.returncode != 0:
        sys.exit(f"{ranks} ranks {arguments} gave {done.returncode}:\n{done.stdout}{done.stderr}")
    lines = [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines()]
    return [line["loss"] for line in lines[:-1]], lines[-1]["bytes_sent_per_step"]


def require(condition, what):
    if not condition:
        sys.exit(what)


alone, _ = losses(1)
require(len(alone) == 300 and alone[-1] < alone[0] / 10, f"one rank does not learn: {alone[0]} to {alone[-1]}")
for n in map(int, numbers_of_ranks):
    plain, plain_bytes = losses(n)
    far = max(abs(a - b) / a for a, b in zip(alone, plain))
    require(far < 1e-3, f"{n} ranks are off one rank's loss by {far:.2g} of it")
    compressed, bytes_sent = losses(n, "powersgd")
    require(bytes_sent < plain_bytes / 3, f"{n} ranks send {bytes_sent} bytes a step with PowerSGD, {plain_bytes} without")
    require(compressed[-1] < 2 * plain[-1], f"{n} ranks end at {compressed[-1]} with PowerSGD, at {plain[-1]} without")
    mean = [sum(c[-50:]) / 50 for c in (plain, compressed)]
    print(f"{n} ranks: loss {mean[0]:.4g}, with PowerSGD {mean[1]:.4g}; {plain_bytes:.0f} and {bytes_sent:.0f} bytes a step")
