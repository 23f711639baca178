#!/usr/bin/env python3
"""PyTorch on rondo in NCCL's place: collectives, messages, groups, a step of DistributedDataParallel and a CUDA graph, on two ranks.

    LD_PRELOAD=librondo-nccl.so torch_drop_in.py [--leave]
    torch_drop_in.py --device cpu --backend gloo      # what this program itself does, without a GPU

Prints a line for each part, `ok` or what went wrong, and ends with 0 only if all are well; with 77 and a sentence where there is no
PyTorch with CUDA and NCCL. Both ranks are on the first GPU where there is one, else each has its own. NCCL refuses two ranks on one GPU
in torch ("Duplicate GPU detected"), rondo does not: with one GPU, and without LD_PRELOAD, this program fails.
"""
import argparse
import ctypes
import datetime
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS, SKIPS, KILLED = 2, 77, 9  # KILLED: the exit code where a rank did not end by itself
PATIENCE = datetime.timedelta(seconds=20)  # of an operation, then torch's watchdog ends the rank
COUNT = 100_003


def value(rank, device, dtype=torch.float32, count=COUNT):
    """Small integers, whose sums are exact in bf16."""
    return (torch.arange(count, device=device) % 7 + 10 * (rank + 1)).to(dtype)


def total(device, dtype=torch.float32, count=COUNT):
    return sum(value(rank, device, count=count) for rank in range(RANKS)).to(dtype)


def same(found, expected):
    if not torch.equal(found, expected):
        raise AssertionError(f"{int((found != expected).sum())} of {expected.numel()} elements are wrong, as {found.flatten()[:4].tolist()}")


def library(rank, device):
    """An id of rondo's begins with its name."""
    made = torch.cuda.nccl.unique_id()[:5]
    if made != b"rondo":
        raise AssertionError(f"this NCCL is not rondo's: its id begins with {made}")


def all_reduce(dtype):
    def run(rank, device):
        mine = value(rank, device, dtype)
        dist.all_reduce(mine)
        same(mine, total(device, dtype))
    return run


def all_gather(rank, device):
    found = torch.empty(RANKS * COUNT, device=device)
    dist.all_gather_into_tensor(found, value(rank, device))
    same(found, torch.cat([value(each, device) for each in range(RANKS)]))


def reduce_scatter(rank, device):
    found = torch.empty(COUNT, device=device)
    dist.reduce_scatter_tensor(found, value(rank, device, count=RANKS * COUNT))
    same(found, total(device, count=RANKS * COUNT)[rank * COUNT:(rank + 1) * COUNT])


def broadcast(rank, device):
    mine = value(rank, device)
    dist.broadcast(mine, 1)
    same(mine, value(1, device))


def messages(rank, device):
    other = 1 - rank
    found = torch.empty(COUNT, device=device)
    both = [dist.P2POp(dist.isend, value(rank, device), other), dist.P2POp(dist.irecv, found, other)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    same(found, value(other, device))


def groups(rank, device):
    both = dist.new_group(list(range(RANKS)))
    alone = [dist.new_group([each]) for each in range(RANKS)][rank]
    for group, expected in ((both, total(device)), (alone, value(rank, device))):
        mine = value(rank, device)
        dist.all_reduce(mine, group=group)
        same(mine, expected)


def ddp(rank, device):
    """Gradients of two ranks' halves of a batch are one process's of the whole."""
    def model():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)

    torch.manual_seed(2)
    samples = torch.randn(RANKS * 16, 64).to(device)
    whole, divided = model(), DistributedDataParallel(model())
    whole(samples).square().mean().backward()
    divided(samples[rank * 16:(rank + 1) * 16]).square().mean().backward()
    for one, two in zip(whole.parameters(), divided.module.parameters()):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-6)


def cuda_graph(rank, device):
    mine, found = value(rank, device), torch.empty(COUNT, device=device)
    dist.all_reduce(found)  # what torch makes for the first operation cannot be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found.copy_(mine)
        dist.all_reduce(found)
    for factor in (1, 2, 3):
        mine.copy_(value(rank, device) * factor)
        graph.replay()
        torch.cuda.synchronize()
        same(found, total(device) * factor)


PARTS = {"all_reduce fp32": all_reduce(torch.float32), "all_reduce bf16": all_reduce(torch.bfloat16), "all_gather_into_tensor": all_gather,
         "reduce_scatter_tensor": reduce_scatter, "broadcast": broadcast, "batch_isend_irecv": messages, "new_group": groups, "DDP": ddp}
WITH_CUDA = {"NCCL is rondo": library, **PARTS, "CUDA graph": cuda_graph}


def work(arguments, rank):
    """A rank. Each part ends on all ranks before the next begins; rank 0 prints."""
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=2 * PATIENCE)
    dist.init_process_group(arguments.backend, store=dist.PrefixStore("torch", store), rank=rank, world_size=RANKS, timeout=PATIENCE)
    bad = []
    for name, part in (WITH_CUDA if cuda else PARTS).items():
        begin = time.monotonic()
        try:
            part(rank, device)
            if cuda:
                torch.cuda.synchronize()
            said = "ok"
        except Exception as error:  # noqa: BLE001: the next part may work
            said = f"rank {rank}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        store.set(f"{name}/{rank}", said)
        failures = [each for each in (store.get(f"{name}/{other}").decode() for other in range(RANKS)) if each != "ok"]
        bad += [f"{name}: {'; '.join(failures)}"] if failures else []
        if rank == 0:
            print(f"{name}: {'; '.join(failures) or 'ok'} ({time.monotonic() - begin:.2f} s)", flush=True)
    if bad and rank == 0:
        print(f"failed: {'; '.join(bad)}", flush=True)  # a report quotes the last line
    if not arguments.leave:
        dist.destroy_process_group()
    return 1 if bad else 0


def lacking(arguments):
    """Why it cannot run here; empty if it can."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        return "no PyTorch with CUDA here"
    return "this PyTorch has no NCCL" if arguments.backend == "nccl" and not dist.is_nccl_available() else ""


def preloaded():
    """torch.cuda.nccl.version() is torch's own number, whatever is preloaded."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL(None).ncclGetVersion(ctypes.byref(number))
    except AttributeError:
        return "no NCCL is preloaded"
    return f"ncclGetVersion {number.value}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--leave", action="store_true", help="end without destroy_process_group")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        return work(arguments, int(os.environ["RANK"]))
    if refusal := lacking(arguments):
        print(refusal)
        return SKIPS
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}; LD_PRELOAD={os.environ.get('LD_PRELOAD', '')}, {preloaded()}", flush=True)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(RANKS)}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**place, "RANK": str(rank)}) for rank in range(RANKS)]
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.05)
    end = time.monotonic() + 10  # after a rank that failed, the other may wait for it
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        time.sleep(0.05)
    for number, rank in enumerate(ranks):
        if rank.poll() is None:
            rank.kill()
        if (code := rank.wait()) not in (0, 1):
            print(f"rank {number} ended with {code}")
    codes = [rank.returncode for rank in ranks]
    return KILLED if min(codes) < 0 else 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
