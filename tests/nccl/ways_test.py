#!/usr/bin/env python3
"""ways_test.py RONDO_RUN PROGRAM [RANKS...]: the program with so many ranks (1 2 3 4 5 7 by default) in every way of world.h."""
import subprocess
import sys

rondo_run, program, *ranks = sys.argv[1:]
for n in ranks or ("1", "2", "3", "4", "5", "7"):
    for command in ([rondo_run, "-n", n, "--timeout", "120", "--", program], [program, "threads", n], [program, "one", n]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False)
        wanted = int(n) if command[0] == rondo_run else 1
        if done.returncode != 0 or done.stdout.count("all right") != wanted:
            sys.exit(f"{' '.join(command)} gave {done.returncode}:\n{done.stdout}")
        if "[warning]" in done.stdout:
            sys.exit(f"{' '.join(command)} warns:\n{done.stdout}")
print("all ways are right")
