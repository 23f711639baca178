#!/usr/bin/env python3
"""Times all-reduces of numpy arrays: in plain and in library memory, one at a time and several in flight, sums and averages.

    rondo-run -n 2 -- python numpy_allreduce.py --max-bytes 32M

Bandwidths are those of nccl-tests: algbw = bytes / time, busbw = algbw * 2(N-1)/N, in GB/s (1e9 bytes per second).
"""
import argparse
import statistics
import time

import numpy as np

import rondo

IN_FLIGHT = 4


def size(text):
    """32M as 33554432."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text if factor == 1 else text[:-1]) * factor


def plain(count):
    """An array in numpy's own memory: ranks copy it through shared memory, or by a system call."""
    return np.empty(count, np.float32)


def library(count):
    """An array in library memory, which the ranks read in place."""
    return rondo.empty(count, np.float32)


def one_at_a_time(c, x, y, op):
    for each, out in zip(x, y):
        c.all_reduce(each, out, op)


def in_flight(c, x, y, op):
    for work in [c.all_reduce(each, out, op, async_op=True) for each, out in zip(x, y)]:
        work.wait()


def seconds(c, call, repeat):
    """The median time of one all-reduce on this rank."""
    times = []
    for _ in range(repeat):
        c.barrier()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) / IN_FLIGHT)
    return statistics.median(times)


def measure(c, memory, calls, op, nbytes, repeat):
    """One row: times such all-reduces, then compares every element with the closed form."""
    x, y = ([memory(nbytes // 4) for _ in range(IN_FLIGHT)] for _ in "xy")
    for k, each in enumerate(x):
        each[:] = c.rank + k
    took = seconds(c, lambda: calls(c, x, y, op), repeat)
    for k, each in enumerate(y):
        right = np.float32(sum(rank + k for rank in range(c.size)) / (c.size if op == "avg" else 1))
        if not (each == right).all():
            raise SystemExit(f"rank {c.rank}: a wrong {op}: {each[each != right][0]}, not {right}")
    algbw = nbytes / took / 1e9
    busbw = algbw * 2 * (c.size - 1) / c.size
    return f"{nbytes:10}  {memory.__name__:8} {calls.__name__:14} {op:4} {1e6 * took:10.2f} {algbw:7.2f} {busbw:7.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--min-bytes", type=size, default="32K")
    parser.add_argument("--max-bytes", type=size, default="32M", help="of the arrays, which are each time four times as large")
    parser.add_argument("--repeat", type=int, default=11, help="how often each is timed")
    options = parser.parse_args()

    rows = [(plain, one_at_a_time, "sum"), (library, one_at_a_time, "sum"), (library, in_flight, "sum"), (library, in_flight, "avg")]
    with rondo.Communicator() as c:
        if c.rank == 0:
            print(f"{'bytes':>10}  {'memory':8} {'calls':14} {'op':4} {'time (us)':>10} {'algbw':>7} {'busbw':>7}")
        nbytes = options.min_bytes
        while nbytes <= options.max_bytes:
            for memory, calls, op in rows:
                row = measure(c, memory, calls, op, nbytes, options.repeat)
                if c.rank == 0:
                    print(row, flush=True)
            nbytes *= 4


if __name__ == "__main__":
    main()
