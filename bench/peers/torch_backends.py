#!/usr/bin/env python3
"""PyTorch's collectives and training steps on two c10d backends, in one job: the first of --backends beside the others.

    torch_backends.py --report ../results/DATE-MACHINE-pytorch.md --json FILE     # rondo beside Gloo
    torch_backends.py --quick --backends gloo,gloo                                # does it run?

Each rank has a process group of every backend. After a check of each result come --rounds rounds, in which every backend has a batch in
turn; ratios are taken within a round. A batch's time is the slowest rank's. Ranks have one thread each, and are not pinned. rondo is
measured on plain tensors and on library memory (rondo.empty). Needs PyTorch 2.15.
"""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "scripts"), str(pathlib.Path(__file__).resolve().parent)]
import origin
from tables import markdown_of, size_text

import pytorch_train  # first: it sets how many threads PyTorch has
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

# {name: (the call, which buffers are larger by the number of ranks)}; x is the input, y the output.
COLLECTIVES = {
    "all_reduce": (lambda x, y, group: dist.all_reduce(x, group=group), ""),
    "all_gather_into_tensor": (lambda x, y, group: dist.all_gather_into_tensor(y, x, group=group), "y"),
    "reduce_scatter_tensor": (lambda x, y, group: dist.reduce_scatter_tensor(y, x, group=group), "x"),
    "all_to_all_single": (lambda x, y, group: dist.all_to_all_single(y, x, group=group), "xy"),
    "broadcast": (lambda x, y, group: dist.broadcast(x, 0, group=group), ""),
}
MLP = argparse.Namespace(model="mlp", layers=8, width=1024, batch=64)
TRANSFORMER = argparse.Namespace(model="gpt", layers=6, width=384, heads=6, context=64, vocabulary=256, batch=4)  # 10.8 M parameters
STEPS = {  # {name: (model, divided by FSDP2, compressed)}
    "DDP, MLP 8 x 1024, batch 64": (MLP, False, False),
    "DDP, the same, bf16_compress_hook": (MLP, False, True),
    "DDP, transformer of 10.8 M parameters": (TRANSFORMER, False, False),
    "FSDP2, the same transformer": (TRANSFORMER, True, False),
}


class Contender:
    """A backend with a kind of memory."""

    def __init__(self, name, backend, group, memory):
        self.name, self.backend, self.group, self.memory = name, backend, group, memory

    def empty(self, count):
        if self.memory == "plain":
            return torch.empty(count)
        import rondo

        return rondo.empty(count, torch.float32)


def contenders_of(backends):
    found = []
    for number, backend in enumerate(backends):
        group = dist.new_group(backend=backend)
        name = backend if backend not in backends[:number] else f"{backend} {number + 1}"
        memories = ("plain", "library") if backend == "rondo" else ("plain",)
        found += [Contender(f"{name} {memory}" if len(memories) > 1 else name, number, group, memory) for memory in memories]
    return found


def values(rank, count):
    """Integers, so that a missing, doubled or misplaced part gives another number."""
    return ((rank + 1) * 10 + torch.arange(count) % 7).float()


def expected(collective, count, rank, ranks):
    """What a rank's result is, where `count` elements are a rank's part (of blocks) or all."""
    if collective == "all_reduce":
        return sum(values(r, count) for r in range(ranks))
    if collective == "broadcast":
        return values(0, count)
    if collective == "all_gather_into_tensor":
        return torch.cat([values(r, count) for r in range(ranks)])
    block = slice(rank * count, (rank + 1) * count)
    parts = [values(r, count * ranks)[block] for r in range(ranks)]
    return sum(parts) if collective == "reduce_scatter_tensor" else torch.cat(parts)


def slowest(seconds):
    """The largest of all ranks, of each of these numbers."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def seconds_of(operation, repeats):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        operation()
    return time.perf_counter() - begin


def operation_of(contender, collective, size, rank, ranks):
    """A call on buffers of its own, after one whose result was compared with what it should be."""
    call, larger = COLLECTIVES[collective]
    count = max(1, size // 4 // (ranks if larger else 1))
    x, y = (contender.empty(count * (ranks if side in larger else 1)) for side in "xy")
    x.copy_(values(rank, x.numel()))
    call(x, y, contender.group)
    if not torch.equal(y if larger else x, expected(collective, count, rank, ranks)):
        raise SystemExit(f"{contender.name}: a wrong result of {collective} of {size} bytes on rank {rank}")
    x.zero_()  # sums in place stay finite
    return lambda: call(x, y, contender.group)


def measure_collective(collective, size, contenders, options, rank):
    """{contender: microseconds of each round}"""
    operations = [operation_of(each, collective, size, rank, options.ranks) for each in contenders]
    repeats = []
    for operation in operations:
        seconds_of(operation, 3)
        once = slowest([seconds_of(operation, 3) / 3])[0]
        repeats.append(max(1, min(20000, round(options.batch_ms / 1e3 / once))))
    rounds = {each.name: [] for each in contenders}
    for turn in range(options.rounds):
        order = [(i + turn) % len(contenders) for i in range(len(contenders))]
        times = slowest([seconds_of(operations[i], repeats[i]) / repeats[i] for i in order])
        for i, seconds in zip(order, times):
            rounds[contenders[i].name].append(seconds * 1e6)
    return rounds


class Training:
    """A model that is trained on one backend."""

    def __init__(self, shape, sharded, compressed, group, rank):
        torch.manual_seed(1)
        self.model = {"mlp": pytorch_train.Mlp, "gpt": pytorch_train.Gpt}[shape.model](shape)
        context, vocabulary = self.model.context, getattr(shape, "vocabulary", 256)
        if sharded:
            mesh = DeviceMesh.from_group(group, "cpu")
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
            if group._get_backend(torch.device("cpu")).supports_tensor_alloc(torch.device("cpu")):
                self.model.set_allocate_memory_from_process_group_for_comm(True)
        else:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model, process_group=group, gradient_as_bucket_view=True)
        if compressed:
            self.model.register_comm_hook(group, default_hooks.bf16_compress_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        torch.manual_seed(2 + rank)
        self.tokens = torch.randint(vocabulary, (shape.batch, context))
        self.targets = torch.randint(vocabulary, (shape.batch, context))

    def step(self):
        loss = self.model(self.tokens, self.targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def measure_step(name, contenders, options, rank):
    """{backend: milliseconds of each round}. The losses of all must be equal but for rounding."""
    own = list({each.backend: each for each in contenders}.values())
    trainings = [Training(*STEPS[name], each.group, rank) for each in own]
    losses = [[training.step() for _ in range(3)][-1] for training in trainings]
    if max(losses) - min(losses) > 1e-3 * max(losses):
        raise SystemExit(f"{name}: the backends' losses are {losses}")
    rounds = {each.name.removesuffix(" library"): [] for each in own}
    for turn in range(options.rounds):
        order = [(i + turn) % len(own) for i in range(len(own))]
        times = slowest([seconds_of(trainings[i].step, options.steps) / options.steps for i in order])
        for i, seconds in zip(order, times):
            rounds[list(rounds)[i]].append(seconds * 1e3)
    return rounds


def rank_main(rank, options, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    contenders = contenders_of(options.backends)
    collectives, steps = {name: {} for name in options.collectives}, {}
    for name in options.collectives:
        for size in options.sizes:
            collectives[name][size] = measure_collective(name, size, contenders, options, rank)
            if rank == 0:
                print(f"{name}, {size_text(size)}", file=sys.stderr, flush=True)
    for name in STEPS if options.steps else ():
        steps[name] = measure_step(name, contenders, options, rank)
        if rank == 0:
            print(name, file=sys.stderr, flush=True)
    if rank == 0:
        pathlib.Path(folder, "result.json").write_text(json.dumps({"collectives": collectives, "steps": steps}))
    dist.barrier()
    dist.destroy_process_group()


def rows_of(measured, own):
    """Cells: the median of each of `own`, the contenders of the first backend; of each other its median and the ratios to them."""
    lines = []
    for title, rounds in measured.items():
        cells = [title, *(f"{statistics.median(rounds[name]):.2f}" for name in own)]
        for name in rounds:
            if name not in own:
                ratios = [statistics.median(peer / mine for mine, peer in zip(rounds[label], rounds[name])) for label in own]
                cells.append(f"{statistics.median(rounds[name]):.2f} ({' / '.join(f'{ratio:.2f}' for ratio in ratios)})")
        lines.append(cells)
    return lines


def tables_of(result, first):
    text = ""
    for collective, sizes in result["collectives"].items():
        names = list(next(iter(sizes.values())))
        own = [name for name in names if name in (first, f"{first} plain", f"{first} library")]
        lines = rows_of({size_text(int(size)): rounds for size, rounds in sizes.items()}, own)
        text += f"{collective}, microseconds:\n\n{markdown_of(['size', *names], lines)}\n"
    if result["steps"]:
        names = list(next(iter(result["steps"].values())))
        own = [name for name in names if name in (first, f"{first} plain")]
        text += f"A step, milliseconds:\n\n{markdown_of(['step', *names], rows_of(result['steps'], own))}"
    return text


def report_of(tables, options):
    return (f"# PyTorch on {' and '.join(options.backends)}, {options.ranks} ranks\n\n"
            f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC\n- commit: {origin.commit()}\n"
            f"- machine: {origin.machine()}\n- PyTorch {torch.__version__}\n"
            f"- command: `{shlex.join(['bench/peers/torch_backends.py', *sys.argv[1:]])}`\n\nMedians of {options.rounds} interleaved "
            f"rounds; in brackets how many times as fast {options.backends[0]} is: on plain / library memory, or in a step.\n\n{tables}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", type=lambda text: text.split(","), default=["rondo", "gloo"])
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=list(COLLECTIVES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch-ms", type=float, default=20)
    parser.add_argument("--steps", type=int, default=3, help="of training in a round; 0: none are measured")
    parser.add_argument("--quick", action="store_true", help="three sizes, two rounds: a test that it runs")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path)
    options = parser.parse_args()
    if unknown := [name for name in options.collectives if name not in COLLECTIVES]:
        parser.error(f"--collectives: no '{unknown[0]}'; there are {', '.join(COLLECTIVES)}")
    options.sizes = [8 * 4**i for i in range(12)] + [64 << 20]
    if options.quick:
        options.sizes, options.rounds, options.batch_ms, options.steps = [8, 4096, 1 << 20], 2, 1, min(1, options.steps)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (options, folder), nprocs=options.ranks)
        result = json.loads(pathlib.Path(folder, "result.json").read_text())
    tables = tables_of(result, options.backends[0])
    print(tables)
    if options.json:
        options.json.write_text(json.dumps({"ranks": options.ranks, "torch": torch.__version__, **result}, indent=1) + "\n")
    if options.report:
        options.report.write_text(report_of(tables, options))


if __name__ == "__main__":
    main()
