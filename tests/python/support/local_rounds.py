"""The training of the replicas of torchft_local.py, also for the test that computes their parameters in one process."""

import torch

ROUNDS, STEPS = 3, 4
NAMES = ("first", "second")


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def inner_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def outer_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.5, momentum=0.9, nesterov=True)


def loss(model: torch.nn.Module, step: int, name: str) -> torch.Tensor:
    """Each replica has its own batch."""
    inputs = torch.full((2, 4), (step + 1 + 10 * NAMES.index(name)) / 20)
    return model(inputs).square().mean()
