#!/usr/bin/env python3
"""torch_ranks.py CASE...: what a rank of torch_test.py does with the backend rondo of torch.distributed."""
import contextlib
import datetime
import gc
import glob
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
import weakref

import torch_python

if not torch_python.has_torch():
    sys.exit(77)

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import rondo
from refused import refused
from rondo import _buckets
from rondo._works import Completion


def value(rank, count, dtype=torch.float32):
    return (torch.arange(count) % 7 + 10 * (rank + 1)).to(dtype)


def total(ranks, count, dtype=torch.float32):
    return sum(value(rank, count, torch.float64) for rank in range(ranks)).to(dtype)


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
    assert torch.equal(found, expected), (found, expected)


def backend(group=None):
    found = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    return getattr(found, "wrapped_pg", found)


def the_store():
    return dist.distributed_c10d._get_default_store()


def meet_again():
    """Over the same store: torch's own would be closed by rank 0 while others open the next one."""
    store, rank, ranks = the_store(), dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("cpu:rondo", store=store, rank=rank, world_size=ranks)


def calls():
    """How many collectives this rank has called."""
    return dist.group.WORLD._get_sequence_number_for_group()


def wait_until(condition):
    while not condition():
        time.sleep(0.001)


def expect_sum(group=None):
    """The group works."""
    dist.all_reduce(x := torch.ones(3), group=group)
    same(x, torch.full((3,), float(dist.get_world_size(group))))


@contextlib.contextmanager
def late_futures():
    """The threads that complete futures take their time."""
    start = Completion.start
    Completion.start = lambda self, task: start(self, lambda: (time.sleep(0.05), task()))
    try:
        yield
    finally:
        Completion.start = start


def reductions(rank, ranks):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        for asynchronous in (False, True):
            for count in (0, 1, 1000):
                x = value(rank, count, dtype)
                work = dist.all_reduce(x, async_op=asynchronous)
                if asynchronous:
                    assert work.wait() is True
                same(x, total(ranks, count, dtype))
    for op, expected in ((dist.ReduceOp.MAX, value(ranks - 1, 9)), (dist.ReduceOp.MIN, value(0, 9)),
                         (dist.ReduceOp.AVG, total(ranks, 9) / ranks), (dist._make_nccl_premul_sum(0.5), total(ranks, 9) / 2),
                         (dist.ReduceOp.PRODUCT, torch.stack([value(r, 9) for r in range(ranks)]).prod(0))):
        x = value(rank, 9)
        dist.all_reduce(x, op)
        assert torch.allclose(x, expected), (op, x, expected)
    for op, expected in ((dist.ReduceOp.BOR, (1 << ranks) - 1), (dist.ReduceOp.BAND, 0 if ranks > 1 else 1),
                         (dist.ReduceOp.BXOR, (1 << ranks) - 1)):
        x = torch.tensor([1 << rank])
        dist.all_reduce(x, op)
        same(x, torch.tensor([expected]))
    x = torch.tensor([rank == 0, True, False])
    dist.all_reduce(x)  # as NCCL's backend: a sum of truth values is "any"
    same(x, torch.tensor([True, True, False]))
    x = torch.tensor([rank == 0, True, False])
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    same(x, torch.tensor([ranks == 1, True, False]))
    x = torch.complex(value(rank, 5), -value(rank, 5))
    dist.all_reduce(x)
    same(x, torch.complex(total(ranks, 5), -total(ranks, 5)))
    x = value(rank, 120).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dist.all_reduce(x)
    same(x, total(ranks, 120).reshape(2, 3, 4, 5))
    rows = torch.tensor([[0, rank + 1], [rank, 0]])
    for asynchronous in (False, True):
        x = torch.sparse_coo_tensor(rows, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (ranks + 1, ranks, 2))
        expected = sum(torch.sparse_coo_tensor(torch.tensor([[0, r + 1], [r, 0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), x.shape).to_dense()
                       for r in range(ranks))
        work = dist.all_reduce(x, async_op=asynchronous)
        if asynchronous:
            work.wait()
        same(x.to_dense(), expected)
    for root in range(ranks):
        x = value(rank, 9)
        dist.reduce(x, root)
        same(x, total(ranks, 9) if rank == root else value(rank, 9))
    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [value(rank, count) for count in (1, 5, 9)]
        for x in tensors:
            dist.all_reduce(x)
    manager.wait()
    for x in tensors:
        same(x, total(ranks, x.numel()))


def moves(rank, ranks):
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.int64):
        source = value(ranks - 1, 6).to(dtype)
        x = source.clone() if rank == ranks - 1 else torch.zeros(6).to(dtype)
        dist.broadcast(x, ranks - 1)
        same(x.float() if dtype.itemsize == 1 else x, source.float() if dtype.itemsize == 1 else source)
    y = torch.empty(ranks * 4)
    dist.all_gather_into_tensor(y, value(rank, 4))
    same(y, torch.cat([value(r, 4) for r in range(ranks)]))
    y[rank * 4:rank * 4 + 4] += 1
    dist.all_gather_into_tensor(y, y[rank * 4:rank * 4 + 4])  # in place
    same(y, torch.cat([value(r, 4) for r in range(ranks)]) + 1)
    for lengths in ([3] * ranks, [r + 1 for r in range(ranks)]):
        outputs = [torch.empty(length) for length in lengths]
        dist.all_gather(outputs, value(rank, lengths[rank]))
        for r, found in enumerate(outputs):
            same(found, value(r, lengths[r]))
        work = dist.reduce_scatter(y := torch.empty(lengths[rank]), [value(rank, length) for length in lengths], async_op=True)
        work.wait()
        same(y, total(ranks, lengths[rank]))
    dist.reduce_scatter_tensor(y := torch.empty(2), value(rank, 2 * ranks), dist.ReduceOp.AVG)
    assert torch.allclose(y, total(ranks, 2 * ranks)[2 * rank:2 * rank + 2] / ranks)
    outputs = [[torch.empty(2), torch.empty(0), torch.empty(5)] for _ in range(ranks)]
    dist.all_gather_coalesced(outputs, [value(rank, count) for count in (2, 0, 5)])
    for r, found in enumerate(outputs):
        for x in found:
            same(x, value(r, x.numel()))
    for root in range(ranks):
        outputs = [torch.empty(3) for _ in range(ranks)] if rank == root else None
        dist.gather(value(rank, 3), outputs, root)
        for r, found in enumerate(outputs or []):
            same(found, value(r, 3))
        dist.scatter(x := torch.empty(3), [value(r, 3) for r in range(ranks)] if rank == root else None, root)
        same(x, value(rank, 3))
    dist.all_to_all_single(y := torch.empty(ranks), value(rank, ranks))
    same(y, torch.stack([value(r, ranks)[rank] for r in range(ranks)]))
    sends = [r + 1 for r in range(ranks)]  # to rank r: r + 1 rows of two
    x = value(rank, 2 * sum(sends)).reshape(-1, 2)
    y = torch.empty(ranks * (rank + 1), 2)
    dist.all_to_all_single(y, x, [rank + 1] * ranks, sends)
    parts = [value(r, 2 * sum(sends)).reshape(-1, 2).split(sends)[rank] for r in range(ranks)]
    same(y, torch.cat(parts))
    outputs = [torch.empty(rank + 1, 2) for _ in range(ranks)]
    dist.all_to_all(outputs, list(x.split(sends)))
    for found, expected in zip(outputs, parts):
        same(found, expected)
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(ranks)]
    objects = [["from", 0]] if rank == 0 else [None]
    dist.broadcast_object_list(objects)
    assert objects == [["from", 0]]
    dist.barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))


def messages(rank, ranks):
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    for count in (1 << 20, 5):
        y = torch.empty(count)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, value(rank, count), following), dist.P2POp(dist.irecv, y, before)]):
            work.wait()
        same(y, value(before, count))
    if ranks == 1:
        return
    sent = [dist.isend(value(rank, 5) + tag, following, tag=tag) for tag in (3, 8)]
    for tag in (8, 3):  # in another order
        received = dist.irecv(y, before, tag=tag)
        wait_until(received.is_completed)
        received.wait()
        assert received.is_success() and received.source_rank() == before
        same(y, value(before, 5) + tag)
    for work in sent:
        work.wait()
    if rank == 0:
        assert {dist.recv(y) for _ in range(ranks - 1)} == set(range(1, ranks))
    else:
        dist.send(value(rank, 5), 0)


def works(rank, ranks):
    x = value(rank, 1000)
    work = dist.all_reduce(x, async_op=True)
    same(work.get_future().wait()[0], total(ranks, 1000))
    assert work.is_completed() and work.exception() is None and work.result()[0].data_ptr() == x.data_ptr()
    seen = []
    chained = dist.all_reduce(x, async_op=True).get_future().then(lambda future: seen.append(future.value()[0].sum().item()))
    chained.wait()
    assert seen == [total(ranks, 1000).sum().item() * ranks], seen
    work = dist.all_reduce(value(rank, 1 << 20), async_op=True)  # the tensor is the Work's now
    assert work.wait(datetime.timedelta(seconds=60))
    same(work.result()[0], total(ranks, 1 << 20))
    before = calls()
    dist.barrier()
    assert calls() > before
    assert "all_reduce" in backend().flight_record()


def future_values(rank, ranks):
    """A future has its value when its operation has been waited for, as DDP's join() expects, and when the operation says that it has ended."""
    for way in ("future after wait", "future before wait", "future before end"):
        dist.barrier()  # nobody is ahead
        with late_futures():
            work = dist.all_reduce(value(rank, 1000), async_op=True)
            future = work.get_future() if way != "future after wait" else None
            if way == "future before end":
                wait_until(work.is_completed)
            else:
                work.wait()
            same((future or work.get_future()).value()[0], total(ranks, 1000))
    torch.manual_seed(1)
    ddp = DistributedDataParallel(torch.nn.Linear(6, 6))
    with ddp.join(divide_by_initial_world_size=False), late_futures():
        for _ in range(2 + rank):
            ddp(torch.ones(2, 6)).sum().backward()
            same(ddp.module.bias.grad, torch.full((6,), 2.0))
            ddp.zero_grad()


def outputs_without_wait(rank, ranks):
    """What an operation copies at its end is there when it says that it has ended, however the caller learns of it."""
    expected = [value(r, 1 << 18) for r in range(ranks)]
    for way in ("poll", "future and wait", "drop"):
        outputs = [torch.zeros(1 << 18) for _ in range(ranks)]
        work = dist.all_gather(outputs, value(rank, 1 << 18), async_op=True)
        if way == "poll":
            wait_until(work.is_completed)
        elif way == "future and wait":
            work.get_future()
            work.wait()
        else:
            del work
            end = time.monotonic() + 60
            while not torch.equal(outputs[-1], expected[-1]) and time.monotonic() < end:
                time.sleep(0.001)
        for found, wanted in zip(outputs, expected):
            same(found, wanted)
    x = value(rank, 3)
    dist.all_to_all(outputs := [torch.zeros(3) for _ in range(ranks)], [x] * ranks)
    for r, found in enumerate(outputs):
        same(found, value(r, 3))


def futures(rank, ranks):
    """They are completed as their operations end, and a callback may wait for another one."""
    def twice(_):
        return dist.all_reduce(y, async_op=True).get_future().wait()

    y = torch.ones(1)
    dist.all_reduce(x := torch.ones(1), async_op=True).get_future().then(twice).wait()
    same(y, torch.full((1,), float(ranks)))
    if ranks > 1:
        received = dist.irecv(z := torch.empty(1), (rank - 1) % ranks)
        later = received.get_future()
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()  # before what was issued before it
        assert not later.done()
        dist.barrier()
        dist.send(torch.full((1,), float(rank)), (rank + 1) % ranks)
        later.wait()
        assert z.item() == (rank - 1) % ranks
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        ddp(value(rank, 256).reshape(4, 64)).sum().backward()
    mine = torch.cat([parameter.grad.reshape(-1) for parameter in ddp.parameters()])
    dist.broadcast(first := mine.clone(), 0)
    same(mine, first)


def numbered(rank, ranks):
    """A collective's number does not depend on what has ended: torch's own checks compare it between ranks."""
    before = calls()
    for k in range(100):
        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        if (rank + k) % 2:
            works[0].wait()
        assert calls() - before == 3 * k + 3
    dist.barrier()


def threads(rank, ranks):
    """A call of one thread does not keep out those of another that a peer waits for."""
    if ranks == 1:
        return
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    waiting = threading.Thread(target=dist.barrier)
    if rank == 0:
        issued = calls()
        waiting.start()
        wait_until(lambda: calls() > issued)
        dist.isend(value(rank, 5), following).wait()
        dist.recv(y := torch.empty(5), before)
        waiting.join()
    else:
        dist.recv(y := torch.empty(5), before)
        dist.send(value(rank, 5), following)
        dist.barrier()
    same(y, value(before, 5))


def concurrent(rank, ranks):
    """What one thread or callback waits for is not kept from being called by another."""
    def send(_):
        wait_until(lambda: calls() > before)  # until this rank is in the barrier
        return dist.send(torch.ones(1), 1)

    before = calls()  # messages are not counted
    store = the_store()
    if rank == 0:
        dist.irecv(torch.empty(1), 1).get_future().then(send)
        store.set("concurrent", "")  # a callback given to an ended future would run here, before the barrier
    elif rank == 1:
        store.wait(["concurrent"])
        dist.send(torch.ones(1), 0)
        dist.recv(torch.empty(1), 0)
    dist.barrier()
    x = torch.sparse_coo_tensor([[rank]], [1.0], (ranks,), check_invariants=False)
    thread = threading.Thread(target=dist.all_reduce, args=(x,))
    before = calls()
    if rank == 0:
        thread.start()
        wait_until(lambda: calls() > before)
        dist.send(torch.ones(1), 1)
        thread.join()
    else:
        if rank == 1:
            dist.recv(torch.empty(1), 0)
        dist.all_reduce(x)
    same(x.to_dense(), torch.ones(ranks))


def released(rank, ranks):
    """Tensors and Works are freed when nothing uses them, without the cyclic collector."""
    gc.disable()
    here = dist.isend(torch.ones(3), (rank + 1) % ranks)
    y = torch.empty(3)
    dist.recv(y, (rank - 1) % ranks)
    here.wait()
    received = weakref.ref(y)
    del y
    assert received() is None
    work = dist.all_reduce(x := torch.ones(3), async_op=True)
    work.wait()
    assert work.is_completed()
    reduced = weakref.ref(x)
    del x, work
    assert reduced() is None
    for _ in range(100):
        dist.all_reduce(torch.ones(3), async_op=True)
    dist.barrier()
    for _ in range(101):
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    assert len(backend()._outstanding) < 20, len(backend()._outstanding)
    gc.enable()


def no_threads(rank, ranks):
    """A group ends although a thread for its futures could not be started."""
    def start(_):
        raise RuntimeError("can't start new thread")

    meet_again()  # threads of earlier futures would be used again
    theirs, threading.Thread.start = threading.Thread.start, start
    work = dist.irecv(x := torch.zeros(3), (rank + 1) % ranks)  # nobody has sent yet: what has ended needs no thread
    with refused("can't start new thread"):
        work.get_future()
    dist.barrier()
    dist.send(torch.ones(3), (rank - 1) % ranks)
    work.wait()
    threading.Thread.start = theirs
    same(x, torch.ones(3))
    meet_again()


def aborted(rank, ranks):
    """Even torch's wrapper, which TORCH_DISTRIBUTED_DEBUG=DETAIL adds, says why."""
    with refused("aborted"):
        dist.barrier()  # may be where the other rank learns of it
        if rank == 0:
            backend().abort()
        gc.collect()
        for _ in range(2):
            dist.all_reduce(torch.ones(3))


def ends(rank, ranks):
    """A group ends although a receive has no sender, or another thread is in a call."""
    if ranks == 1:
        return
    never = dist.irecv(torch.empty(1), (rank + 1) % ranks, tag=99)
    dist.barrier()
    if rank == 0:
        time.sleep(1.5)  # longer than a receive is waited for: the others' all_reduce is not lost with their receive
    waited_for = dist.all_reduce(y := torch.ones(4), async_op=True)
    meet_again()
    waited_for.wait()
    same(y, torch.full((4,), float(ranks)))
    del never
    called = []

    ending = backend()._completion

    def call(_):
        wait_until(lambda: ending._ending)
        called.append(dist.all_reduce(x, async_op=True))

    x = torch.ones(1)
    received = dist.irecv(torch.empty(1), (rank - 1) % ranks)
    received.get_future().then(call)
    dist.barrier()  # given to a future that has ended, it would run here
    dist.send(torch.ones(1), (rank + 1) % ranks)
    received.wait()
    meet_again()
    called[0].wait()
    same(x, torch.full((1,), float(ranks)))
    failures = []

    def wait():
        try:
            dist.barrier()
        except rondo.Error as failure:
            failures.append(failure)

    waiting = threading.Thread(target=wait)
    if rank == 0:
        before = calls()
        waiting.start()
        wait_until(lambda: calls() > before)
    meet_again()
    if rank == 0:
        waiting.join()
        assert len(failures) == 1, failures
    dist.barrier()


def groups(rank, ranks):
    for members in ([0], list(range(ranks)), list(reversed(range(ranks)))):
        group = dist.new_group(members)
        if rank in members:
            assert dist.get_world_size(group) == len(members)
            expect_sum(group)
            dist.destroy_process_group(group)
    if ranks > 1:
        part = dist.split_group(split_ranks=[[0], list(range(1, ranks))])
        x = value(rank, 3)
        dist.all_reduce(x, group=part)
        same(x, value(0, 3) if rank == 0 else total(ranks, 3) - value(0, 3))
        with refused("rank 0 is in no group") if rank == 0 else contextlib.nullcontext():
            dist.split_group(split_ranks=[list(range(1, ranks))])
    subgroup, _ = dist.new_subgroups(group_size=1)
    expect_sum(subgroup)
    dist.group.WORLD.set_timeout(datetime.timedelta(days=4000))
    dist.barrier()
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=77))
    assert backend().options._timeout.total_seconds() == 77
    meet_again()
    expect_sum()


def named(rank, ranks):
    """Each group makes its communicator under a name of its own; one rank of a group says which."""
    init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    dist.new_group(list(range(1, ranks)))
    dist.new_group(group_desc="._a b\u00e4/" if rank == 0 else "another")
    dist.new_group(group_desc="d" * 200)
    dist.new_group(group_desc="...")
    dist.split_group(split_ranks=[[0, 1], [2, 3]], group_desc=f"half{rank}")
    dist.split_group(split_ranks=[[3, 2, 1], [0]], group_desc=f"turned{rank}")
    dist.new_group([0, 2], use_local_synchronization=True)


def model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))


def trained(net, batches, wrapped=None, hook=None):
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.0005) if wrapped else net
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05)
    for batch in batches:
        optimizer.zero_grad()
        ddp(batch).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def data_parallel(rank, ranks):
    torch.manual_seed(2)
    batches = torch.randn(4, 2 * ranks, 6)
    expected = trained(model(), batches)
    mine = batches[:, 2 * rank:2 * rank + 2]
    found = trained(model(), mine, wrapped=True)
    assert torch.allclose(found, expected, atol=1e-6), (found - expected).abs().max()
    everywhere = [torch.empty_like(found) for _ in range(ranks)]
    dist.all_gather(everywhere, found)
    assert all(torch.equal(each, found) for each in everywhere)
    rounded = trained(model(), mine, wrapped=True, hook=bf16_compress_hook)
    assert torch.allclose(rounded, expected, atol=1e-2) and not torch.equal(rounded, found)
    net = model()
    ddp = DistributedDataParallel(net)
    with ddp.no_sync():
        ddp(mine[0]).sum().backward()
    ddp(mine[1]).sum().backward()
    reference = model()
    (reference(batches[0]).sum() + reference(batches[1]).sum()).backward()
    for a, b in zip(net.parameters(), reference.parameters()):
        assert torch.allclose(a.grad * ranks, b.grad, rtol=1e-4, atol=1e-4)


def compiled(rank, ranks):
    ddp = torch.compile(DistributedDataParallel(model()), backend="aot_eager")
    for _ in range(2):  # in the second step it is the reducer of new buckets that calls the backend
        ddp(torch.randn(2, 6)).sum().backward()
    codes = [reference() for reference in torch._dynamo.convert_frame.input_codes.seen]
    ours = {code.co_name for code in codes if code is not None and os.path.dirname(code.co_filename) == os.path.dirname(rondo.__file__)}
    assert not ours, f"torch.compile has compiled {ours}"


def wide_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(4)))


def buckets(rank, ranks):
    """DDP's buckets become library memory, the first ones and those that it makes anew, and nobody notices."""
    def step(batches):
        optimizer.zero_grad()
        ddp(next(batches)[0]).square().mean().backward()
        optimizer.step()

    torch.manual_seed(2)
    data = torch.randn(8, 2 * ranks, 200)
    expected = trained(wide_model(), data)
    mine = torch.utils.data.TensorDataset(data[:, 2 * rank:2 * rank + 2])
    loader = torch.utils.data.DataLoader(mine, batch_size=None, num_workers=2)  # forks
    for view in (False, True):
        net = wide_model()
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.3, gradient_as_bucket_view=view)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.05)
        batches = iter(loader)
        for _ in range(8):
            step(batches)
            assert _buckets._moved and all(rondo.is_library_memory(p.grad) == view for p in net.parameters())
        found = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
        assert torch.allclose(found, expected, atol=1e-6), (found - expected).abs().max()
    gradient = net[0].weight.grad
    with refused("resize file"):  # its descriptor holds nothing any more
        torch.UntypedStorage._new_shared_fd_cpu(*gradient.untyped_storage()._share_fd_cpu_())
    del ddp, optimizer, net, batches
    _buckets.drop_unused()
    assert list(_buckets._moved) == [gradient.untyped_storage().data_ptr()]
    expect_private_after_fork(gradient)
    del gradient
    _buckets.drop_unused()
    assert not _buckets._moved
    x = torch.ones(100_000)  # another's tensor stays where it is
    dist.all_reduce(x)
    assert not rondo.is_library_memory(x)


def without_library_memory(rank, ranks):
    told = []
    logging.getLogger("rondo").addFilter(lambda record: told.append(record.getMessage()))
    torch.manual_seed(2)
    data = torch.randn(3, 2 * ranks, 200)
    found = trained(wide_model(), data[:, 2 * rank:2 * rank + 2], wrapped=True)
    assert torch.allclose(found, trained(wide_model(), data), atol=1e-6)
    assert len(told) == 1 and "stay in plain memory" in told[0], told
    net = wide_model()
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.3, gradient_as_bucket_view=True)
    ddp(data[0, :2]).square().mean().backward()
    expect_private_after_fork(net[0].weight.grad)


def expect_private_after_fork(tensor):
    """A forked child neither sees what its parent writes, nor changes it. Adds 1."""
    saved = tensor.clone()
    waits, written = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(waits, 1)
        kept = torch.equal(tensor, saved)
        tensor.zero_()
        grandchild = os.fork()
        if grandchild == 0:
            tensor.add_(1)
            os._exit(0 if bool((tensor == 1).all()) else 1)
        alike = os.waitpid(grandchild, 0)[1] == 0 and bool((tensor == 0).all())
        os._exit(0 if kept and alike and not rondo.is_library_memory(tensor) else 1)
    tensor.add_(1)
    os.write(written, b"x")
    assert os.waitpid(child, 0)[1] == 0 and torch.equal(tensor, saved + 1)
    os.close(waits)
    os.close(written)


def sharded(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    net = model()
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    torch.manual_seed(2)
    batches = torch.randn(4, 2 * ranks, 6)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    for batch in batches:
        optimizer.zero_grad()
        net(batch[2 * rank:2 * rank + 2]).square().mean().backward()
        optimizer.step()
    found = torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in net.parameters()])
    assert torch.allclose(found, trained(model(), batches), atol=1e-6)
    whole = torch.arange(6.0 * ranks).reshape(2 * ranks, 3)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    same(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
    same(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    x = functional.all_reduce(value(rank, 4), "sum", dist.group.WORLD)
    same(x + 0, total(ranks, 4))
    first, second = functional.all_gather_single_coalesced([value(rank, 2), value(rank, 3)], dist.group.WORLD)
    same(first + 0, torch.cat([value(r, 2) for r in range(ranks)]))
    same(second + 0, torch.cat([value(r, 3) for r in range(ranks)]))


def checkpointed(rank, ranks):
    """What FSDP2 saves in parts on all ranks is loaded into such parts, and into a model that is whole on each; also saved by a
    thread of torch's."""
    def made(shard, seed):
        net = model(seed)
        net = fully_shard(net, mesh=init_device_mesh("cpu", (ranks,))) if shard else DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(net.parameters(), 0.01)
        net(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        return net, optimizer

    def state(net, optimizer):
        model_state, optimizer_state = get_state_dict(net, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "step": torch.tensor(7)}

    def whole(net, optimizer):
        tensors = [*net.parameters(), *(moments["exp_avg"] for moments in optimizer.state.values())]
        return torch.cat([getattr(x, "full_tensor", lambda x=x: x)().detach().reshape(-1) for x in tensors])

    folders = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders)
    saved = made(True, 1)
    dcp.save(state(*saved), checkpoint_id=f"{folders[0]}/1")
    dcp.async_save(state(*saved), checkpoint_id=f"{folders[0]}/2").result()
    for number, shard in ((1, True), (1, False), (2, False)):
        net, optimizer = made(shard, 2)
        assert not torch.equal(whole(net, optimizer), whole(*saved))
        loaded = state(net, optimizer)
        loaded["step"].zero_()
        dcp.load(loaded, checkpoint_id=f"{folders[0]}/{number}")
        set_state_dict(net, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        same(whole(net, optimizer), whole(*saved))
        assert loaded["step"] == 7
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folders[0])


def library_memory(rank, ranks):
    x = backend().allocate_tensor(1000, dtype=torch.bfloat16)
    assert backend().supports_tensor_alloc(torch.device("cpu")) and rondo.is_library_memory(x)
    x.copy_(value(rank, 1000))
    dist.all_reduce(x)
    same(x, total(ranks, 1000, torch.bfloat16))
    del x
    reused_memory()


def reused_memory():
    """A tensor of the backend gets the pages of a freed one of its size; as many stay as were ever in use, and a forked child's are its own."""
    def tensor(mebibytes):
        made = backend().allocate_tensor(mebibytes << 18, dtype=torch.float32).fill_(1)
        return made, made.data_ptr()

    def pages():
        """MiB of the arena that are there."""
        links = {os.readlink(link): link for link in glob.glob("/proc/self/fd/*") if os.path.exists(link)}
        arena = next(links[name] for name in links if "rondo-arena" in name)
        return os.stat(arena).st_blocks * 512 >> 20

    before = pages()
    x, first = tensor(16)
    y, second = tensor(8)
    del x, y
    assert pages() >= before + 24, (before, pages())
    x, again = tensor(16)
    assert again == first and x.eq(1).all() and rondo.empty(1 << 20).max() == 0
    child = os.fork()
    if child == 0:
        y, third = tensor(8)
        x = None  # the parent's, which the child must not reuse
        os._exit(0 if third != second and rondo.is_library_memory(tensor(16)[0]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    y, _ = tensor(4)
    assert pages() <= before + 21, (before, pages())  # 16 + 4 are in use; with the 8 that are not, it would be more than ever was
    del x, y
    x, _ = tensor(24)
    assert pages() <= before + 25, (before, pages())


def strided(rank, ranks):
    """Tensors of lists, and what is only read, may lie in any order: also not in the same on all ranks."""
    def parts(r, dtype):
        return [value(r + 10 * k, 12, dtype).reshape(3, 4) for k in range(ranks)]

    def turned(x):
        return x.t().contiguous().t() if (rank + x.shape[0]) % 2 else x.repeat_interleave(2, 1)[:, ::2]

    def outputs():
        return [torch.zeros(4, 3, dtype=dtype).t() for _ in range(ranks)]

    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64):
        own = [turned(x) for x in parts(rank, dtype)]
        dist.all_gather(found := outputs(), own[0])
        for r, x in enumerate(found):
            same(x, parts(r, dtype)[0])
        dist.all_to_all(found := outputs(), own)
        for r, x in enumerate(found):
            same(x, parts(r, dtype)[rank])
        dist.gather(own[0], found := outputs() if rank == ranks - 1 else None, ranks - 1)
        for r, x in enumerate(found or []):
            same(x, parts(r, dtype)[0])
        dist.scatter(x := torch.zeros(3, 4, dtype=dtype), own if rank == 0 else None, 0)
        same(x, parts(0, dtype)[rank])
        dist.all_gather_into_tensor(x := torch.zeros(3 * ranks, 4, dtype=dtype), own[0])
        same(x, torch.cat([parts(r, dtype)[0] for r in range(ranks)]))
        dist.all_to_all_single(x := torch.zeros(3 * ranks, 4, dtype=dtype), turned(torch.cat(parts(rank, dtype))))
        same(x, torch.cat([parts(r, dtype)[rank] for r in range(ranks)]))
        if dtype is not torch.bfloat16:  # its sums are rounded
            dist.reduce_scatter(x := torch.zeros(3, 4, dtype=dtype), own)
            same(x, sum(parts(r, dtype)[rank] for r in range(ranks)))
            dist.reduce_scatter_tensor(x := torch.zeros(3, 4, dtype=dtype), turned(torch.cat(parts(rank, dtype))))
            same(x, sum(parts(r, dtype)[rank] for r in range(ranks)))


def profiled(rank, ranks):
    x = torch.ones(1 << 20)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        dist.all_reduce(x)
        works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        outputs = [torch.empty(2) for _ in range(ranks)]
        dist.all_gather(outputs, torch.ones(2))
        with refused("band"):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
        if ranks > 1 and rank < 2:
            work = dist.isend(x, 1 - rank) if rank == 0 else dist.irecv(x, 1 - rank)
            work.wait()
        meet_again()  # nothing is left of these operations
    rows = {row.key: row for row in found.key_averages() if row.key.startswith("rondo:")}
    expected = {"rondo:all_reduce": 5, "rondo:all_gather": 1}
    if ranks > 1 and rank < 2:
        expected["rondo:send" if rank == 0 else "rondo:recv"] = 1
    assert {name: row.count for name, row in rows.items() if name in expected} == expected, rows
    assert rows["rondo:all_reduce"].cpu_time_total > 0
    if ranks > 1 and rank < 2:
        profiled_late(rank, x)


def profiled_late(rank, x):
    """The profiler frees its rows when it ends, so none may end after that: a thread that is late to complete futures is waited for."""
    store = the_store()
    for wait in ("wait", "synchronize", "is_completed"):
        if rank == 1:
            store.wait([f"{wait} is next"])  # there is a future before the message
            dist.send(x, 0)
            continue
        with late_futures(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            work = dist.irecv(x, 1)
            store.set(f"{wait} is next", "")
            while getattr(work, wait)() is False:
                time.sleep(0.001)
        [row] = [row for row in found.key_averages() if row.key == "rondo:recv"]
        assert row.cpu_time_total >= 50_000, row  # microseconds


def bad_input(rank, ranks):
    sum_, max_ = dist.ReduceOp.SUM, dist.ReduceOp.MAX
    for x, op, part in ((torch.ones(4, 4)[:, ::2], sum_, "is not contiguous"), (torch.eye(3).to_sparse(), max_, "sparse"),
                        (torch.ones(3, dtype=torch.complex64), max_, "complex"), (torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG, "AVG"),
                        (torch.ones(3), dist.ReduceOp.BAND, "band")):
        with refused(part):
            dist.all_reduce(x, op)
    for dtype, factor in ((torch.int32, 0.5), (torch.int8, 300.0), (torch.float32, 1e39)):
        with refused("a factor of"):
            dist.all_reduce(torch.ones(3, dtype=dtype), dist._make_nccl_premul_sum(factor))
    with refused("meta"):  # torch itself asks no backend for such tensors
        backend().allreduce([torch.empty(3, device="meta")], dist.AllreduceOptions())
    if rank == 0:  # the root's own; the others are not yet in the call
        with refused("rank 0 has 2 elements", "own 3"):
            dist.gather(torch.ones(3), [torch.empty(2), torch.empty(4)] + [torch.empty(3)] * (ranks - 2) if ranks > 1 else [torch.empty(2)])
        with refused("torch.int32"):
            dist.scatter(torch.ones(3), [torch.ones(3, dtype=torch.int32)] * ranks)
        with refused(f"{ranks + 1} tensors", f"{ranks} ranks"):
            dist.gather(torch.ones(3), [torch.empty(3) for _ in range(ranks + 1)])
        with refused(f"{ranks + 1} tensors"):
            dist.scatter(torch.ones(3), [torch.ones(3)] * (ranks + 1))
    for parts in (2 * ranks, ranks + 1):  # also of the right size in all
        with refused(f"all_gather: the list has {parts} tensors"):
            dist.all_gather([torch.empty(2) for _ in range(parts)], torch.ones(4))
        with refused(f"reduce_scatter: the list has {parts} tensors"):
            dist.reduce_scatter(torch.empty(4), [torch.ones(2)] * parts)
    with refused("do not add up"):
        dist.all_to_all_single(torch.empty(ranks), torch.ones(ranks), None, [2] * ranks)
    with refused("not contiguous"):
        dist.all_gather_into_tensor(torch.empty(ranks * 2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(2, 3, 4, 5))
    with refused("not contiguous"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(4, 4)[:, ::2], rank)])
    with refused("elements"):
        dist.all_gather_into_tensor(torch.empty(3 * ranks + 1), torch.ones(3))
    expect_sum()
    x = torch.ones(1 << 20)
    work = dist.all_reduce(x, async_op=True)
    del x, work  # in flight: rondo keeps it
    left = dist.all_reduce(y := torch.ones(1 << 18), async_op=True)
    meet_again()  # waits for what is outstanding
    same(y, torch.full((1 << 18,), float(ranks)))
    del left


def disagreement(rank, ranks):
    with refused("all_reduce", "broadcast"):
        dist.all_reduce(torch.ones(1000)) if rank == 0 else dist.broadcast(torch.ones(1000), 0)
    assert backend().get_error() != torch._C._distributed_c10d.ErrorType.SUCCESS
    meet_again()


def only_sends(rank, ranks):
    """All are roots: only the end of the group can tell, and the next try ends it."""
    store = the_store()
    dist.broadcast(torch.ones(3), rank)
    store.set(f"{rank} has sent", "")
    store.wait([f"{r} has sent" for r in range(ranks)])
    with refused("broadcast", "root 0", "root 1"):
        dist.destroy_process_group()
    meet_again()


def late(rank, ranks):
    store = the_store()
    if rank == 0:
        store.wait([f"{r} gave up" for r in range(1, ranks)])
    with refused("rank 0" if rank > 0 else "rank"):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    store.set(f"{rank} gave up", "")
    meet_again()


def late_for_group(rank, ranks):
    """The timeout of a group holds when it is made, whatever the store's is."""
    from rondo.torch import _Meeting

    store = dist.HashStore()
    _Meeting(store, 0, 1, datetime.timedelta(seconds=1))(b"")
    with refused("within 0.2 s: ranks 1, 2 did not come"):
        _Meeting(store, 0, 3, datetime.timedelta(seconds=0.2))(b"")


def late_for_new_group(rank, ranks):
    """A rank that comes when the others have given up waits for no longer than the timeout says; and each kind of store says who is late."""
    from rondo.torch import _Meeting

    store = the_store()
    if rank > 0:
        store.wait(["gave up"])
    begun = time.monotonic()
    with refused("rank 1 did not come" if rank == 0 else ""):
        dist.new_group(timeout=datetime.timedelta(seconds=2))
    assert time.monotonic() - begun < 30
    store.set("gave up", "")
    meet_again()
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            for each in (dist.FileStore(f"{folder}/store", 3), dist.PrefixStore("p", dist.FileStore(f"{folder}/other", 3)), store):
                with refused("within 0.2 s: ranks 1, 2 did not come"):
                    _Meeting(dist.PrefixStore("late", each), 0, 3, datetime.timedelta(seconds=0.2))(b"")


def layouts(rank, ranks):
    """Ranks whose tensors lie in different orders are told so; in the same one it may be channels-last, without a copy."""
    def tensor(channels_last, dimensions=4):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        x = value(rank, 240).reshape((4, 3, 4, 5) if dimensions == 4 else (2, 2, 3, 4, 5))
        return x.to(memory_format=formats[dimensions] if channels_last else torch.contiguous_format)

    for dimensions, order in ((4, "0 2 3 1"), (5, "0 2 3 4 1")):
        shape = tensor(False, dimensions).shape
        dist.all_reduce(x := tensor(True, dimensions))
        same(x, total(ranks, 240).reshape(shape))
        dist.broadcast(x := tensor(True, dimensions), 1)
        same(x, value(1, 240).reshape(shape))
        dist.reduce(x := tensor(True, dimensions), 0)
        if rank == 0:
            same(x, total(ranks, 240).reshape(shape))
        for call in (dist.all_reduce, lambda x: dist.broadcast(x, 1), lambda x: dist.reduce(x, 1)):
            with refused(f"dimensions in the order {order}", "in C order"):
                dist.barrier()  # the error of ranks that are ahead ends what a slow rank is still in
                call(tensor(rank == 1, dimensions))
                dist.barrier()  # one that only sends may have ended
            meet_again()


def signalled(rank, ranks):
    """Handlers run while a call waits. The other rank comes only then, and the call goes on; or what a handler raises ends it."""
    store = the_store()

    def handle(number, frame):
        if frame.f_code.co_name not in ("_run", "_finish"):
            return  # not in a call of rondo's yet: the timer comes again
        signal.setitimer(signal.ITIMER_REAL, 0)
        if "raises" in way:
            sys.exit(7)
        store.set(way, "")

    for number in (signal.SIGTERM, signal.SIGALRM):
        for way in ("call", "wait", "call raises", "wait raises"):
            way = f"{way} {number}"
            former = signal.signal(number, handle)
            dist.barrier()
            if rank == 0:
                if number == signal.SIGALRM:
                    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)  # no second thread: the call runs in its caller
                else:
                    threading.Thread(target=interrupt, args=(threading.get_ident(), number)).start()
            else:
                store.wait([way])
            x = torch.ones(3)
            with refused("SystemExit") if "raises" in way and rank > 0 else contextlib.nullcontext():
                try:
                    if work := dist.all_reduce(x, async_op="wait" in way):
                        work.wait()
                    same(x, torch.full((3,), float(ranks)))
                except SystemExit as failure:
                    assert rank == 0 and failure.code == 7
                    store.set(way, "")
            signal.signal(number, former)
            if "raises" in way:
                meet_again()


def interrupt(thread, number=signal.SIGINT):
    """Once that thread waits in a call of rondo's."""
    while sys._current_frames()[thread].f_code.co_name not in ("_run", "_finish"):
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(os.getpid(), number)


def interrupted(rank, ranks):
    for asynchronous in (False, True):
        dist.barrier()
        store = the_store()
        if rank == 0:
            threading.Thread(target=interrupt, args=(threading.get_ident(),)).start()
            try:
                if work := dist.all_reduce(torch.ones(3), async_op=asynchronous):
                    work.wait()
                raise AssertionError("not interrupted")
            except KeyboardInterrupt:
                store.set(f"interrupted {asynchronous}", "")
        else:
            store.wait([f"interrupted {asynchronous}"])
            with refused("Ctrl-C"):
                dist.all_reduce(torch.ones(3))
        meet_again()


def restarted(rank, ranks):
    """torchrun starts all ranks again after one has failed, over the same store."""
    expect_sum()
    assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1", "the first start ends here"


def death_in_backward(rank, ranks):
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.2)
    ddp(torch.randn(4, 256)).sum().backward()
    dist.barrier()
    if rank == ranks - 1:
        first = list(net.parameters())[8]
        first.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with refused(f"rank {ranks - 1}"):
        ddp(torch.randn(4, 256)).sum().backward()


def shrunk_without(excluded, expected, **named):
    """What is left works, and is the default group. Returns how long it took."""
    begun = time.monotonic()
    dist.shrink_group(excluded, **named)
    took = time.monotonic() - begun
    assert dist.get_world_size() == len(expected) and dist.get_backend() == "rondo" and dist.group.WORLD.name() != "gloo"
    assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(len(expected)))
    dist.all_gather_object(found := [None] * len(expected), os.environ["RANK"])
    assert [int(r) for r in found] == expected, found
    torch.manual_seed(2)
    batches = torch.randn(4, 2 * len(expected), 6)
    mine = batches[:, 2 * dist.get_rank():2 * dist.get_rank() + 2]
    assert torch.allclose(trained(model(), mine, wrapped=True), trained(model(), batches), atol=1e-6)
    return took


def aborting_without(excluded, expected):
    """While the excluded rank waits for something else, the others have called an all_reduce. Returns how long it took."""
    store = the_store()
    if dist.get_rank() == excluded:
        with refused("SHRINK_ABORT"):
            dist.recv(torch.ones(1), 0)
        return None
    work = dist.all_reduce(torch.ones(3), async_op=True)
    store.set(f"called {dist.get_rank()}", "")
    store.wait([f"called {rank}" for rank in range(dist.get_world_size()) if rank != excluded])
    took = shrunk_without([excluded], expected, shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    with refused("SHRINK_ABORT"):
        work.wait()
    return took


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def shrinks_after_failure(rank, ranks):
    """Rank 1 dies in an all_reduce. Then rank 3 is left out, which is alive, and destroys its group when it learns of it."""
    other = dist.new_group()
    if rank == 1:
        dies()
    with refused("rank 1"):
        dist.all_reduce(torch.ones(3))
    shrunk_without([1], [0, 2, 3])
    with refused("aborted the process group"):
        dist.barrier(other)
    dist.barrier(dist.new_group())
    took = aborting_without(2, [0, 2])
    assert took is None or took < 30, took


def shrinks_waiting(rank, ranks):
    """Rank 3 keeps its group, which has failed: the others, more than it, wait for it as long as RONDO_BOOTSTRAP_TIMEOUT says."""
    took = aborting_without(3, [0, 1, 2])
    store = the_store()
    if rank == 3:
        store.wait(["shrunk"])
    elif rank == 0:
        store.set("shrunk", "")
    assert took is None or 6 <= took < 60, took


def shrinks_without_the_living(rank, ranks):
    """Rank 0 goes on alone, the others do not take part: they are more than it is. Before that, ranks differ in whom they exclude."""
    store = the_store()
    if rank != 1:
        with refused("do not exclude the same ones"):
            dist.shrink_group([1, 3] if rank == 2 else [1])
    dist.barrier()
    if rank == 0:
        shrunk_without([1, 2, 3], [0])
        store.set("shrunk", "")
    else:
        store.wait(["shrunk"])
        with refused("rank 0"):
            dist.barrier()
        store.set(f"done {rank}", "")
    if rank == 0:  # it has the store
        store.wait([f"done {other}" for other in range(1, ranks)])


def shrinks_differently(rank, ranks):
    """Rank 3 waits for rank 0, which does not mean it. Meanwhile ranks 0 and 2 each hold another one for the lowest, which does not come.
    All get an error, although the groups' timeout is half an hour."""
    first, second = dist.new_group(), dist.new_group()
    if rank in (0, 2):
        with refused("rank 0 would go on with ranks 0, 2, rank 2 with ranks 0, 2, 3"):
            dist.shrink_group([1, 3] if rank == 0 else [1], first)
        with refused("rank 0 would go on with ranks 0, 2, rank 2 with ranks 1, 2"):
            dist.shrink_group([1, 3] if rank == 0 else [0, 3], second)
    elif rank == 3:
        with refused("rank 3"):
            dist.shrink_group([1], first)
    dist.barrier()


def shrinks_after_deaths(rank, ranks):
    """Ranks 1 and 3 are dead, and nobody knows. Who is not excluded is named."""
    if rank in (1, 3):
        dies()
    with refused("ranks 0, 2 are left", "ranks 0, 2, 3"):
        dist.shrink_group([1])
    shrunk_without([1, 3], [0, 2])
    if rank == 2:
        dies()
    shrunk_without([1], [0])


def shrinks_without_store(rank, ranks):
    """Rank 0 has the store."""
    if rank == 0:
        dies()
    with refused("rank 0"):
        dist.barrier()
    with refused("shrink_group: the process group's store does not answer"):
        dist.shrink_group([0])


def shrinks_subgroup(rank, ranks):
    """No groups are made after it: torch counts them, and here ranks 1 and 2 have made one more."""
    part = dist.new_group([1, 2, 3])
    if rank in (1, 2):
        part = dist.shrink_group([2], part)  # rank 3, by its number in the group
        assert dist.get_process_group_ranks(part) == [1, 2]
        dist.broadcast(x := torch.full((1,), float(rank)), 2, group=part)
        assert x.item() == 2 == dist.get_world_size(part)
    dist.barrier()
    assert dist.get_world_size() == ranks


def forked(rank, ranks):
    work = dist.irecv(y := torch.zeros(3), (rank + 1) % ranks)
    work.get_future()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with refused("fork"):
            dist.all_reduce(torch.ones(3))
        for call in (work.wait, work.is_completed):
            with refused("fork"):
                call()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    expect_sum()
    dist.send(torch.ones(3), (rank - 1) % ranks)
    work.wait()
    same(y, torch.ones(3))


def ends_with_pending_callbacks(rank, ranks):
    """They run before the interpreter ends: a thread that it ended in C++ would abort the process."""
    if rank == 1:
        time.sleep(0.3)
    for _ in range(8):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.get_future().then(lambda _: (time.sleep(0.1), sys.stdout.write("called\n")))
    sys.exit()


def main():
    warnings.simplefilter("ignore")
    dist.set_debug_level_from_env()  # of a fork, which was not there when torch was imported
    if "--import" in sys.argv:
        sys.argv.remove("--import")
        import rondo.torch  # noqa: F401
    dist.init_process_group("rondo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for case in sys.argv[1:]:
        globals()[case](rank, ranks)
        print(f"{case}: ok", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
