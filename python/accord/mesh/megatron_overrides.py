"""Numbers that a program sets in place of those of its groups: Megatron's set_*() functions.

A program that plans a job, or builds one rank's part of a model, sets the values that the getters return. This also
works without groups. None removes a value, and destroy_model_parallel() removes all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import accord
from accord._integers import integer

__all__ = [
    "set_data_parallel_rank",
    "set_expert_model_parallel_rank",
    "set_expert_model_parallel_world_size",
    "set_expert_tensor_parallel_rank",
    "set_expert_tensor_parallel_world_size",
    "set_pipeline_model_parallel_rank",
    "set_pipeline_model_parallel_world_size",
    "set_tensor_model_parallel_rank",
    "set_tensor_model_parallel_world_size",
    "set_virtual_pipeline_model_parallel_rank",
    "set_virtual_pipeline_model_parallel_world_size",
]

VIRTUAL = "virtual"  # virtual stages of a rank's own pipeline

sizes: dict[str, int] = {}  # by name of the family
ranks: dict[str, int] = {}


def clear() -> None:
    sizes.clear()
    ranks.clear()


def _set_override(numbers: dict[str, int], family: str, name: str, value: Any) -> None:
    if value is None:
        numbers.pop(family, None)
    else:
        numbers[family] = integer(value, f"mesh: {name}", accord.InvalidArgument)


def _world_size(family: str) -> Callable[[int | None], None]:
    def set_value(world_size: int | None) -> None:
        """Sets the size that the getters return for the function's family. None: its group's size is returned again."""
        _set_override(sizes, family, "world_size", world_size)

    return set_value


def _rank(family: str) -> Callable[[int | None], None]:
    def set_value(rank: int | None) -> None:
        """Sets the rank that the getters return for the function's family. None: its group's rank is returned again."""
        _set_override(ranks, family, "rank", rank)

    return set_value


set_tensor_model_parallel_world_size = _world_size("tp")
set_tensor_model_parallel_rank = _rank("tp")
set_pipeline_model_parallel_world_size = _world_size("pp")
set_pipeline_model_parallel_rank = _rank("pp")
set_virtual_pipeline_model_parallel_world_size = _world_size(VIRTUAL)
set_data_parallel_rank = _rank("dp")
set_expert_model_parallel_world_size = _world_size("ep")
set_expert_model_parallel_rank = _rank("ep")
set_expert_tensor_parallel_world_size = _world_size("ep_tp")
set_expert_tensor_parallel_rank = _rank("ep_tp")


def set_virtual_pipeline_model_parallel_rank(rank: int | None) -> None:
    """Sets which of this rank's own virtual stages runs."""
    text = "set_virtual_pipeline_model_parallel_rank is deprecated; pass vp_stage to is_pipeline_first_stage and others"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    _set_override(ranks, VIRTUAL, "rank", rank)
