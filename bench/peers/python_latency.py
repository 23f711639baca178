#!/usr/bin/env python3
"""all_reduce called from Python beside rondo-perf, which calls it from C++, on two pinned ranks, in interleaved rounds.

    bench/peers/python_latency.py [--rounds 11] [--bytes 8] [--build build/release] [--python PYTHON]

Prints a table in Markdown: the median over the rounds, the smallest, and the median ratio to rondo-perf within a round. The module is
the build folder's (-DRONDO_PYTHON=ON), and PYTHON its interpreter (scripts/python-env). Leave the machine alone meanwhile.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALLS, BATCHES = 200, 50
PERF = "rondo-perf"


def measure_rank(nbytes):
    """What a rank does: rank 0 prints the microseconds of each form of the call, as the median of short batches."""
    import numpy

    import rondo

    with rondo.Communicator() as c:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[c.rank % len(cores)]})
        x, y = numpy.ones(nbytes // 4, "float32"), numpy.empty(nbytes // 4, "float32")
        forms = {"c.all_reduce(x, y)": lambda: c.all_reduce(x, y), "c.all_reduce(x)": lambda: c.all_reduce(x)}
        took = {name: [] for name in forms}
        for _ in range(BATCHES):
            for name, call in forms.items():
                c.barrier()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                took[name].append((time.perf_counter() - start) / CALLS * 1e6)
        if c.rank == 0:
            print(json.dumps({name: statistics.median(times) for name, times in took.items()}))


def output_of(command, **environment):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def one_round(options):
    """Microseconds of each, by name."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "perf.json")
        output_of([options.build / "bin/rondo-perf", "all_reduce", "--ranks", 2, "-b", options.bytes, "-e", options.bytes, "-n",
                   CALLS * BATCHES, "--json", result])
        perf = json.loads(result.read_text())["results"][0]["out_of_place"]["time"]
    module = output_of([options.build / "bin/rondo-run", "-n", 2, "--no-prefix", "--", options.python, __file__, "--bytes", options.bytes,
                        "--as-rank"], PYTHONPATH=str(options.build / "python/package"))
    return {PERF: perf, **json.loads(module)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        return measure_rank(options.bytes)
    rounds = [one_round(options) for _ in range(options.rounds)]
    print(f"| {options.bytes} bytes | median (us) | smallest (us) | times as long as {PERF} |\n|---|---:|---:|---:|")
    for name in rounds[0]:
        times = [each[name] for each in rounds]
        ratio = statistics.median(each[name] / each[PERF] for each in rounds)
        print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
