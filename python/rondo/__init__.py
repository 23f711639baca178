"""rondo: collective communication between processes, of one machine or of several. docs/python.md in the source explains it."""
import contextlib
import operator
import os
import sys
import threading
from typing import NamedTuple

from rondo import _objects, _rondo
from rondo._envelope import Envelope
from rondo._error import Error, described
from rondo._rondo import DeviceMemory, Work, is_library_memory, make_unique_id

__all__ = ["ANY_SOURCE", "ANY_TAG", "Communicator", "DeviceMemory", "Envelope", "Error", "Place", "Work", "empty", "is_library_memory",
           "make_unique_id", "place_from_launcher"]
__version__ = ".".join(str(part) for part in _rondo.version)

ANY_SOURCE, ANY_TAG = -2, -1


def _name_main_thread():
    _rondo.set_main_thread(threading.main_thread().ident)


_name_main_thread()
os.register_at_fork(after_in_child=_name_main_thread)  # the thread that forked


Communicator = _rondo.Communicator


class Place(NamedTuple):
    """A process's rank, as its launcher set it; the local ones are among the ranks of its host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def place_from_launcher():
    """This process's Place, by the variables of rondo-run, torchrun, mpirun or srun; None without any. For decisions before a
    Communicator is made, such as its device."""
    place = _rondo.place_from_launcher()
    return None if place is None else Place(*place)


def _from_mpi(comm, **settings):
    """A communicator of the ranks of an mpi4py communicator."""
    if not hasattr(comm, "Get_rank"):
        raise TypeError(f"from_mpi() takes an mpi4py communicator, not {type(comm).__name__}")
    return Communicator(comm.Get_rank(), comm.Get_size(), all_gather=comm.allgather, **settings)


@contextlib.contextmanager
def _group(self):
    """Calls inside `with c.group():` run together at its end: messages in any order, collectives in theirs. After an exception
    inside none runs."""
    self._group_start()
    try:
        yield self
    except BaseException as failure:
        self._group_abandon(described(failure))
        raise
    self._group_end()


def _exit(self, kind, failure, _):
    """Closes it. After an exception other ranks must not wait for this one; sys.exit(0) is none."""
    if kind is not None and not (kind is SystemExit and failure.code in (None, 0)):
        with contextlib.suppress(Error, ValueError):
            self.abort(f"rank {self.rank} left after {described(failure)}")
        with contextlib.suppress(Error):  # the exception is what the caller sees
            self.close()
        return
    self.close()


Communicator.from_mpi = staticmethod(_from_mpi)
Communicator.group = _group
Communicator.broadcast_object = _objects.broadcast_object
Communicator.all_gather_object = _objects.all_gather_object
Communicator.__enter__ = lambda self: self
Communicator.__exit__ = _exit
Communicator.__module__ = Work.__module__ = Envelope.__module__ = Error.__module__ = "rondo"


def _memory(nbytes, reused):
    try:
        return _rondo.Memory(min(nbytes, sys.maxsize), reused)
    except MemoryError:
        raise MemoryError(f"no {nbytes} bytes of library memory are left: numpy.empty and torch.empty give other memory") from None


def empty(shape, dtype="float32"):
    """An array in library memory, which the ranks of this host read in place; zeros at first. dtype is numpy's or torch's, and so is the
    array."""
    return _empty(shape, dtype)


def _empty(shape, dtype, reused=False):
    """empty(), or in memory that an array of this size left, with what it held: cheaper than new pages."""
    shape = tuple(operator.index(length) for length in (shape if hasattr(shape, "__iter__") else (shape,)))
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape} has a negative length")
    count = 1
    for length in shape:
        count *= length
    if type(dtype).__module__ == "torch":
        import torch

        memory = _memory(count * torch.empty((), dtype=dtype).element_size(), reused)
        return torch.frombuffer(memory, dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"library memory cannot hold elements of {dtype}")
    if not count:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer(_memory(count * dtype.itemsize, reused), numpy.uint8, count * dtype.itemsize).view(dtype).reshape(shape)
