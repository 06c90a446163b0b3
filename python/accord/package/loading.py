"""Checks that a written package can be loaded. It asks the loader of engines, so that export and load cannot
disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

import accord
from accord import _core
from accord.graph.errors import ExportError
from accord.graph.explanations import PYTORCH_PARTITIONS
from accord.package.sharding import ShardingPlan, TensorSharding

BATCH_GROUP = "dp"  # its ranks divide the batch; how many are possible depends on the inputs, too

Places = dict[str, tuple[int, int]]  # (rank, size) in each group


def check_loads(
    folder: Path, name: Path, tensors: Mapping[str, torch.Tensor], plan: ShardingPlan, part: dict | None
) -> None:
    """Raises ExportError if accord.load() would reject the package in `folder`, which will be named `name`. Tries one
    rank, and each of two ranks that share what the plan divides; for a part of a program, the part's own ranks."""
    for places in [_of_part(part)] if part else _of_plan(tensors, plan):
        try:
            _core.check_loads(folder, places)
        except (accord.Unsupported, accord.Corrupt, accord.InvalidArgument) as error:
            text = str(error).replace(str(folder), str(name))
            where = "".join(f', as rank {rank} of {size} in group "{group}"' for group, (rank, size) in places.items())
            advice = "give other sharding rules" if where and not part else PYTORCH_PARTITIONS
            raise ExportError(f"no engine can run this model{where}: {text}; {advice}") from error


def _of_part(part: dict) -> Places:
    return {group: (rank, size) for group, (rank, size) in part["places"].items()}


def _of_plan(tensors: Mapping[str, torch.Tensor], plan: ShardingPlan) -> Iterator[Places]:
    yield {}
    for group in plan.groups:
        divided = [(tensors[name].shape, one) for name, one in plan.tensors.items() if one.group == group]
        if group != BATCH_GROUP and all(_can_be_shared(shape, one) for shape, one in divided):
            yield from ({group: (rank, 2)} for rank in range(2))


def _can_be_shared(shape: torch.Size, sharding: TensorSharding) -> bool:
    """Returns True if two ranks would each get a part of the tensor."""
    return sharding.copies or -(-shape[sharding.dim] // sharding.unit) > 1
