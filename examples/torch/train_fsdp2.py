"""Fully sharded training: each rank keeps its part of every parameter, gradient and moment, and fetches a block when
it is needed.

torchrun --nproc-per-node 2 examples/torch/train_fsdp2.py --checkpoint CHECKPOINT

Continues from the checkpoint, if there is one, with any number of ranks.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from character_model import batch, loss_of, make_model
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--checkpoint", type=Path)
options = parser.parse_args()

dist.init_process_group("accord")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = make_model()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def state(step: int) -> dict:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": torch.tensor(step)}


first = 0
if options.checkpoint and (options.checkpoint / ".metadata").exists():
    found = state(0)
    dcp.load(found, checkpoint_id=options.checkpoint)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    first = int(found["step"])

for step in range(first, first + options.steps):
    characters, following = batch(step, dist.get_rank())
    loss = loss_of(model(characters), following)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 20 == 0:
        dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
if options.checkpoint:
    dcp.save(state(first + options.steps), checkpoint_id=options.checkpoint)
dist.destroy_process_group()
