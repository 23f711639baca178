#!/usr/bin/env python3
"""nccl_tests_program_test.py SCRIPTS/NCCL-TESTS CORRUPTING.SO: builds the nccl-tests of the checkout that NCCL_TESTS_HOME names for host
memory, runs each program with its ranks in threads, in one thread and, with Open MPI, in processes, and lets them verify every result; and
they find those that CORRUPTING.SO makes wrong. Skipped without a checkout, nvcc or nccl.h."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

script, corrupting = sys.argv[1:]
checkout = os.environ.get("NCCL_TESTS_HOME")
if not checkout:
    print("skipped: NCCL_TESTS_HOME names no checkout of github.com/NVIDIA/nccl-tests")
    sys.exit(77)
folder = Path(script).resolve().parent.parent / "build/nccl-tests-host"
environment = {**os.environ, "RONDO_NCCL_HOST": "1"}
MPI_HOME = Path("/usr/lib/x86_64-linux-gnu/openmpi")  # Debian's
mpirun = shutil.which("mpirun.openmpi") if (MPI_HOME / "include/mpi.h").exists() else None
PROGRAMS = ("all_reduce all_gather reduce_scatter broadcast reduce alltoall alltoallv sendrecv gather scatter hypercube").split()


def run(command, limit_s, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False,
                          env={**environment, **more})
    return done.returncode, done.stdout, f"{' '.join(map(str, command))} gave {done.returncode}:\n{done.stdout}"


def columns_of_wrong(said):
    """The two columns #wrong of each line of the table; N/A for what is not done in place."""
    return re.findall(r"^ +\d+ +\d+ +\w+ .* (\S+) +\S+ +\S+ +\S+ +(\S+)$", said, re.MULTILINE)


def verified(program, *flags, processes=0):
    start = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(processes)] if processes else []
    status, said, report = run([*start, folder / f"{program}_perf", "-n", "2", *flags], 300)
    table = columns_of_wrong(said)
    if status != 0 or not table or not set(table) <= {("0", "0"), ("0", "N/A")} or "Out of bounds values : 0 OK" not in said:
        sys.exit(report)


more = {"MPI": "1", "MPI_HOME": str(MPI_HOME)} if mpirun else {}
status, said, report = run([script, "--host", checkout], 3000, **more)
if status != 0 and "there is no " in said.splitlines()[-1]:
    print("skipped: " + said.splitlines()[-1])
    sys.exit(77)
if status != 0:
    sys.exit(report)
# What is refused, or built alone, leaves the other programs where they are.
for target, settings, words in (("nonsense", {}, "has no program 'nonsense'; it has: all_gather "),
                                ("reduce", {"MPI": "1", "MPI_HOME": "/nowhere"}, "MPI=1 needs MPI_HOME")):
    status, said, report = run([script, "--host", checkout, target], 100, **settings)
    if status == 0 or words not in said:
        sys.exit("not refused: " + report)
status, said, report = run([script, "--host", checkout, "reduce"], 1000, **more)
if status != 0:
    sys.exit(report)
for name in PROGRAMS:
    sizes = ("-b", "4", "-e", "1M", "-f", "64")
    if name == "hypercube":  # whose steps need each other's data, so they cannot be one group over several devices
        verified(name, *sizes, "-t", "4")
    else:
        verified(name, *sizes, "-t", "2")
        verified(name, *sizes, "-g", "3")
    if mpirun:
        verified(name, *sizes, "-t", "1", processes=2)
# Every type and operator; blocks of odd places; registered buffers and windows; communicators made by each thread; groups of groups.
verified("all_reduce", "-b", "4", "-e", "4K", "-f", "32", "-t", "3", "-d", "all", "-o", "all")
verified("reduce_scatter", "-b", "64", "-e", "4K", "-f", "32", "-g", "3", "-d", "all", "-o", "all")
verified("all_reduce", "-b", "4", "-e", "1M", "-f", "64", "-t", "2", "-u", "1", "-R", "1", "-p", "1")
verified("all_gather", "-b", "4", "-e", "1M", "-f", "64", "-t", "2", "-g", "2", "-m", "3", "-R", "2")
verified("reduce", "-b", "4", "-e", "64K", "-f", "64", "-t", "3", "-r", "-1", "-z", "1")

status, said, report = run([folder / "all_reduce_perf", "-b", "8", "-e", "8K", "-f", "16", "-t", "2"], 100, LD_PRELOAD=corrupting)
if status == 0 or set(columns_of_wrong(said)) != {("2", "2")}:
    sys.exit("the wrong results are not found: " + report)
status, said, report = run([folder / "all_reduce_perf", "-b", "8", "-e", "8", "-t", "2", "-G", "1"], 100)
if status == 0 or "not supported by the stand-in" not in said:
    sys.exit("a captured graph is not refused: " + report)
print(f"verified: {', '.join(PROGRAMS)}; with MPI: {bool(mpirun)}")
