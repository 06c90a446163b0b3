"""Training runs that save and load checkpoints, for torch/test_checkpoints.py. Each function runs on every rank.

All ranks read the same batches, so a training run continues on a different number of ranks exactly as it would have
on the original number.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.nn.parallel import DistributedDataParallel
from training_runs import batch_of, loss_of, make_model, sharded

STEPS = 4


def made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = sharded() if kind == "fsdp2" else DistributedDataParallel(make_model())
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> list[float]:
    losses = []
    for step in range(first, first + STEPS):
        x, wanted = batch_of(step, 0)
        loss = loss_of(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def save(kind: str, path: str) -> list[float]:
    """Trains, saves a checkpoint and continues. Returns the losses after the save."""
    model, optimizer = made(kind)
    train(model, optimizer, 0)
    dcp.save(state_of(model, optimizer), checkpoint_id=path)
    return train(model, optimizer, STEPS)


def save_in_the_background(kind: str, path: str) -> list[float]:
    """Like save(), but saves while training continues. The save uses its own group, because two threads that
    share a group could make their calls in a different order on each rank."""
    group = dist.new_group()
    model, optimizer = made(kind)
    train(model, optimizer, 0)
    saved = dcp.async_save(state_of(model, optimizer), checkpoint_id=path, process_group=group)
    losses = train(model, optimizer, STEPS)
    saved.result()
    return losses


def load(kind: str, path: str) -> list[float]:
    """Continues training from a checkpoint and returns the losses."""
    model, optimizer = made(kind)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return train(model, optimizer, STEPS)


def whole_state(kind: str) -> list[float]:
    """Gathers the full state dict on every rank and broadcasts it from rank 0 again."""
    model, optimizer = made(kind)
    train(model, optimizer, 0)
    whole = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=whole)
    other, _ = made(kind)
    given = {name: tensor.clone() for name, tensor in state.items()} if dist.get_rank() == 0 else {}
    set_model_state_dict(other, given, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    after = get_model_state_dict(other, options=whole)
    assert state.keys() == after.keys() and all(torch.equal(after[name], state[name]) for name in state)
    return [float(tensor.sum()) for tensor in state.values()]
