"""The backend "rondo" of torch.distributed (2.15 or newer), for tensors of CPUs. docs/torch.md explains it.

torch finds it by an entry point when init_process_group("rondo") names the backend. Under mpirun and srun, which torch does not know,
import it before: it then says to torch which rank this is. A call that is not asynchronous runs in its caller. rondo's progress thread
executes the others; threads of this module complete their futures.
"""
import atexit
import contextlib
import datetime
import hashlib
import logging
import os
import re
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15):
    raise ImportError(f"rondo's backend needs torch 2.15 or newer; this is {torch.__version__}")

from torch._C._distributed_c10d import AllreduceOptions, Backend, ErrorType, ReduceOp

import rondo
from rondo import _buckets
from rondo._error import described
from rondo._shrink import shrunk
from rondo._tensors import copy_parts, counts_of, expect_like, expect_one_each, in_order, joined, moved, moved_as_laid_out, reduced
from rondo._works import Completion, RondoWork, forward_to_python, not_compiled

_NOT_SET = AllreduceOptions().timeout
_is_profiled = torch.autograd._profiler_enabled
_CODES = {"timeout": ErrorType.TIMEOUT, "peer died": ErrorType.REMOTE_ERROR}
_open = set()  # torch's debugging wrapper keeps the C++ half of a RondoBackend only


def _seconds(timeout):
    """As rondo takes it: a year at most."""
    return min(timeout.total_seconds(), 365 * 86400)


def _to_meet(timeout):
    """How long ranks wait for each other when a group is made: what the program states; torch's default of half an hour is not that, so
    RONDO_BOOTSTRAP_TIMEOUT holds."""
    return None if timeout == dist.distributed_c10d.default_pg_timeout else _seconds(timeout)


@not_compiled
class RondoBackend(Backend):
    """The ranks of a process group as a rondo.Communicator."""

    def __init__(self, rank, size, options, communicator, name, store):
        super().__init__(rank, size)
        self._communicator, self._options, self._name, self._store = communicator, options, name, store
        self._timeout = _seconds(options._timeout)
        self._completion = Completion()
        self._coalesced = None  # what was issued since start_coalescing()
        self._outstanding, self._calls_until_look = set(), 8
        self._collectives = 0  # issued, which is the same on all ranks whatever has ended
        self._one_at_a_time = threading.RLock()  # reentrant: a signal's handler may call while this thread holds it
        _open.add(self)

    # ---- What torch asks.

    @property
    def options(self):
        return self._options

    @property
    def supports_splitting(self):
        return True

    @property
    def supports_shrinking(self):
        return _finish_shrinking is not None

    @property
    def supports_coalescing(self):
        return False  # torch need not collect messages: all are asynchronous

    def getBackendName(self):
        return "rondo"

    def supports_tensor_alloc(self, device):
        return getattr(device, "type", "cpu") == "cpu"

    def allocate_tensor(self, size, *, dtype, device=None):
        """An uninitialised tensor in library memory, which the ranks of this host read in place."""
        return rondo._empty(size, dtype, reused=True)

    def set_timeout(self, timeout):
        self._options._timeout = timeout
        self._timeout = _seconds(timeout)

    _set_default_timeout = set_timeout

    def get_error(self):
        try:
            self._communicator.check()
        except rondo.Error as failure:
            return _CODES.get(failure.code, ErrorType.COMM_ERROR)
        return ErrorType.SUCCESS

    def flight_record(self):
        """What this rank did last, and what its peers do, as text."""
        return self._communicator.flight_record()

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self._collectives

    # ---- Its end.

    def abort(self):
        with contextlib.suppress(ValueError):  # it is closed
            self._communicator.abort("torch.distributed aborted the process group")

    def shutdown(self):
        """Waits for what is outstanding, and leaves. Raises rondo.Error if ranks that only sent have made different calls, and no call
        has raised that."""
        self.end_threads()
        disagreement = None
        with self._one_at_a_time:
            try:
                self._communicator.close()
            except rondo.Error as failure:  # it is closed
                disagreement = failure
        _open.discard(self)
        _buckets.drop_unused()
        if disagreement is not None:
            raise disagreement

    def end_threads(self, patience=None):
        """Waits for what is outstanding, but not longer than `patience` seconds. Receives may have no sender, and another thread's call
        no end. After another second all of them are aborted."""
        if patience is None:
            for work in list(self._outstanding):
                if not work.receives:
                    work.settle()
        else:
            self._wait_until(time.monotonic() + patience, lambda work: not work.receives)
        end = time.monotonic() + 1
        self._wait_until(end, lambda _: True)
        free = self._one_at_a_time.acquire(timeout=max(0, end - time.monotonic()))
        if not free or any(not work.is_completed() for work in list(self._outstanding)):
            self.abort()
        if free:
            self._one_at_a_time.release()  # callbacks of futures may call
        self._completion.end()

    def _wait_until(self, end, chosen):
        while any(chosen(work) and not work.is_completed() for work in list(self._outstanding)) and time.monotonic() < end:
            time.sleep(0.001)

    def split(self, store, ranks, options):
        member = self.rank() in ranks
        own = _name(options.group_name if options else "", sys._getframe(1))
        with self._one_at_a_time:
            timeout = _seconds(options._timeout) if options else self._timeout
            names = self._communicator.all_gather_object(own, stall_timeout=timeout)
            name = names[min(ranks)] if member else None  # the description may be another one on each rank
            part = self._communicator.split(min(ranks) if member else None, ranks.index(self.rank()) if member else 0, name)
        if not member:  # torch would take None for a backend
            raise ValueError(f"rank {self.rank()} is in no group of split_ranks: give it one of its own, or use new_group()")
        options = options or Backend.Options("rondo", timeout=self._options._timeout)
        parents = self._options.global_ranks_in_group or range(self.size())
        options.global_ranks_in_group = [parents[rank] for rank in ranks]
        return RondoBackend(part.rank, part.size, options, part, name, store)

    def perform_nocolor_split(self, _device):
        """This rank's part in a new_group() of others."""
        with self._one_at_a_time:
            self._communicator.all_gather_object("", stall_timeout=self._timeout)
            self._communicator.split(None)

    def shrink(self, ranks_to_exclude, shrink_flags=0, opts_override=None):
        """A backend of all but the excluded ranks, which do not call it."""
        members = [rank for rank in range(self.size()) if rank not in ranks_to_exclude]
        options = opts_override or Backend.Options("rondo", timeout=self._options._timeout)
        parents = self._options.global_ranks_in_group  # of the default group none: its ranks are numbered anew
        options.global_ranks_in_group = [parents[rank] for rank in members] if parents else []
        if shrink_flags & dist.distributed_c10d.SHRINK_ABORT:
            self._communicator.abort(f"rank {self.rank()} called shrink_group with SHRINK_ABORT")
        try:
            self._store.check(["rondo"])  # torch clones it, and would wait for a server that is gone
        except RuntimeError as failure:
            raise RuntimeError("shrink_group: the process group's store does not answer: it has ended with the process that had it, rank "
                               "0's unless the launcher or the program says otherwise") from failure
        name = self._name.removesuffix("-shrunk") + "-shrunk"
        with self._one_at_a_time:
            left = shrunk(self._communicator, members, name=name, timeout=self._timeout)
        return RondoBackend(left.rank, left.size, options, left, name, self._store)

    # ---- Running calls.

    def _run(self, calls, result, opts, after=None, receives=False, watched=False):
        """Runs calls (each a method of the communicator with its arguments). Returns a Work for all of them; for calls that are not
        asynchronous None, as torch allows: they have ended."""
        if _is_profiled() and calls and not watched:
            return self._run_watched(calls, result, opts, after, receives)
        timeout = self._timeout_of(opts)
        here = self._coalesced is None and opts is not None and not opts.asyncOp
        if here and threading.active_count() - Completion.idle <= 1:
            with self._one_at_a_time:
                for call, arguments, named in calls:
                    call(*arguments, stall_timeout=timeout, **named)
                self._collectives += len(calls)
            if after is not None:
                after()
            return None
        with self._one_at_a_time:  # never held during a wait if there are other threads, whose calls may be what a peer waits for
            works = [call(*arguments, stall_timeout=timeout, async_op=True, **named) for call, arguments, named in calls]
            if opts is not None:  # no messages
                self._collectives += len(works)
        if here:
            for work in works:
                work.wait()
            if after is not None:
                after()
            return None
        work = RondoWork(result, works, self._completion, after, self._outstanding, receives)
        self._calls_until_look -= 1
        if self._calls_until_look <= 0:  # some may have ended without a wait
            self._calls_until_look = max(8, sum(not each.is_completed() for each in list(self._outstanding)))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _run_watched(self, calls, *rest):
        """For torch's profiler the operation is a row "rondo:NAME", from here to its end."""
        row, work = torch.autograd.profiler.record_function(f"rondo:{calls[0][0].__name__}"), None
        row.__enter__()
        try:
            work = self._run(calls, *rest, watched=True)
        finally:
            if work is None:
                row.__exit__(None, None, None)
        if work is not None:
            work.watch(row)
        return work

    def _timeout_of(self, opts):
        if opts is None or opts.timeout == _NOT_SET:
            return self._timeout
        return max(_seconds(opts.timeout), 0.001)  # rondo's 0 means the default

    def start_coalescing(self):
        self._coalesced = []

    def end_coalescing(self):
        issued, self._coalesced = self._coalesced or [], None
        return RondoWork([tensor for work in issued for tensor in work.result()], [each for work in issued for each in work._works],
                         self._completion, lambda: [work.finish() for work in issued])

    # ---- Collectives.

    def allreduce(self, tensors, opts):
        if tensors[0].is_sparse:
            return self.allreduce_sparse(tensors, opts)
        _buckets.move_if_sent_by_reducer(tensors[0])
        calls = []
        for tensor in tensors:
            x, named = reduced(tensor, opts.reduceOp, "the tensor", any_order=True)
            calls.append((self._communicator.all_reduce, (x, x), named))
        return self._run(calls, tensors, opts)

    allreduce_coalesced = allreduce

    def allreduce_sparse(self, tensors, opts):
        """All ranks' indices and values are gathered and added up. Runs in the caller."""
        if opts.reduceOp.op != ReduceOp.RedOpType.SUM:
            raise ValueError(f"rondo reduces sparse tensors by SUM, not by {opts.reduceOp.op.name}")
        for tensor in tensors:
            self._add_up(tensor, opts)
        return RondoWork(tensors) if opts.asyncOp else None

    def _add_up(self, tensor, opts):
        def gather(call, *arguments):
            with self._one_at_a_time:
                work = call(*arguments, stall_timeout=self._timeout_of(opts), async_op=True)
                self._collectives += 1
            work.wait()

        def gathered(rows):
            width = rows.shape[1:].numel()
            everything = rows.new_empty((sum(counts), *rows.shape[1:]))
            gather(self._communicator.all_gather_v, moved(rows, "the tensor").reshape(-1), moved(everything, "the tensor").reshape(-1),
                   [count * width for count in counts])
            return everything

        own = tensor.coalesce()
        found = torch.empty(self.size(), dtype=torch.int64)
        gather(self._communicator.all_gather, torch.tensor([own._nnz()]), found)
        counts = found.tolist()
        indices, values = gathered(own.indices().t().contiguous()), gathered(own.values().contiguous())
        tensor.copy_(torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False).coalesce())

    def reduce(self, tensors, opts):
        calls = []
        for tensor in tensors:
            x, named = reduced(tensor, opts.reduceOp, "the tensor", any_order=True)
            named |= {"root": opts.rootRank}
            calls.append((self._communicator.reduce, (x, x if self.rank() == opts.rootRank else None), named))
        return self._run(calls, tensors, opts)

    def broadcast(self, tensors, opts):
        calls = []
        for tensor in tensors:
            x, named = moved_as_laid_out(tensor, "the tensor")
            calls.append((self._communicator.broadcast, (x, x, opts.rootRank), named))
        return self._run(calls, tensors, opts)

    def barrier(self, opts):
        return self._run([(self._communicator.barrier, (), {})], [], opts)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """rondo's error names a rank that has not come, whatever wait_all_ranks says."""
        work = self.barrier(opts)
        if work is not None:
            work.finish()

    def all_gather_single(self, output, input, opts):
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        calls = [(self._communicator.all_gather, (moved(in_order(x), "the input"), moved(y, "the output")), {}) for y, x in zip(outputs, inputs)]
        return self._run(calls, outputs, opts)

    def allgather(self, output_tensors, input_tensors, opts):
        calls, copies = [], []
        for outputs, tensor in zip(output_tensors, input_tensors):
            expect_one_each(self.size(), outputs, "all_gather")
            x = moved(in_order(tensor), "the input")
            counts = counts_of(outputs)
            y = x.new_empty(sum(counts))
            if len(set(counts)) == 1:
                calls.append((self._communicator.all_gather, (x, y), {}))
            else:
                calls.append((self._communicator.all_gather_v, (x, y, counts), {}))
            copies.append((outputs, y, counts))
        return self._run(calls, [y for outputs in output_tensors for y in outputs], opts, lambda: [copy_parts(*copy) for copy in copies])

    def allgather_coalesced(self, output_lists, inputs, opts):
        return self.allgather([list(outputs) for outputs in zip(*output_lists)], inputs, opts)

    def reduce_scatter_single(self, output, input, opts):
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        calls = []
        for output, tensor in zip(outputs, inputs):
            x, named = reduced(in_order(tensor), opts.reduceOp, "the input")
            y, _ = reduced(output, opts.reduceOp, "the output")
            calls.append((self._communicator.reduce_scatter, (x, y), named))
        return self._run(calls, outputs, opts)

    def reduce_scatter(self, output_tensors, input_tensors, opts):
        calls = []
        for output, inputs in zip(output_tensors, input_tensors):
            expect_one_each(self.size(), inputs, "reduce_scatter")
            parts = [reduced(in_order(x), opts.reduceOp, "an input")[0].reshape(-1) for x in inputs]
            y, named = reduced(output, opts.reduceOp, "the output")
            counts = [part.numel() for part in parts]
            x = torch.cat(parts)
            if len(set(counts)) == 1:
                calls.append((self._communicator.reduce_scatter, (x, y), named))
            else:
                calls.append((self._communicator.reduce_scatter_v, (x, y, counts), named))
        return self._run(calls, output_tensors, opts)

    def gather(self, output_tensors, input_tensors, opts):
        x, root = moved(in_order(input_tensors[0]), "the input"), opts.rootRank
        if self.rank() != root:
            return self._run([(self._communicator.gather, (x, None, root), {})], [], opts)
        outputs = output_tensors[0]
        expect_one_each(self.size(), outputs, "gather")
        expect_like(input_tensors[0], outputs, "gather")
        y = x.new_empty(x.numel() * self.size())
        return self._run([(self._communicator.gather, (x, y, root), {})], outputs, opts,
                         lambda: copy_parts(outputs, y, [x.numel()] * self.size()))

    def scatter(self, output_tensors, input_tensors, opts):
        x = None
        if self.rank() == opts.rootRank:
            expect_one_each(self.size(), input_tensors[0], "scatter")
            expect_like(output_tensors[0], input_tensors[0], "scatter")
            x = joined(input_tensors[0])
        return self._run([(self._communicator.scatter, (x, moved(output_tensors[0], "the output"), opts.rootRank), {})], output_tensors, opts)

    def all_to_all_single(self, output, input, output_split_sizes, input_split_sizes, opts):
        x, y = moved(in_order(input), "the input"), moved(output, "the output")
        if not output_split_sizes and not input_split_sizes:
            return self._run([(self._communicator.all_to_all, (x, y), {})], [output], opts)
        arguments = (x, self._counts(x, input, input_split_sizes), y, self._counts(y, output, output_split_sizes))
        return self._run([(self._communicator.all_to_all_v, arguments, {})], [output], opts)

    def _counts(self, flat, tensor, rows):
        """Elements for each rank, of which rows of the first dimension."""
        length = tensor.size(0)
        rows = rows or [length // self.size()] * self.size()
        if sum(rows) != length:
            raise ValueError(f"the split sizes {list(rows)} do not add up to the first dimension, {length}")
        return [count * (flat.numel() // length) if length else 0 for count in rows]

    def alltoall(self, output_tensors, input_tensors, opts):
        x = joined(input_tensors)
        x_counts, y_counts = counts_of(input_tensors), counts_of(output_tensors)
        y = x.new_empty(sum(y_counts))
        return self._run([(self._communicator.all_to_all_v, (x, x_counts, y, y_counts), {})], output_tensors, opts,
                         lambda: copy_parts(output_tensors, y, y_counts))

    # ---- Messages: always asynchronous, as torch's are.

    def send(self, tensors, peer, tag=0):
        return self._run([(self._communicator.send, (moved(x, "the tensor"), peer, tag), {}) for x in tensors], tensors, None)

    def recv(self, tensors, peer, tag=0):
        calls = [(self._communicator.recv, (moved(y, "the tensor"), peer, tag), {}) for y in tensors]
        return self._run(calls, tensors, None, receives=True)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, rondo.ANY_SOURCE, tag)


class _Meeting:
    """An all-gather over the process group's store. A store may outlive a group: keys have a generation, by the groups that a rank
    has made over it, which must be as many on all ranks."""

    def __init__(self, store, rank, size, timeout):
        self._store, self._rank, self._size, self._timeout, self._round = store, rank, size, timeout, 0
        self._end = time.monotonic() + _seconds(timeout)  # of all rounds together
        self._generation = store.add(f"rondo/generation/{rank}", 1)

    def __call__(self, blob):
        self._round += 1
        keys = [f"rondo/{self._generation}/{self._round}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], blob)
        return self._get(keys)

    def first(self, text):
        """Rank 0's text, on all ranks."""
        key = f"rondo/{self._generation}/first"
        if self._rank == 0:
            self._store.set(key, text)
        return self._get([key])[0].decode()

    def _get(self, keys):
        try:
            left = max(self._end - time.monotonic(), 0.001)
            self._store.wait(keys, datetime.timedelta(seconds=left))  # the store's own is another one
        except RuntimeError:  # each kind of store has one of its own
            late = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
            if late:  # none if the last key was set just now
                raise rondo.Error(f"the process group was not made within {_seconds(self._timeout):g} s: rank{'s' * (len(late) > 1)} "
                                  f"{', '.join(late)} did not come", "timeout", self._rank) from None
        return [bytes(self._store.get(key)) for key in keys]


def _name(group_id, frame):
    """What logs and rondo-status call a group: its description and torch's name for it, "mesh_dp-3". torch does not tell its backends
    the description, which is a variable of the function of torch that makes the group. Its name may be a hash of 40 digits."""
    description = frame.f_locals.get("group_desc") if frame is not None else None
    description = description.lstrip(".") if isinstance(description, str) and description != "undefined" else ""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{description[:40] or 'group'}-{group_id[:8]}")


def _create(given, options):
    if options is None:
        options = Backend.Options("rondo", timeout=given.timeout)
    options._timeout = given.timeout
    options.global_ranks_in_group = given.global_ranks_in_group
    options.group_name = given.group_id
    if given.split_from is not None:
        return given.split_from.split(given.store, given.global_ranks_in_group, options)
    rank, size = given.group_rank, given.group_size
    meeting = _Meeting(given.store, rank, size, given.timeout)
    name = meeting.first(_name(given.group_id, sys._getframe(1))) if given.global_ranks_in_group else "world"
    communicator = rondo.Communicator(rank, size, all_gather=meeting, name=name, stall_timeout=_seconds(given.timeout),
                                      bootstrap_timeout=_to_meet(given.timeout))
    return RondoBackend(rank, size, options, communicator, name, given.store)


_finish_shrinking = getattr(dist.distributed_c10d, "_finalize_shrunk_group", None)  # torch 2.15's


def _finish_shrinking_well(target, excluded, made):
    """torch 2.15 says of any shrunk group on CPUs that it is Gloo's, for whose C++ class DistributedDataParallel then takes its backend,
    and confuses ranks of the job with ranks of the group."""
    group = _finish_shrinking(target, excluded, made)
    if isinstance(made, RondoBackend):
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, made)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        ranks = made.options.global_ranks_in_group or range(made.size())
        dist.distributed_c10d._world.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
    return group


def _host():
    """A word that ranks have in common if they share a host's network."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as boot:
        return hashlib.blake2b(boot.read() + str(os.stat("/proc/self/ns/net").st_ino).encode(), digest_size=16).digest()


def _agree_on_place(c):
    """MASTER_ADDR and a MASTER_PORT that is free on rank 0's host."""
    hosts = c.all_gather(bytearray(_host()), bytearray(16 * c.size))
    one_host = bytes(hosts) == bytes(hosts[:16]) * c.size
    place = bytearray(512)
    if c.rank == 0:
        with socket.create_server(("", 0)) as free:
            own = f"{'127.0.0.1' if one_host else socket.gethostname()} {free.getsockname()[1]}".encode()
            place[:len(own)] = own
    return bytes(c.broadcast(place)).rstrip(b"\0").decode().split()


def _describe_job():
    """Sets what init_process_group() reads by default where the launcher did not: mpirun and srun have names of their own for ranks,
    and no port. rondo knows the names, and its ranks agree on a port."""
    launched = any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID"))
    if not launched or {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return
    try:
        with rondo.Communicator() as c:
            address, port = _agree_on_place(c)
            found = {"RANK": c.rank, "WORLD_SIZE": c.size, "MASTER_ADDR": address, "MASTER_PORT": port}
    except rondo.Error as failure:
        logging.getLogger("rondo").warning("RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set: %s", failure)
        return
    for name, text in found.items():
        os.environ.setdefault(name, str(text))


def _end_threads():
    """Ends the threads that complete futures before the interpreter ends. It would throw them out of C++, which aborts the process. After
    an uncaught exception the other ranks learn of it at once. Nothing tells sys.exit(1) from a normal end, so the wait has a limit."""
    failure = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for backend in list(_open):
        if not backend._completion.has_threads():
            continue
        if failure is not None:
            with contextlib.suppress(ValueError, rondo.Error):
                backend._communicator.abort(f"rank {backend.rank()} left after {described(failure)}")
        with contextlib.suppress(ValueError, rondo.Error):  # of a parent, in a forked child
            backend.end_threads(patience=60)
    Completion.is_over = True


def register():
    """The entry point. Calling it twice is allowed; an import does."""
    if "RONDO" not in dist.Backend._plugins:
        _describe_job()
        forward_to_python()
        if _finish_shrinking is not None:
            dist.distributed_c10d._finalize_shrunk_group = _finish_shrinking_well
        atexit.register(_end_threads)
        dist.Backend.register_backend("rondo", _create, extended_api=True, devices=["cpu"])


register()
