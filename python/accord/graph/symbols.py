"""Sizes that may change: where their values come from, and the range that an engine is built for."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from accord.graph.symbolic_sizes import evaluate, sources_of, symbol_value, symbols_in
from accord.graph.traced import TracedSymbol

LARGEST_SIZE = 1 << 24  # of a symbol without a limit
MOST_TENSOR_BYTES = 1 << 46  # same limit as in src/engine/graph/graph_reader.cpp


@dataclass(frozen=True)
class SymbolSource:
    """Where a symbol's value can be read: an argument that equals factor * symbol + offset, or an argument's
    dimension of that length."""

    position: int
    dim: int | None
    factor: int = 1
    offset: int = 0

    def value(self, args: Sequence) -> int:
        size = int(args[self.position]) if self.dim is None else args[self.position].shape[self.dim]
        return symbol_value(size, self.factor, self.offset)

    def entry(self, name: str) -> list:
        """Returns the entry of a package; name: the argument's."""
        return [name, self.dim, *([] if _is_symbol(self) else [self.factor, self.offset])]

    def read_in(self, graph: torch.fx.Graph, argument: torch.fx.Node) -> torch.fx.Node:
        """Adds nodes to `graph` that compute the value."""
        size = argument
        if self.dim is not None:
            size = graph.call_function(torch.ops.aten.sym_size.int, (argument, self.dim))
        if self.offset:
            size = graph.call_function(operator.sub, (size, self.offset))
        return size if self.factor == 1 else graph.call_function(operator.floordiv, (size, self.factor))


def symbol_sources(placeholders: Sequence[torch.fx.Node]) -> dict[str, SymbolSource]:
    """Returns the source of each symbol that arguments reveal; a direct source is preferred."""
    found: dict[str, SymbolSource] = {}
    for position, node in enumerate(placeholders):
        for dim, size in _numbers_of(node):
            derived = derived_from(size)
            if derived is None:
                continue
            symbol, factor, offset = derived
            if symbol not in found or ((factor, offset) == (1, 0) and not _is_symbol(found[symbol])):
                found[symbol] = SymbolSource(position, dim, factor, offset)
    return found


def _is_symbol(source: SymbolSource) -> bool:
    return (source.factor, source.offset) == (1, 0)


def _numbers_of(node: torch.fx.Node) -> Iterator[tuple[int | None, object]]:
    """Yields the sizes of an argument with their dimensions, or the argument itself."""
    value = node.meta.get("val")
    yield from enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]


def derived_from(size: object) -> tuple[str, int, int] | None:
    """Returns the symbol, factor and offset of a size that is a symbol or linear in a single symbol: 2 * h + 1."""
    if not isinstance(size, torch.SymInt):
        return None
    expression = sympy.expand(size.node.expr)
    if len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    factor, offset = expression.coeff(symbol, 1), expression.coeff(symbol, 0)
    is_linear = factor.is_Integer and offset.is_Integer and expression == factor * symbol + offset
    return (str(symbol), int(factor), int(offset)) if is_linear and factor >= 1 else None


def symbols_of(module: torch.fx.GraphModule) -> list[TracedSymbol]:
    """Returns the sizes that may change in a graph traced by torch.compile, with the limits known to torch."""
    ranges = {}
    for node in module.graph.find_nodes(op="placeholder"):
        for _, size in _numbers_of(node):
            if derived_from(size) is not None:
                (symbol,) = size.node.expr.free_symbols
                ranges[symbol] = size.node.shape_env.var_to_range[symbol]
    return symbols_within(ranges)


def symbols_within(ranges: Mapping) -> list[TracedSymbol]:
    """Returns those of torch's symbols, with their limits, that engines can support as sizes."""
    found = (_traced_symbol(str(symbol), limits) for symbol, limits in ranges.items())
    return [symbol for symbol in found if symbol.min <= symbol.max]


def _traced_symbol(name: str, limits) -> TracedSymbol:
    """limits: torch's, which may be infinite. Engines are built for sizes from 1 to LARGEST_SIZE."""
    least = int(limits.lower) if limits.lower.is_Integer else -sys.maxsize  # a number may be negative
    most = int(limits.upper) if limits.upper.is_Integer else sys.maxsize
    return TracedSymbol(
        name,
        name,
        smallest_of(limits),
        min(most, LARGEST_SIZE),
        may_exceed=most > LARGEST_SIZE,
        may_fall_below=least < 1,
    )


def smallest_of(limits) -> int:
    """Returns the smallest size within torch's limits."""
    return max(1, int(limits.lower)) if limits.lower.is_Integer else 1


def _sizes_in(document: dict) -> list[str]:
    """Returns all sizes in a graph that depend on symbols."""
    found: list[str] = []

    def look(value) -> None:
        if isinstance(value, dict) and "symbolic" in value:
            found.append(value["symbolic"])
        elif isinstance(value, list):
            found.extend(item for item in value if isinstance(item, str))

    for value in (*document["inputs"], *document["parameters"]):
        look(value["shape"])
    for node in document["nodes"]:
        for argument in node["arguments"].values():
            look(argument)
        for output in node["outputs"]:
            look(output["shape"])
    return found


def limit_symbols(document: dict) -> list[str]:
    """Keeps the symbols that the graph uses, with maxima at which no tensor exceeds the size limit. Returns the
    symbols that no dimension of an input reveals."""
    used = {name for text in _sizes_in(document) for name in symbols_in(text)}
    document["symbols"] = [symbol for symbol in document["symbols"] if symbol["name"] in used]
    shapes = [value["shape"] for value in document["inputs"]]
    shapes += [output["shape"] for node in document["nodes"] for output in node["outputs"]]
    while any(_elements(shape, document["symbols"]) * 8 > MOST_TENSOR_BYTES for shape in shapes):
        wide = [symbol for symbol in document["symbols"] if symbol["max"] > symbol["min"]]
        if not wide:
            break  # the engine reports it
        for symbol in wide:
            symbol["max"] = max(symbol["min"], symbol["max"] // 2)
    shown = sources_of(document["inputs"])
    return [symbol["name"] for symbol in document["symbols"] if symbol["name"] not in shown]


def _elements(shape: list, symbols: list[dict]) -> int:
    largest = {symbol["name"]: symbol["max"] for symbol in symbols}
    elements = 1
    for size in shape:
        elements *= evaluate(size, largest)
    return elements
