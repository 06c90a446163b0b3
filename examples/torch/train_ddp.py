"""Data-parallel training: every rank has the model and reads its own part of the text.

torchrun --nproc-per-node 2 examples/torch/train_ddp.py
accord run -n 2 examples/torch/train_ddp.py
"""

import argparse

import torch
import torch.distributed as dist
from character_model import batch, generate, loss_of, make_model
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
steps = parser.parse_args().steps

dist.init_process_group("accord")
model = DistributedDataParallel(make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(steps):
    characters, following = batch(step, dist.get_rank())
    loss = loss_of(model(characters), following)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 20 == 0:
        dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
if dist.get_rank() == 0:
    print(repr(generate(model.module, "The ", 40)))
dist.destroy_process_group()
