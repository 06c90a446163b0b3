"""Where a language model takes its positions from.

An engine gives the position of each row, counted from 0 in its sequence, as an input. Most models of transformers
take that as position_ids. Decoders of the kind of BART have no such argument: their tables count the rows from the
length of a cache that an engine does not have. While one is exported, such a table reads the engine's positions.
Models of the kind of RoBERTa count from behind the id of their padding.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

import torch


def takes_positions(model: torch.nn.Module) -> bool:
    """Whether forward() has position_ids."""
    return "position_ids" in inspect.signature(model.forward).parameters


def first_position(model: torch.nn.Module) -> int:
    """What the model itself gives the first token of a sequence as position_ids."""
    for name, module in model.named_modules():
        is_table = name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding)
        if is_table and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


class GivenPositions:
    """What tables of positions read: of torch.export, no module may have this as an attribute of its own."""

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None


class PositionTable(torch.nn.Module):
    """A table of positions that would count rows, as one that reads the positions it was given."""

    def __init__(self, counting: torch.nn.Embedding, positions: GivenPositions):
        super().__init__()
        self.weight = counting.weight
        self.offset = getattr(counting, "offset", 0)
        self.positions = positions

    def forward(self, *_, **__) -> torch.Tensor:
        return torch.nn.functional.embedding(self.positions.value + self.offset, self.weight)


def _counts_rows(module: torch.nn.Module) -> bool:
    counts = "past_key_values_length" in inspect.signature(type(module).forward).parameters
    return counts and isinstance(module, torch.nn.Embedding)


@contextlib.contextmanager
def given_positions(model: torch.nn.Module) -> Iterator[GivenPositions]:
    """Within it those tables of the model that count rows read these positions."""
    replaced, positions = [], GivenPositions()
    try:
        for parent in [] if takes_positions(model) else list(model.modules()):
            for name, module in list(parent.named_children()):
                if _counts_rows(module):
                    setattr(parent, name, PositionTable(module, positions))
                    replaced.append((parent, name, module))
        yield positions
    finally:
        for parent, name, module in replaced:
            setattr(parent, name, module)
