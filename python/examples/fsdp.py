#!/usr/bin/env python3
"""fsdp.py [BACKEND]: trains a small transformer whose parameters are divided among the ranks, with FSDP2's fully_shard.

    torchrun --nproc-per-node 2 fsdp.py         # or: rondo-run -n 2 -- python fsdp.py

The transformer learns to repeat a sequence: after a separator it predicts the tokens before it.
"""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

VOCABULARY, HALF, WIDTH = 16, 8, 64


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY + 1, WIDTH)
        self.places = nn.Parameter(torch.randn(2 * HALF, WIDTH) / 8)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
                                    for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def batch(samples):
    """Tokens, a separator, and all but the last of the tokens again: the second half is to predict the first."""
    first = torch.randint(VOCABULARY, (samples, HALF))
    separator = torch.full((samples, 1), VOCABULARY)
    return torch.cat([first, separator, first[:, :-1]], 1), first


def main():
    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "rondo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same parameters on all ranks, before they are divided
    model = Transformer()
    parameters = sum(p.numel() for p in model.parameters())
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)  # its parameters are gathered when it runs
    fully_shard(model, mesh=mesh)
    here = sum(p.to_local().numel() for p in model.parameters())
    print(f"rank {rank} of {ranks} keeps {here} of {parameters} parameters")

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(1 + rank)  # other data on each rank
    for step in range(100):
        tokens, targets = batch(32)
        loss = F.cross_entropy(model(tokens)[:, HALF:].flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # and reduce-scatters the gradients
        optimizer.step()
        if step % 20 == 19:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1}: loss {mean.item() / ranks:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
