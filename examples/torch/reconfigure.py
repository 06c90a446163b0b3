"""Training whose ranks come and go: each step of the job forms the group of the ranks that take part in it.

accord run -n 3 examples/torch/reconfigure.py

Three ranks train together, go on without the last one, and take it in again. The ranks hand each other their handles
through the launcher's store; any other way will do.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from character_model import batch, loss_of, make_model
from torch.nn.parallel import DistributedDataParallel

import accord.torch

STEPS_OF_A_PHASE = 5

# From torch 2.14 on, init_process_group(..., enable_reconfigure=True) does the same, and dist._reconfigure() as well.
options = accord.torch.Options(enable_reconfigure=True)
dist.init_process_group("accord", pg_options=options, timeout=timedelta(seconds=60))
me, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.distributed_c10d._get_default_store()


def form(phase: str, members: list[int]) -> None:
    store.set(f"{phase}/{me}", accord.torch.reconfigure_handle())
    handles = [store.get(f"{phase}/{member}").decode() for member in members]
    accord.torch.reconfigure(phase, handles)


model = make_model()
everyone = list(range(count))
for number, members in enumerate([everyone, everyone[:-1] or everyone, everyone]):
    if me in members:
        form(f"phase {number}", members)
        for tensor in model.state_dict().values():  # a rank that comes back learns what the others have
            dist.broadcast(tensor, 0)
        replica, optimizer = DistributedDataParallel(model), torch.optim.AdamW(model.parameters(), 3e-3)
        for step in range(STEPS_OF_A_PHASE):
            inputs, targets = batch(number * STEPS_OF_A_PHASE + step, part=dist.get_rank())
            optimizer.zero_grad()
            loss = loss_of(replica(inputs), targets)
            loss.backward()
            optimizer.step()
        dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"phase {number}: {dist.get_world_size()} ranks, loss {loss.item():.3f}", flush=True)
dist.barrier()
dist.destroy_process_group()
