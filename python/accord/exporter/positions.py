"""Where a language model gets its positions from.

An engine passes the position of each row, counted from 0 in its sequence, as an input. Most models of transformers
accept positions as position_ids. Decoders like BART's have no such argument: their position tables count the rows,
starting at the length of a cache that an engine does not have. While such a model is exported, its table reads the
engine's positions. Models like RoBERTa start counting after the id of their padding token.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

import torch


def takes_positions(model: torch.nn.Module) -> bool:
    """Returns True if forward() has position_ids."""
    return "position_ids" in inspect.signature(model.forward).parameters


def first_position(model: torch.nn.Module) -> int:
    """Returns the number that the model itself uses as position_ids of a sequence's first token."""
    for name, module in model.named_modules():
        is_table = name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding)
        if is_table and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


class GivenPositions:
    """The positions that position tables read. A separate object, because torch.export does not allow a module to
    have them as an attribute.
    """

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None


class PositionTable(torch.nn.Module):
    """Replaces a position table that would count rows with one that reads given positions."""

    def __init__(self, counting: torch.nn.Embedding, positions: GivenPositions):
        super().__init__()
        if _is_computed_table(counting):
            self.register_buffer("weight", counting.weights, persistent=False)
            self.offset = counting.padding_idx + 1
        else:
            self.weight = counting.weight
            self.offset = getattr(counting, "offset", 0)
        self.positions = positions

    def forward(self, *_, **__) -> torch.Tensor:
        return torch.nn.functional.embedding(self.positions.value + self.offset, self.weight)


def _counts_rows(module: torch.nn.Module) -> bool:
    counts = "past_key_values_length" in inspect.signature(type(module).forward).parameters
    return counts and (isinstance(module, torch.nn.Embedding) or _is_computed_table(module))


def _is_computed_table(module: torch.nn.Module) -> bool:
    """Returns True for a table in a buffer, whose positions begin after the id of the padding token (M2M100)."""
    return isinstance(getattr(module, "weights", None), torch.Tensor) and hasattr(module, "padding_idx")


@contextlib.contextmanager
def given_positions(model: torch.nn.Module, *, always: bool = False) -> Iterator[GivenPositions]:
    """Context in which the model's position tables that count rows read these positions instead. `always`: even if its
    forward() has position_ids."""
    replaced, positions = [], GivenPositions()
    try:
        for parent in list(model.modules()) if always or not takes_positions(model) else []:
            for name, module in list(parent.named_children()):
                if _counts_rows(module):
                    setattr(parent, name, PositionTable(module, positions))
                    replaced.append((parent, name, module))
        yield positions
    finally:
        for parent, name, module in replaced:
            setattr(parent, name, module)
