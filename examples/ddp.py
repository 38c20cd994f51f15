"""A plain DDP training, instrumented in five lines. Run: torchrun --nproc-per-node 4 examples/ddp.py"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import megascope


def main() -> None:
    dist.init_process_group("gloo")
    megascope.init()
    rank, slow_rank = dist.get_rank(), int(os.environ.get("SLOW_RANK", "-1"))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(int(os.environ.get("STEPS", "60"))):
        megascope.step(step)
        with megascope.segment("data", kind="data"):
            batch = torch.randn(64, 256, generator=torch.Generator().manual_seed(step * 1000 + rank))
        with megascope.segment("forward"):
            loss = (model(batch) - batch).square().mean()
            if rank == slow_rank:
                time.sleep(0.02)
        with megascope.segment("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    megascope.shutdown()
    time.sleep(0.2)  # torch 2.13 aborts at exit if gloo's threads still hold Python objects of the last backward
    dist.destroy_process_group()


main()
