"""Tensor-parallel training: the attention heads and the MLP's columns are divided among the ranks, which see the same
text.

torchrun --nproc-per-node 2 examples/torch/train_tensor_parallel.py

Runs on 1, 2 or 4 ranks, because there are four heads.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from character_model import HEADS, Block, batch, loss_of, make_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
steps = parser.parse_args().steps

dist.init_process_group("accord")
if HEADS % dist.get_world_size():
    sys.exit(f"{HEADS} heads cannot be divided among {dist.get_world_size()} ranks: start 1, 2 or {HEADS}")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
model = make_model()
plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
plan |= {name: RowwiseParallel() for name in ("out", "down")}
for layer in model:
    if isinstance(layer, Block):
        parallelize_module(layer, mesh, plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
for step in range(steps):
    characters, following = batch(step)
    loss = loss_of(model(characters), following)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 20 == 0 and dist.get_rank() == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
