#!/usr/bin/env python3
"""ways_test.py RONDO_RUN PROGRAM [RANKS...]: the program with so many ranks (1 2 3 4 5 7 by default) as processes, as threads and in one
thread (world.h), and with ranks spread over processes, threads and a thread's ranks."""
import subprocess
import sys

rondo_run, program, *ranks = sys.argv[1:]
launched, alone = [rondo_run, "--timeout", "120", "-n"], []
ways = [way for n in map(int, ranks or (1, 2, 3, 4, 5, 7)) for way in ((launched, n, 1, 1), (alone, 1, n, 1), (alone, 1, 1, n))]
for start, processes, threads, each in [*ways, (alone, 1, 2, 2), (launched, 2, 1, 2), (launched, 2, 2, 1)]:
    command = [*(start and [*start, str(processes), "--"]), program, str(threads), str(each)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False)
    if done.returncode != 0 or done.stdout.count("all right") != processes:
        sys.exit(f"{' '.join(command)} gave {done.returncode}:\n{done.stdout}")
    if "[warning]" in done.stdout:
        sys.exit(f"{' '.join(command)} warns:\n{done.stdout}")
print("all ways are right")
