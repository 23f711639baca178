#!/usr/bin/env python3
"""The models of rondo-train in PyTorch, trained by DistributedDataParallel over Gloo: the peer that compare_training.py times.

    pytorch_train.py --model gpt --batch 16 --json out.json
    pytorch_train.py --model mlp --layers 8 --width 1024 --batch 64 --ranks 2 --bucket-cap-mb 25 --json out.json

    pytorch_train.py --model gpt --device cuda --dtype bf16 --compile --layers 12 --width 768 --heads 12 --context 1024
                     --vocabulary 50257 --batch 16 --json out.json

Flags that rondo-train has too mean the same. One thread per rank; input is random and already in memory; the steps are timed on
rank 0 after --warm-up others. On a GPU there is one rank, bf16 is autocast over fp32 parameters, and a step is timed by events,
without reading its loss. JSON: {"config", "step_ms": median, "steps_ms": [...]}.
"""
import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"  # before torch is loaded

import torch
import torch.multiprocessing
from torch import distributed, nn
from torch.nn import functional as F

if not hasattr(F, "scaled_dot_product_attention") or not hasattr(torch.backends, "cpu"):
    raise SystemExit(f"PyTorch {torch.__version__} is too old for this comparison: it needs fused optimizers (2.4 or newer)")


class Mlp(nn.Module):
    """16 bytes are embedded in width / 16 numbers each; `layers` hidden layers; 256 logits."""
    context = 16

    def __init__(self, options):
        super().__init__()
        self.embedding = nn.Embedding(256, options.width // self.context)
        hidden = (part for _ in range(options.layers) for part in (nn.Linear(options.width, options.width), nn.ReLU(inplace=True)))
        self.layers = nn.Sequential(*hidden, nn.Linear(options.width, 256))

    def forward(self, tokens, targets):
        return F.cross_entropy(self.layers(self.embedding(tokens).flatten(1)), targets[:, 0])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        samples, context, width = x.shape
        q, k, v = (part.view(samples, context, self.heads, -1).transpose(1, 2)
                   for part in self.attention(self.ln_1(x)).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(samples, context, width))
        return x + self.narrow(F.gelu(self.wide(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 with a tied head."""

    def __init__(self, options):
        super().__init__()
        self.context = options.context
        self.wte = nn.Embedding(options.vocabulary, options.width)
        self.wpe = nn.Embedding(options.context, options.width)
        self.blocks = nn.Sequential(*(Block(options.width, options.heads) for _ in range(options.layers)))
        self.ln_f = nn.LayerNorm(options.width)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.ln_f(self.blocks(self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]))
        return F.cross_entropy((x @ self.wte.weight.T).flatten(0, 1), targets.flatten())


def time_on_cpu(step, options):
    times = []
    for number in range(options.warm_up + options.steps):
        begin = time.perf_counter()
        step().item()
        if number >= options.warm_up:
            times.append((time.perf_counter() - begin) * 1e3)
    return times


def time_on_gpu(step, options):
    ends = []
    for number in range(options.warm_up + options.steps):
        step()
        if number + 1 >= options.warm_up:
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in zip(ends, ends[1:])]


def reduce_after_backward(parameters, cap_bytes):
    """What DDP does during backward: the mean over ranks of all gradients, in buckets from the last parameter on."""
    bucket, size = [], 0
    for index, parameter in enumerate(reversed(parameters)):
        bucket.append(parameter.grad)
        size += parameter.grad.nbytes
        if size < cap_bytes and index + 1 < len(parameters):
            continue
        flat = torch._utils._flatten_dense_tensors(bucket)
        distributed.all_reduce(flat)
        flat /= distributed.get_world_size()
        for gradient, reduced in zip(bucket, torch._utils._unflatten_dense_tensors(flat, bucket)):
            gradient.copy_(reduced)
        bucket, size = [], 0


def train(rank, options, store):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = {"mlp": Mlp, "gpt": Gpt}[options.model](options).to(options.device)
    parameters = list(model.parameters())
    if options.optimizer == "adamw":
        optimizer = torch.optim.AdamW(parameters, lr=options.lr, fused=True)
    else:
        optimizer = torch.optim.SGD(parameters, lr=options.lr, momentum=0.9, fused=True)
    inner = model
    if options.ranks > 1:
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=options.bucket_cap_mb, gradient_as_bucket_view=True,
                                                    static_graph=True)
    if options.compile:
        model = torch.compile(model)
    vocabulary = options.vocabulary if options.model == "gpt" else 256
    tokens = torch.randint(vocabulary, (options.batch, inner.context), device=options.device)
    targets = torch.randint(vocabulary, (options.batch, inner.context), device=options.device)

    def step():
        forward = inner if options.no_overlap else model
        with torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = forward(tokens, targets)
        optimizer.zero_grad()
        if options.no_overlap:
            loss.backward()
            reduce_after_backward(parameters, options.bucket_cap_mb * 2**20)
        else:
            loss.backward()
        optimizer.step()
        return loss

    times = (time_on_gpu if options.device == "cuda" else time_on_cpu)(step, options)
    if rank == 0:
        config = dict(vars(options), torch=torch.__version__, cpu_capability=torch.backends.cpu.get_cpu_capability(),
                      parameters=sum(p.numel() for p in parameters))
        options.json.write_text(json.dumps({"config": config, "step_ms": statistics.median(times), "steps_ms": times}, default=str))
    if options.ranks > 1:
        distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["mlp", "gpt"], default="mlp")
    parser.add_argument("--layers", type=int, help="default: mlp 2, gpt 4")
    parser.add_argument("--width", type=int, help="default: mlp 512, gpt 128")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--bucket-cap-mb", type=float, default=25)
    parser.add_argument("--no-overlap", action="store_true", help="all-reduce after backward, without DDP")
    parser.add_argument("--rank", type=int, help="be this one of the ranks, and start no others; needs --store")
    parser.add_argument("--store", help="a file that all ranks see, for their rendezvous")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], help="default: gpt adamw, mlp sgd")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if options.device == "cuda" and options.ranks > 1:
        parser.error("--device cuda: on a GPU one rank is timed")
    options.layers = options.layers or {"mlp": 2, "gpt": 4}[options.model]
    options.width = options.width or {"mlp": 512, "gpt": 128}[options.model]
    options.optimizer = options.optimizer or {"mlp": "sgd", "gpt": "adamw"}[options.model]
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        if options.rank is not None:
            train(options.rank, options, options.store)
        elif options.ranks == 1:
            train(0, options, store)
        else:
            torch.multiprocessing.spawn(train, (options, store), nprocs=options.ranks)


if __name__ == "__main__":
    main()
