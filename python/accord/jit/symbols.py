"""Sizes that may change: where their values come from, and for which an engine is made."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import torch

from accord.export_traced import TracedSymbol

LARGEST_SIZE = 1 << 24  # of a symbol that has no limit
MOST_TENSOR_BYTES = 1 << 46  # as src/engine/graph/graph_reader.cpp has it


def symbol_sources(placeholders: Sequence[torch.fx.Node]) -> dict[str, tuple[int, int | None]]:
    """Where each symbol's value can be read: an argument that is it, or a dimension of one."""
    sources: dict[str, tuple[int, int | None]] = {}
    for position, node in enumerate(placeholders):
        value = node.meta.get("val")
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for dim, size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                sources.setdefault(str(size.node.expr), (position, dim))
    return sources


def symbols_of(module: torch.fx.GraphModule) -> list[TracedSymbol]:
    """The sizes that may change, of a graph that torch.compile has traced, with the limits that it knows."""
    found: dict[str, TracedSymbol] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                limits = size.node.shape_env.var_to_range[size.node.expr]
                name = str(size.node.expr)
                found[name] = traced_symbol(name, limits)
    return list(found.values())


def traced_symbol(name: str, limits) -> TracedSymbol:
    """limits: torch's, which may have no end."""
    most = int(limits.upper) if limits.upper.is_Integer else sys.maxsize
    return TracedSymbol(name, name, max(1, int(limits.lower)), min(most, LARGEST_SIZE), most > LARGEST_SIZE)


def _sizes_in(document: dict) -> list[str]:
    """All sizes of a graph that depend on symbols."""
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
    """Keeps the symbols that the graph uses, with maxima at which no tensor is larger than one can be; gives those that
    are no dimension of an input."""
    used = {name for text in _sizes_in(document) for name in re.findall(r"[A-Za-z_]\w*", text)}
    document["symbols"] = [symbol for symbol in document["symbols"] if symbol["name"] in used]
    shapes = [value["shape"] for value in document["inputs"]]
    shapes += [output["shape"] for node in document["nodes"] for output in node["outputs"]]
    while any(_elements(shape, document["symbols"]) * 8 > MOST_TENSOR_BYTES for shape in shapes):
        wide = [symbol for symbol in document["symbols"] if symbol["max"] > symbol["min"]]
        if not wide:
            break  # the engine will say so
        for symbol in wide:
            symbol["max"] = max(symbol["min"], symbol["max"] // 2)
    shown = {size for value in document["inputs"] for size in value["shape"]}
    return [symbol["name"] for symbol in document["symbols"] if symbol["name"] not in shown]


def _elements(shape: list, symbols: list[dict]) -> int:
    largest = {symbol["name"]: symbol["max"] for symbol in symbols}
    elements = 1
    for size in shape:
        elements *= size if isinstance(size, int) else eval(size, {"__builtins__": {}}, largest)
    return elements
