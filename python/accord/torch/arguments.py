"""Reads and checks the arguments of torch's calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from accord._integers import integer, integers
from accord.torch.tensors import counts_of

Tensors = Sequence[torch.Tensor]


def options(kind: type, given: Any, timeout: timedelta | None = None, **fields: Any) -> Any:
    """Returns torch's options for a call. `given`: these options, or the argument in their place in a direct call."""
    if isinstance(given, kind):
        return given
    made = kind()
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    if timeout is not None:
        made.timeout = timeout
    return made


def root_of(given: Any, root: Any, call: str) -> int:
    """Returns the root of a direct call: `given` if that is a number in the place of torch's options."""
    is_number = given is not None and not hasattr(given, "rootRank")
    return integer(given if is_number else root, f"accord: the root of {call}")


def single(tensors: Tensors | torch.Tensor, call: str) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"accord: {call} takes one tensor, not {len(tensors)}")
    return tensors[0]


def list_of(tensors: Any, call: str) -> Tensors:
    """Returns the only list of tensors in a list of lists. A plain list of tensors is returned unchanged."""
    if len(tensors) == 1 and not isinstance(tensors[0], torch.Tensor):
        return tensors[0]
    if any(not isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ValueError(f"accord: {call} takes one list of tensors, not {len(tensors)}")
    return tensors


def check_parts(parts: Sequence, size: int, call: str, what: str) -> None:
    if len(parts) != size:
        raise ValueError(f"accord: {call} takes {size} {what}, one for each rank, not {len(parts)}")


def form_of(call: str, parts: Tensors) -> tuple[str, tuple]:
    """Returns the name of the call for parts with these counts, and its argument for them."""
    counts = counts_of(parts)
    if min(counts) == max(counts):
        return call, ()
    return f"{call}_v", (counts,)


def split_sizes(given: Any, what: str) -> list[int]:
    """Returns the split sizes. None and an empty list mean the same."""
    return [] if given is None else integers(given, f"accord: all_to_all: the {what} split sizes")


def split_counts(tensor: torch.Tensor, sizes: list[int], size: int, what: str, memory: torch.Tensor) -> list[int]:
    """Returns the number of elements of each of `size` parts of `memory`, the memory of `tensor`, whose first
    dimension is divided into `sizes`; without sizes, the parts are equal."""
    rows = tensor.size(0) if tensor.dim() > 0 else 1
    if not sizes:
        if rows % size != 0:
            raise ValueError(
                f"accord: all_to_all: the {what} has {rows} rows, which cannot be divided evenly among {size} ranks"
            )
        sizes = [rows // size] * size
    elif len(sizes) != size or min(sizes) < 0 or sum(sizes) != rows:
        raise ValueError(
            f"accord: all_to_all: {what} splits {sizes} for {size} ranks and {rows} rows; expected one size for each "
            "rank, adding up to the rows"
        )
    row = memory.numel() // rows if rows else 0
    return [count * row for count in sizes]
