#!/usr/bin/env python3
"""The ranks of one mpirun pass arrays around a ring and all-reduce them, by mpi4py and by rondo; both must agree.

    mpirun -n 2 python mpi4py_ring.py --count 250000

Needs numpy and mpi4py. Prints the time of each, and how many times as fast rondo is.
"""
import argparse
import statistics
import time

import numpy as np
from mpi4py import MPI

import rondo


def mpi_ring(comm, x):
    """The sum over all ranks: each array travels once around, and every rank adds what passes."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passing, coming = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.Sendrecv(passing, right, recvbuf=coming, source=left)
        total += coming
        passing, coming = coming, passing
    return total


def rondo_ring(c, x):
    """The same with rondo: calls inside a group run together, so that no rank waits for another's receive."""
    right, left = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    total, passing, coming = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(c.size - 1):
        with c.group():
            c.send(passing, right)
            c.recv(coming, left)
        total += coming
        passing, coming = coming, passing
    return total


def mpi_all_reduce(comm, x):
    total = np.empty_like(x)
    comm.Allreduce(x, total)
    return total


def rondo_all_reduce(c, x):
    return c.all_reduce(x)


def microseconds(comm, call, repeat):
    """The median over calls of the slowest rank's time."""
    times = []
    for _ in range(repeat):
        comm.Barrier()
        start = time.perf_counter()
        call()
        times.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    return 1e6 * statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=250_000, help="doubles in each array")
    parser.add_argument("--repeat", type=int, default=21, help="calls that are timed")
    options = parser.parse_args()

    comm = MPI.COMM_WORLD
    with rondo.Communicator.from_mpi(comm) as c:
        x = np.arange(options.count) + 1000.0 * comm.rank  # sums are exact
        for name, by_mpi, by_rondo in (("ring", mpi_ring, rondo_ring), ("all_reduce", mpi_all_reduce, rondo_all_reduce)):
            equal = comm.allreduce(np.array_equal(by_mpi(comm, x), by_rondo(c, x)), MPI.LAND)
            if not equal:
                raise SystemExit(f"{name}: a rank has another sum by rondo than by MPI")
            mpi = microseconds(comm, lambda: by_mpi(comm, x), options.repeat)
            ours = microseconds(comm, lambda: by_rondo(c, x), options.repeat)
            if c.rank == 0:
                print(f"{name}: {x.nbytes} bytes on {c.size} ranks, the same sums; mpi4py {mpi:.2f} us, rondo {ours:.2f} us, "
                      f"{mpi / ours:.2f} times as fast")


if __name__ == "__main__":
    main()
