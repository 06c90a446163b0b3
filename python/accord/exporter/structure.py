"""The calling convention of a plain package's model: converts torch's signature to the entries of the package."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument

from accord.graph.symbolic_sizes import sources_of, symbols_in
from accord.package.call_structure import CallStructure, constant_entry, spec_to_text


def structure_of(
    program: torch.export.ExportedProgram, document: dict, size_of: Callable[[torch.fx.Node], int | str]
) -> CallStructure:
    """document: of the graph built from the program. size_of: returns a node's number as the graph expresses sizes,
    and raises ExportError for any other number."""
    in_spec, out_spec = map(spec_to_text, program.call_spec)
    shapes = {entry["name"]: entry for entry in document["inputs"]}
    sources = sources_of(document["inputs"])
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [
        _input(spec.arg, shapes) for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT
    ]
    tensors = iter(document["outputs"])
    outputs = []
    for spec in program.graph_signature.output_specs:
        if isinstance(spec.arg, TensorArgument):
            outputs.append({"value": next(tensors)})
        elif isinstance(spec.arg, ConstantArgument):
            outputs.append({"constant": constant_entry(spec.arg.value)})
        else:
            outputs.append(_size(size_of(nodes[spec.arg.name]), sources))
    return CallStructure(inputs, outputs, in_spec, out_spec)


def _input(argument: TensorArgument | ConstantArgument, shapes: dict[str, dict]) -> dict:
    if isinstance(argument, ConstantArgument):
        return {"name": argument.name, "constant": constant_entry(argument.value)}
    entry = shapes[argument.name]
    return {**entry, "shape": [size if isinstance(size, int) else None for size in entry["shape"]]}


def _size(size: int | str, sources: dict[str, list]) -> dict:
    if isinstance(size, int):
        return {"constant": size}
    return {"size": size, "symbols": {symbol: sources[symbol] for symbol in symbols_in(size)}}
