#!/usr/bin/env python3
"""cuda_program_test.py RONDO_RUN PROGRAM [CORRUPTING.SO]: the program with its ranks spread over processes, threads and devices; and that
it finds the wrong results of CORRUPTING.SO."""
import os
import subprocess
import sys

rondo_run, program, *corrupting = sys.argv[1:]


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False,
                          env={**os.environ, **more})
    return done.returncode, done.stdout, f"{' '.join(command)} gave {done.returncode}:\n{done.stdout}"


for processes, threads, devices in ((1, 1, 1), (1, 3, 1), (1, 1, 3), (1, 2, 2), (2, 1, 1), (3, 1, 1), (2, 1, 2), (2, 2, 2)):
    start = [rondo_run, "-n", str(processes), "--timeout", "120", "--"] if processes > 1 else []
    status, said, report = run([*start, program, str(threads), str(devices)])
    if status != 0 or said.count("all right") != processes or "cannot run here: double(int*)" not in said:
        sys.exit(report)
if corrupting:
    status, said, report = run([program, "2", "1"], LD_PRELOAD=corrupting[0])
    if status != 3 or "all_reduce of 63: rank 1 has 1 wrong elements" not in said or "all_gather" in said:
        sys.exit("the wrong results are not found: " + report)
print("all right")
