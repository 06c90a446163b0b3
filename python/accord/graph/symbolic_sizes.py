"""Sizes over symbols as written in packages: sums of products, "2*batch*length + 1"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

# A size that determines its symbol's value; same as in src/engine/graph/derived_size.cpp.
_GIVES_SYMBOL = re.compile(r"(?:(\d+)\*)?([A-Za-z_]\w*)(?: \+ (-?\d+))?")


def evaluate(size: int | str, values: Mapping[str, int]) -> int:
    """Returns the size for these values of the symbols."""
    if isinstance(size, int):
        return size
    products = (term.split("*") for term in size.split(" + "))
    return sum(math.prod(values[one] if one in values else int(one) for one in product) for product in products)


def symbols_in(size: int | str) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*", str(size))


def derived_from(size: int | str) -> tuple[str, int, int] | None:
    """Returns the symbol, factor and offset of a size of the form factor * symbol + offset, or else None."""
    match = _GIVES_SYMBOL.fullmatch(str(size))
    if match is None:
        return None
    factor, symbol, offset = match.groups()
    return symbol, int(factor or 1), int(offset or 0)


def symbol_value(size: int, factor: int = 1, offset: int = 0) -> int:
    """Returns the symbol's value for which factor * symbol + offset is `size`."""
    return (size - offset) // factor


def read_symbol(values: Mapping, name: str, dim: int | None, factor: int = 1, offset: int = 0) -> int:
    """Returns the symbol's value from the named tensor's dimension or number; packages store such sources as lists."""
    return symbol_value(int(values[name]) if dim is None else values[name].shape[dim], factor, offset)


def sources_of(inputs: Sequence[dict]) -> dict[str, list]:
    """Returns where each symbol of a graph with these inputs can be read: name, dimension, and factor and offset
    unless they are trivial."""
    sources: dict[str, list] = {}
    for entry in inputs:
        for dim, size in enumerate(entry["shape"]):
            derived = derived_from(size)
            if derived is not None:
                symbol, *line = derived
                sources.setdefault(symbol, [entry["name"], dim, *(line if line != [1, 0] else [])])
    return sources
