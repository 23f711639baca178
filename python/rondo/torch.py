"""The backend "rondo" of torch.distributed (2.15 or newer), for tensors of CPUs. docs/torch.md explains it.

torch finds it by an entry point when init_process_group("rondo") names the backend. Under mpirun and srun, which torch does not know,
import it before: it then says to torch which rank this is. A call that is not asynchronous runs in its caller. rondo's progress thread
executes the others; threads of this module complete their futures.
"""
import contextlib
import datetime
import logging
import os
import queue
import socket
import threading
import time

import torch
import torch.distributed as dist

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15):
    raise ImportError(f"rondo's backend needs torch 2.15 or newer; this is {torch.__version__}")

from torch._C._distributed_c10d import AllreduceOptions, Backend, ErrorType, ReduceOp

import rondo
from rondo import _buckets

_Op = ReduceOp.RedOpType
# By the operator's number: torch hashes and compares operators by calls.
_OPS = {int(op): name for op, name in (
    (_Op.SUM, "sum"), (_Op.PRODUCT, "prod"), (_Op.MIN, "min"), (_Op.MAX, "max"), (_Op.AVG, "avg"), (_Op.BAND, "band"), (_Op.BOR, "bor"),
    (_Op.BXOR, "bxor"), (_Op.PREMUL_SUM, "mulsum"))}
# As NCCL's backend has it: of truth values a sum is "any", a product "all".
_OPS_OF_BOOLS = {int(op): name for op, name in (
    (_Op.SUM, "max"), (_Op.PRODUCT, "min"), (_Op.MIN, "min"), (_Op.MAX, "max"), (_Op.BAND, "band"), (_Op.BOR, "bor"), (_Op.BXOR, "bxor"))}
_TYPES = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8,
                    torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2))
_NOT_SET = AllreduceOptions().timeout
_CODES = {"timeout": ErrorType.TIMEOUT, "peer died": ErrorType.REMOTE_ERROR}


def _flat(tensor, what, any_order=False):
    """The tensor as one run of memory. any_order: all ranks' tensors are laid out alike, so channels-last will do."""
    if tensor.layout is not torch.strided:
        raise ValueError(f"{what} is sparse: only all_reduce by SUM takes it; pass x.to_dense()")
    if tensor.is_contiguous():
        return tensor.detach()
    for layout, dimensions in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if any_order and tensor.dim() == dimensions and tensor.is_contiguous(memory_format=layout):
            return tensor.detach().as_strided((tensor.numel(),), (1,))
    raise ValueError(f"{what} is not contiguous: pass x.contiguous()")


def _moved(tensor, what, any_order=False):
    """What rondo moves unseen: a type that it lacks goes as bytes."""
    flat = _flat(tensor, what, any_order)
    return flat if flat.dtype in _TYPES else flat.reshape(-1).view(torch.uint8)


def _reduced(tensor, op, what, any_order=False):
    """The tensor as rondo reduces it, and the arguments that name the operator. Complex numbers are pairs."""
    flat = _flat(tensor, what, any_order)
    name = (_OPS if flat.dtype is not torch.bool else _OPS_OF_BOOLS).get(int(op.op))
    if name is None:
        raise ValueError(f"rondo cannot reduce {tensor.dtype} by {op.op.name}")
    if flat.is_complex():
        if name not in ("sum", "avg"):
            raise ValueError(f"rondo reduces complex numbers by SUM and AVG, not by {op.op.name}: there are no complex types")
        flat = torch.view_as_real(flat)
    if name != "mulsum":
        return flat, {"op": name}
    return flat, {"op": name, "factor": float(op.factor)}


def _joined(tensors):
    return torch.cat([_moved(tensor, "a tensor of the list").reshape(-1) for tensor in tensors])


def _copy_parts(tensors, flat, counts):
    """Each tensor gets its part of flat."""
    for tensor, part in zip(tensors, flat.split(counts)):
        _moved(tensor, "a tensor of the list").reshape(-1).copy_(part)


class _Completion:
    """Threads that wait for operations: each for one, so that futures are completed in any order, and a callback of one may wait for
    another. A thread that has nothing to do is used again."""

    alive = 0  # such threads of this process
    _counting = threading.Lock()

    def __init__(self):
        self._tasks = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads, self._idle = [], 0

    def start(self, task):
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._run, name="rondo-futures", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._tasks.put(task)

    def end(self):
        """Waits for what has been started. A callback may end it, too."""
        with self._lock:
            threads, self._threads, self._idle = self._threads, [], 0
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self):
        with _Completion._counting:
            _Completion.alive += 1
        while (task := self._tasks.get()) is not None:
            task()
            del task
            with self._lock:
                self._idle += 1
        with _Completion._counting:
            _Completion.alive -= 1


class RondoWork(dist._Work):
    """What an operation returns: `works` (rondo.Work) is empty if it has ended. `after` copies to where the caller wants it; the Work
    has ended after that, which happens without the caller's help."""

    def __init__(self, result, works=(), completion=None, after=None):
        super().__init__()
        self._result, self._works, self._completion, self._after = result, works, completion, after
        self._future = self._failure = None
        self._lock = threading.Lock()
        if after is not None:
            completion.start(self._settle)

    def finish(self):
        """Waits; returns the result. By any thread, any number of times."""
        for work in self._works:
            work.wait()
        if self._after is not None:
            with self._lock:
                if self._after is not None:
                    self._after()
                    self._after = None
        return self._result

    def _settle(self):
        """As finish(), keeping the failure."""
        try:
            self.finish()
        except Exception as failure:  # noqa: BLE001
            self._failure = failure

    def wait(self, timeout=None):
        if timeout is not None and timeout > datetime.timedelta(0):
            end = time.monotonic() + timeout.total_seconds()
            while not all(work.test() for work in self._works):
                if time.monotonic() >= end:
                    raise RuntimeError(f"rondo: the operation has not ended after {timeout.total_seconds()} s (it goes on)")
                time.sleep(0.0001)
        self.finish()
        return True

    def is_completed(self):
        if not all(work.test() for work in self._works):
            return False
        if self._failure is None:
            self._settle()
        return True

    def is_success(self):
        return self.is_completed() and self._failure is None

    def exception(self):
        return self._failure if self.is_completed() else None

    def result(self):
        return self._result

    def source_rank(self):
        if len(self._works) != 1 or (envelope := self._works[0].envelope) is None:
            raise RuntimeError("only a receive has a source")
        return envelope.source

    _source_rank = source_rank

    def synchronize(self):
        self.finish()

    def get_future(self):
        if _asked.active:
            _asked.found = self
            return _NO_FUTURE
        if self._future is None:
            begun = torch.futures.Future()
            self._future = begun.then(lambda _: self.finish())  # an exception becomes the future's, also for C++
            if self._works:
                self._completion.start(lambda: begun.set_result(None))
            else:
                begun.set_result(None)
        return self._future


class _Asked(threading.local):
    active, found = False, None


_asked = _Asked()
_NO_FUTURE = torch.futures.Future()


def _inside(work):
    """The RondoWork that is wrapped in one of torch's, or None."""
    _asked.active, _asked.found = True, None
    try:
        work.get_future()
    except RuntimeError:  # another backend's, which has no futures
        return None
    finally:
        _asked.active = False
    return _asked.found


def _forward(name):
    theirs = getattr(dist.Work, name)

    def method(self, *arguments):
        found = _inside(self)
        return theirs(self, *arguments) if found is None else getattr(found, name)(*arguments)

    method.__name__, method.__doc__ = name, theirs.__doc__
    setattr(dist.Work, name, method)


def _forward_to_python():
    """torch 2.15 wraps a Work of Python in one of C++ that forwards wait() and get_future() only. To all else it answers for itself:
    is_completed() is False for ever. These methods of torch's class look for the Work inside first."""
    for name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank", "synchronize"):
        _forward(name)


_open = set()  # torch's debugging wrapper keeps the C++ half of a RondoBackend only


class RondoBackend(Backend):
    """The ranks of a process group as a rondo.Communicator."""

    def __init__(self, rank, size, options, communicator):
        super().__init__(rank, size)
        self._communicator, self._options = communicator, options
        self._timeout = options._timeout.total_seconds()
        self._completion = _Completion()
        self._coalesced = None  # what was issued since start_coalescing()
        self._receives = []  # Works that may never end
        self._one_at_a_time = threading.Lock()
        _open.add(self)

    # ---- What torch asks.

    @property
    def options(self):
        return self._options

    @property
    def supports_splitting(self):
        return True

    @property
    def supports_coalescing(self):
        return False  # torch need not collect messages: all are asynchronous

    def getBackendName(self):
        return "rondo"

    def supports_tensor_alloc(self, device):
        return getattr(device, "type", "cpu") == "cpu"

    def allocate_tensor(self, size, *, dtype, device=None):
        """A tensor in library memory, which the ranks of this host read in place."""
        return rondo.empty(size, dtype)

    def set_timeout(self, timeout):
        self._options._timeout = timeout
        self._timeout = timeout.total_seconds()

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
        return self._communicator.stats()["operations"]

    # ---- Its end.

    def abort(self):
        _open.discard(self)
        with contextlib.suppress(ValueError):  # it is closed
            self._communicator.abort("torch.distributed aborted the process group")

    def shutdown(self):
        """Waits for collectives that are outstanding. A receive may have no sender, and another thread's call no end: after a second
        they are aborted."""
        _open.discard(self)
        end = time.monotonic() + 1
        free = self._one_at_a_time.acquire(timeout=1)
        while not all(work.is_completed() for work in self._receives) and time.monotonic() < end:
            time.sleep(0.001)
        if not free or not all(work.is_completed() for work in self._receives):
            self.abort()
        if not free:
            self._one_at_a_time.acquire()
        self._completion.end()
        self._communicator.close()
        self._one_at_a_time.release()
        _buckets.drop_unused()

    def split(self, store, ranks, options):
        member = self.rank() in ranks
        with self._one_at_a_time:
            part = self._communicator.split(min(ranks) if member else None, ranks.index(self.rank()) if member else 0)
        if not member:  # torch would take None for a backend
            raise ValueError(f"rank {self.rank()} is in no group of split_ranks: give it one of its own, or use new_group()")
        options = options or Backend.Options("rondo", timeout=self._options._timeout)
        parents = self._options.global_ranks_in_group or range(self.size())
        options.global_ranks_in_group = [parents[rank] for rank in ranks]
        return RondoBackend(part.rank, part.size, options, part)

    def perform_nocolor_split(self, _device):
        """This rank's part in a new_group() of others."""
        with self._one_at_a_time:
            self._communicator.split(None)

    # ---- Running calls.

    def _run(self, calls, result, opts, after=None):
        """Runs calls (each a method of the communicator with its arguments). Returns a Work for all of them; for calls that are not
        asynchronous None, as torch allows: they have ended."""
        timeout = self._timeout_of(opts)
        here = self._coalesced is None and opts is not None and not opts.asyncOp
        if here and threading.active_count() - _Completion.alive <= 1:
            with self._one_at_a_time:
                for call, arguments, named in calls:
                    call(*arguments, timeout=timeout, **named)
            if after is not None:
                after()
            return None
        with self._one_at_a_time:  # never held during a wait if there are other threads, whose calls may be what a peer waits for
            works = [call(*arguments, timeout=timeout, async_op=True, **named) for call, arguments, named in calls]
        if here:
            for work in works:
                work.wait()
            if after is not None:
                after()
            return None
        work = RondoWork(result, works, self._completion, after)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _timeout_of(self, opts):
        if opts is None or opts.timeout == _NOT_SET:
            return self._timeout
        return max(opts.timeout.total_seconds(), 0.001)  # rondo's 0 means the default

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
            x, named = _reduced(tensor, opts.reduceOp, "the tensor", any_order=True)
            calls.append((self._communicator.all_reduce, (x, x), named))
        return self._run(calls, tensors, opts)

    allreduce_coalesced = allreduce

    def allreduce_sparse(self, tensors, opts):
        """All ranks' indices and values are gathered and added up. Runs in the caller."""
        if opts.reduceOp.op != _Op.SUM:
            raise ValueError(f"rondo reduces sparse tensors by SUM, not by {opts.reduceOp.op.name}")
        with self._one_at_a_time:
            for tensor in tensors:
                self._add_up(tensor, self._timeout_of(opts))
        return RondoWork(tensors) if opts.asyncOp else None

    def _add_up(self, tensor, timeout):
        own = tensor.coalesce()
        counts = self._communicator.all_gather(torch.tensor([own._nnz()]), timeout=timeout).tolist()

        def gathered(rows):
            width = rows.shape[1:].numel()
            everything = rows.new_empty((sum(counts), *rows.shape[1:]))
            self._communicator.all_gather_v(_moved(rows, "the tensor").reshape(-1), _moved(everything, "the tensor").reshape(-1),
                                            [count * width for count in counts], timeout=timeout)
            return everything

        indices, values = gathered(own.indices().t().contiguous()), gathered(own.values().contiguous())
        tensor.copy_(torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce())

    def reduce(self, tensors, opts):
        calls = []
        for tensor in tensors:
            x, named = _reduced(tensor, opts.reduceOp, "the tensor", any_order=True)
            calls.append((self._communicator.reduce, (x, x if self.rank() == opts.rootRank else None, opts.rootRank), named))
        return self._run(calls, tensors, opts)

    def broadcast(self, tensors, opts):
        calls = [(self._communicator.broadcast, (_moved(tensor, "the tensor", any_order=True), opts.rootRank), {}) for tensor in tensors]
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
        calls = [(self._communicator.all_gather, (_moved(x, "the input"), _moved(y, "the output")), {}) for y, x in zip(outputs, inputs)]
        return self._run(calls, outputs, opts)

    def allgather(self, output_tensors, input_tensors, opts):
        calls, copies = [], []
        for outputs, tensor in zip(output_tensors, input_tensors):
            x = _moved(tensor, "the input")
            counts = [_moved(y, "an output").numel() for y in outputs]
            y = x.new_empty(sum(counts))
            if len(set(counts)) == 1:
                calls.append((self._communicator.all_gather, (x, y), {}))
            else:
                calls.append((self._communicator.all_gather_v, (x, y, counts), {}))
            copies.append((outputs, y, counts))
        return self._run(calls, [y for outputs in output_tensors for y in outputs], opts, lambda: [_copy_parts(*copy) for copy in copies])

    def allgather_coalesced(self, output_lists, inputs, opts):
        return self.allgather([list(outputs) for outputs in zip(*output_lists)], inputs, opts)

    def reduce_scatter_single(self, output, input, opts):
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        calls = []
        for output, tensor in zip(outputs, inputs):
            x, named = _reduced(tensor, opts.reduceOp, "the input")
            y, _ = _reduced(output, opts.reduceOp, "the output")
            calls.append((self._communicator.reduce_scatter, (x, y), named))
        return self._run(calls, outputs, opts)

    def reduce_scatter(self, output_tensors, input_tensors, opts):
        calls = []
        for output, inputs in zip(output_tensors, input_tensors):
            parts = [_reduced(x, opts.reduceOp, "an input")[0].reshape(-1) for x in inputs]
            y, named = _reduced(output, opts.reduceOp, "the output")
            counts = [part.numel() for part in parts]
            x = torch.cat(parts)
            if len(set(counts)) == 1:
                calls.append((self._communicator.reduce_scatter, (x, y), named))
            else:
                calls.append((self._communicator.reduce_scatter_v, (x, y, counts), named))
        return self._run(calls, output_tensors, opts)

    def gather(self, output_tensors, input_tensors, opts):
        x, root = _moved(input_tensors[0], "the input"), opts.rootRank
        if self.rank() != root:
            return self._run([(self._communicator.gather, (x, None, root), {})], [], opts)
        outputs = output_tensors[0]
        counts = [_moved(y, "an output").numel() for y in outputs]
        y = x.new_empty(sum(counts))
        return self._run([(self._communicator.gather, (x, y, root), {})], outputs, opts, lambda: _copy_parts(outputs, y, counts))

    def scatter(self, output_tensors, input_tensors, opts):
        x = _joined(input_tensors[0]) if self.rank() == opts.rootRank else None
        return self._run([(self._communicator.scatter, (x, _moved(output_tensors[0], "the output"), opts.rootRank), {})], output_tensors, opts)

    def all_to_all_single(self, output, input, output_split_sizes, input_split_sizes, opts):
        x, y = _moved(input, "the input"), _moved(output, "the output")
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
        x = _joined(input_tensors)
        x_counts = [_moved(tensor, "an input").numel() for tensor in input_tensors]
        y_counts = [_moved(tensor, "an output").numel() for tensor in output_tensors]
        y = x.new_empty(sum(y_counts))
        return self._run([(self._communicator.all_to_all_v, (x, x_counts, y, y_counts), {})], output_tensors, opts,
                         lambda: _copy_parts(output_tensors, y, y_counts))

    # ---- Messages: always asynchronous, as torch's are.

    def send(self, tensors, peer, tag=0):
        return self._run([(self._communicator.send, (_moved(x, "the tensor"), peer, tag), {}) for x in tensors], tensors, None)

    def recv(self, tensors, peer, tag=0):
        work = self._run([(self._communicator.recv, (_moved(y, "the tensor"), peer, tag), {}) for y in tensors], tensors, None)
        self._receives = [each for each in self._receives if not each.is_completed()] + [work]
        return work

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, rondo.ANY_SOURCE, tag)


class _Meeting:
    """An all-gather over the process group's store. A store may outlive a group: keys have a generation, by the groups that a rank
    has made over it, which must be as many on all ranks."""

    def __init__(self, store, rank, size):
        self._store, self._rank, self._size, self._round = store, rank, size, 0
        self._generation = store.add(f"rondo/generation/{rank}", 1)

    def __call__(self, blob):
        self._round += 1
        keys = [f"rondo/{self._generation}/{self._round}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], blob)
        return [bytes(self._store.get(key)) for key in keys]


def _create(given, options):
    if options is None:
        options = Backend.Options("rondo", timeout=given.timeout)
    options._timeout = given.timeout
    options.global_ranks_in_group = given.global_ranks_in_group
    options.group_name = given.group_id
    if given.split_from is not None:
        return given.split_from.split(given.store, given.global_ranks_in_group, options)
    rank, size = given.group_rank, given.group_size
    communicator = rondo.Communicator(rank, size, all_gather=_Meeting(given.store, rank, size), timeout=given.timeout.total_seconds())
    return RondoBackend(rank, size, options, communicator)


def _describe_job():
    """Sets what init_process_group() reads by default where the launcher did not: mpirun and srun have names of their own for ranks,
    and no port. rondo knows the names, and its ranks agree on a port."""
    launched = any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID"))
    if not launched or {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return
    try:
        with rondo.Communicator() as c:
            port = bytearray(8)
            if c.rank == 0:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    port[:] = free.getsockname()[1].to_bytes(8, "little")
            c.broadcast(port)
            found = {"RANK": c.rank, "WORLD_SIZE": c.size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": int.from_bytes(port, "little")}
    except rondo.Error as failure:
        logging.getLogger("rondo").warning("RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set: %s", failure)
        return
    for name, text in found.items():
        os.environ.setdefault(name, str(text))


def register():
    """The entry point. Calling it twice is allowed; an import does."""
    if "RONDO" not in dist.Backend._plugins:
        _describe_job()
        _forward_to_python()
        dist.Backend.register_backend("rondo", _create, extended_api=True, devices=["cpu"])


register()
