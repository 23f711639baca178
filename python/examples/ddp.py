#!/usr/bin/env python3
"""ddp.py [BACKEND]: the toy of PyTorch's tutorial on DistributedDataParallel. For rondo only the backend's name differs.

    torchrun --nproc-per-node 2 ddp.py          # or: rondo-run -n 2 -- python ddp.py
"""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def main():
    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "rondo")
    rank = dist.get_rank()
    torch.manual_seed(rank)  # DDP gives all ranks the parameters of rank 0

    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, labels = torch.randn(20, 10), torch.randn(20, 5)  # each rank's own
    for step in range(20):
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()  # and all-reduces the gradients
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}")

    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    same = all(torch.equal(mine, other) for other in all_ranks)
    print(f"rank {rank} of {dist.get_world_size()}: the replicas are {'equal' if same else 'DIFFERENT'}")
    dist.destroy_process_group()
    sys.exit(not same)


if __name__ == "__main__":
    main()
