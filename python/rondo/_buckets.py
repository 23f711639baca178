"""The gradient buckets of torch's DistributedDataParallel as library memory, at the first all-reduce of each.

torch allocates a bucket itself, and gradients may be views of it. `_share_fd_cpu_` moves a storage under all its views into a mapping
of its own, whose pages rondo can then replace (rondo::register_memory).
"""
import fcntl
import logging
import os
import sys
import threading

import torch

from rondo import _error, _rondo

_LEAST = 64 << 10  # bytes: smaller buckets gain nothing
_lock = threading.Lock()
_problem = None  # why no more buckets are moved
_moved = {}  # {address: storage}. As long as a storage is here nothing else can have its address.


def move_if_sent_by_reducer(bucket):
    """Called by the backend's allreduce(). Makes a bucket of DDP's library memory unless it is; what cannot be moved stays as it was.
    The reducer calls from C++ in torch's backward pass, other callers through functions of torch.distributed."""
    caller = sys._getframe(1).f_back
    if bucket.nbytes < _LEAST or caller is None or caller.f_code.co_name != "_engine_run_backward":
        return
    if bucket.data_ptr() in _moved or bucket.device.type != "cpu":
        return
    storage = bucket.untyped_storage()
    if storage.nbytes() != bucket.nbytes or storage.is_shared():  # not a bucket, or tried before
        return
    with _lock:
        if _problem is None:
            _move(storage)


def _move(storage):
    global _problem
    try:
        _drop_unused()
        _rondo.Memory(storage.nbytes())  # freed at once: if it cannot be had, the storage stays torch's, and private after fork()
        descriptor, _ = storage._share_fd_cpu_()
        _rondo.register_memory(storage.data_ptr(), storage.nbytes())
        _moved[storage.data_ptr()] = storage
        _withdraw(descriptor)
    except (RuntimeError, OSError, MemoryError, _error.Error) as failure:
        # The next ones would fail, too.
        _problem = "no library memory is left; see RONDO_ARENA_BYTES" if isinstance(failure, MemoryError) else str(failure)
        logging.getLogger("rondo").warning("buckets of DDP stay in plain memory: %s", _problem)


def _withdraw(descriptor):
    """The descriptor's file holds the storage no more. It gives its memory back, and a process that torch.multiprocessing sends the
    storage to cannot map it."""
    empty = os.memfd_create("rondo-bucket", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        fcntl.fcntl(empty, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        os.dup2(empty, descriptor, inheritable=False)
    finally:
        os.close(empty)


def drop_unused():
    """Lets go of buckets that only this module knows."""
    with _lock:
        _drop_unused()


def _drop_unused():
    for address, storage in list(_moved.items()):
        if torch._C._storage_Use_Count(storage._cdata) == 1:
            _rondo.unregister_memory(address)
            del _moved[address]


def _forget():
    """In a forked child the pages are its parent's."""
    global _lock
    _lock = threading.Lock()
    _moved.clear()


os.register_at_fork(after_in_child=_forget)
