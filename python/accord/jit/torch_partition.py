"""A block that stays in PyTorch, as a torch.export program of its own that can be saved and called without the model.

Sizes are computed where they are needed: the nodes that compute numbers are copied into each block that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree

from accord.jit.partitioning import Block, as_traced, copy_for_torch, is_number


@dataclass
class TorchPartition:
    """`program` takes its weights and then `inputs`, and returns `outputs`: nodes of the original graph."""

    block: Block
    program: ExportedProgram
    inputs: list[torch.fx.Node]
    outputs: list[torch.fx.Node]


def torch_partition(
    block: Block,
    graph: torch.fx.Graph,
    weights: Mapping[torch.fx.Node, tuple[str, torch.Tensor]],
    ranges: Mapping,
    outputs: list[torch.fx.Node] | None = None,
) -> TorchPartition | None:
    """Returns the program of a block of `graph`, in which some nodes represent `weights`; None if nothing outside
    uses its results. ranges: of sizes, as in an ExportedProgram. outputs: numbers and weights that the block returns,
    if these are wanted."""
    inside = _with_its_numbers(block, graph, filter(is_number, outputs or ()))
    if outputs is None:
        outputs = [node for node in inside if _is_tensor(node) and _is_used_outside(node, inside)]
    if not outputs:
        return None
    sources = dict.fromkeys(one for node in inside for one in node.all_input_nodes if one not in inside)
    sources |= dict.fromkeys(node for node in outputs if node not in inside)
    modules = [one for one in sources if isinstance(one.meta.get("val"), torch.nn.Module)]
    held = [one for one in sources if one in weights]
    inputs = [one for one in sources if one not in weights and one not in modules]
    cut, known = torch.fx.Graph(), {}
    for node in held + inputs:
        known[node] = cut.placeholder(node.name)
        known[node].meta = dict(node.meta)
    given_by = dict(known)
    for node in inputs:
        if node.op != "placeholder" and _is_tensor(node):
            known[node] = as_traced(cut, known[node], node)
    for node in modules:
        known[node] = cut.node_copy(node)
    for node in inside:
        known[node] = copy_for_torch(cut, node, known)
    for node in outputs:
        if node in held:  # the caller may modify the result
            known[node] = cut.call_function(torch.ops.aten.clone.default, (known[node],))
            known[node].meta["val"] = node.meta["val"]
    cut.output(tuple(known[node] for node in outputs))
    specs = [InputSpec(InputKind.BUFFER, TensorArgument(given_by[node].name), weights[node][0], True) for node in held]
    given = [_argument(node)(given_by[node].name) for node in inputs]
    made = [_argument(node)(known[node].name) for node in outputs]
    call = ModuleCallSignature(
        given, made, _pytree.tree_structure((tuple(inputs), {})), _pytree.tree_structure((*made,))
    )
    root = torch.nn.Module()
    for node in modules:
        root.add_module(node.target, node.meta["val"])
    program = ExportedProgram(
        root,
        cut,
        ExportGraphSignature(
            [*specs, *(InputSpec(InputKind.USER_INPUT, one, None) for one in given)],
            [OutputSpec(OutputKind.USER_OUTPUT, one, None) for one in made],
        ),
        {weights[node][0]: weights[node][1].detach() for node in held},
        dict(ranges),
        [ModuleCallEntry("", call)],
        constants={},
    )
    return TorchPartition(block, program, inputs, outputs)


def runner_of(program: ExportedProgram) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Returns a function that calls the program of a TorchPartition with its inputs."""
    specs = program.graph_signature.input_specs
    weights = [program.state_dict[spec.target] for spec in specs if spec.kind == InputKind.BUFFER]
    module = program.graph_module
    return lambda *inputs: module(*weights, *inputs)


def _with_its_numbers(
    block: Block, graph: torch.fx.Graph, numbers: Iterable[torch.fx.Node]
) -> dict[torch.fx.Node, None]:
    """Returns the block's nodes without the numbers that it does not use, `numbers`, and all nodes that compute
    numbers for them, in the order of the graph."""
    found = {node for node in block.nodes if not is_number(node) and node.op == "call_function"}
    found.update(numbers)
    waiting = list(found)
    while waiting:
        for one in waiting.pop().all_input_nodes:
            if one.op == "call_function" and is_number(one) and one not in found:
                found.add(one)
                waiting.append(one)
    return {node: None for node in graph.nodes if node in found}


def _is_used_outside(node: torch.fx.Node, inside: Mapping[torch.fx.Node, None]) -> bool:
    """Returns True if a node outside needs the tensor. Numbers are computed where they are used, from their tensors."""
    return any(user not in inside or (is_number(user) and _is_used_outside(user, inside)) for user in node.users)


def _argument(node: torch.fx.Node) -> type:
    """Returns the class that a signature uses for the node's value."""
    kinds = (
        (torch.Tensor, TensorArgument),
        (torch.SymFloat, SymFloatArgument),
        (torch.SymBool, SymBoolArgument),
        (torch.SymInt, SymIntArgument),
    )
    return next(argument for kind, argument in kinds if isinstance(node.meta["val"], kind))


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
