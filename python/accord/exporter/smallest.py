"""Compares an exported program with its model at the smallest sizes, and the model with a repeated call of itself."""

from __future__ import annotations

import contextlib

import torch
from torch.export.graph_signature import InputKind

from accord.exporter.check import close
from accord.graph.errors import ExportError
from accord.graph.symbols import smallest_of

RAISE_MINIMUM = "raise the minimum of the dynamic dimensions, or export without them"


def user_inputs(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Returns a placeholder for each leaf of the model's arguments."""
    nodes = {node.name: node for node in program.graph.nodes}
    specs = program.graph_signature.input_specs
    return [nodes[spec.arg.name] for spec in specs if spec.kind == InputKind.USER_INPUT]


def check_smallest(
    model,
    program: torch.export.ExportedProgram,
    example_inputs: tuple,
    remedy: str = RAISE_MINIMUM,
) -> None:
    """Runs the program at the smallest sizes that it claims to support and compares the results with the model's:
    torch traces as if a dynamic size were never 1. `remedy`: what to do about a program that supports larger sizes
    only."""
    smallest = {symbol: smallest_of(limits) for symbol, limits in program.range_constraints.items()}
    leaves, nested = torch.utils._pytree.tree_flatten(example_inputs)
    narrowed = []
    for node, leaf in zip(user_inputs(program), leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            for dim, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt):
                    least = int(size.node.expr.xreplace(smallest))
                    leaf = leaf.narrow(dim, 0, min(least, leaf.shape[dim]))
        narrowed.append(leaf)
    shapes = ", ".join(str(list(leaf.shape)) for leaf in narrowed if isinstance(leaf, torch.Tensor))
    pairs = [(one, leaf) for one, leaf in zip(narrowed, leaves, strict=True) if isinstance(one, torch.Tensor)]
    narrower = any(one.shape != leaf.shape for one, leaf in pairs)

    def run(function, copied=torch.clone) -> list[torch.Tensor]:
        copies = [copied(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in narrowed]
        return _flat(function(*torch.utils._pytree.tree_unflatten(copies, nested)))

    try:
        expected, actual = run(model), run(program.module())
        with contextlib.suppress(Exception):
            run(model, torch.zeros_like)  # a model may reject zeros, and a model with state remembers them
        again = run(model)
    except Exception as error:
        if not narrower:
            raise
        raise ExportError(
            f"the model does not run at the smallest sizes its dimensions allow ({shapes}): {error}; {remedy}"
        ) from error
    if not _alike(expected, again):
        raise ExportError(
            "the model gives other values when it is called again with the same inputs: it keeps something from call to call, or "
            "draws random numbers, and an engine does neither; make what it keeps or draws an input"
        )
    if not _alike(expected, actual):
        if not narrower:
            remedy = "if that is rounding, leave this check out by check=False"
        raise ExportError(f"at the smallest sizes ({shapes}) the exported program differs from the model; {remedy}")


def _alike(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> bool:
    return len(expected) == len(actual) and all(map(_is_close, expected, actual))


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype in (torch.float16, torch.bfloat16):
        return close(one, other)
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def _flat(outputs) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
