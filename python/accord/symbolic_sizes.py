"""Sizes over symbols as packages write them: sums of products, "2*batch*length + 1"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

# A size that gives its symbol a value, as src/engine/graph/derived_size.cpp has it.
_GIVES_SYMBOL = re.compile(r"(?:(\d+)\*)?([A-Za-z_]\w*)(?: \+ (-?\d+))?")


def evaluate(size: int | str, values: Mapping[str, int]) -> int:
    """The size where the symbols have these values."""
    if isinstance(size, int):
        return size
    products = (term.split("*") for term in size.split(" + "))
    return sum(math.prod(values[one] if one in values else int(one) for one in product) for product in products)


def symbols_in(size: int | str) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*", str(size))


def derived_from(size: int | str) -> tuple[str, int, int] | None:
    """The symbol, factor and offset of a size that is factor * symbol + offset; None for any other."""
    match = _GIVES_SYMBOL.fullmatch(str(size))
    if match is None:
        return None
    factor, symbol, offset = match.groups()
    return symbol, int(factor or 1), int(offset or 0)


def symbol_value(size: int, factor: int = 1, offset: int = 0) -> int:
    """The symbol's value where factor * symbol + offset is `size`."""
    return (size - offset) // factor


def read_symbol(values: Mapping, name: str, dim: int | None, factor: int = 1, offset: int = 0) -> int:
    """The same from the named tensor's dimension, or from a number: packages write such sources as lists."""
    return symbol_value(int(values[name]) if dim is None else values[name].shape[dim], factor, offset)


def sources_of(inputs: Sequence[dict]) -> dict[str, list]:
    """Where each symbol can be read, of a graph with these inputs: name, dimension, and factor and offset where they
    count."""
    sources: dict[str, list] = {}
    for entry in inputs:
        for dim, size in enumerate(entry["shape"]):
            derived = derived_from(size)
            if derived is not None:
                symbol, *line = derived
                sources.setdefault(symbol, [entry["name"], dim, *(line if line != [1, 0] else [])])
    return sources
