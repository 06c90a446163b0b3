"""Pipeline-parallel training: each rank has some of the blocks; four parts of a batch are in flight at once (schedule
1F1B).

torchrun --nproc-per-node 2 examples/torch/train_pipeline.py
"""

import argparse

import torch
import torch.distributed as dist
from character_model import batch, loss_of, make_model
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
steps = parser.parse_args().steps

dist.init_process_group("accord")
rank, size = dist.get_rank(), dist.get_world_size()
model = make_model(blocks=2 * size)
mine = model[0 if rank == 0 else 2 * rank + 1 : 2 * rank + 3 if rank < size - 1 else len(model)]
stage = PipelineStage(mine, rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
optimizer = torch.optim.AdamW(mine.parameters(), lr=3e-3)
for step in range(steps):
    characters, following = batch(step)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(characters)
    elif rank == size - 1:
        schedule.step(target=following, losses=losses)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 20 == 0 and rank == size - 1:
        print(f"step {step + 1} loss {torch.stack(losses).mean().item():.4f}", flush=True)
dist.destroy_process_group()
