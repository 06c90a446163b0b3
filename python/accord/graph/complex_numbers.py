"""Replaces complex numbers in a traced program with pairs of real ones, in a last dimension of 2, as rotary embeddings
use them. Engines have no complex dtypes. Calls that are not listed here stay, and are refused with their name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from accord.graph.insertion import Calls

aten = torch.ops.aten


def replace_complex_numbers(graph: torch.fx.Graph) -> None:
    pairs: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is aten._assert_tensor_metadata.default and node.args[0] in pairs:
            graph.erase_node(node)  # it would keep the complex numbers
            continue
        value = node.meta.get("val")
        is_complex = isinstance(value, torch.Tensor) and value.is_complex()
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None or not (is_complex or any(one in pairs for one in node.all_input_nodes)):
            continue
        arguments = [pairs.get(one, one) if isinstance(one, torch.fx.Node) else one for one in node.args]
        made = rule(Calls(node), node, *arguments)
        if is_complex:
            pairs[node] = made
        else:
            node.replace_all_uses_with(made)
    if pairs:
        graph.eliminate_dead_code()


def _pair(call: Calls, real: torch.fx.Node, imaginary: torch.fx.Node) -> torch.fx.Node:
    return call(aten.stack.default, [real, imaginary], -1)


def _parts(call: Calls, pair: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
    return call(aten.select.int, pair, -1, 0), call(aten.select.int, pair, -1, 1)


def _polar(call: Calls, _, length, angle):
    parts = (call(aten.mul.Tensor, length, call(op, angle)) for op in (aten.cos.default, aten.sin.default))
    return _pair(call, *parts)


def _product(call: Calls, node: torch.fx.Node, first, second):
    given = node.args
    are_complex = [isinstance(one, torch.fx.Node) and one.meta["val"].is_complex() for one in given]
    if not all(are_complex):
        pair, factor = (first, second) if are_complex[0] else (second, first)
        is_tensor = isinstance(factor, torch.fx.Node)
        return call(aten.mul.Tensor, pair, call(aten.unsqueeze.default, factor, -1) if is_tensor else factor)
    (a, b), (c, d) = _parts(call, first), _parts(call, second)
    real = call(aten.sub.Tensor, call(aten.mul.Tensor, a, c), call(aten.mul.Tensor, b, d))
    return _pair(call, real, call(aten.add.Tensor, call(aten.mul.Tensor, a, d), call(aten.mul.Tensor, b, c)))


def _along(call: Calls, node: torch.fx.Node, pair, dim=0, *others):
    """A call with a dimension, which is counted without that of the pairs."""
    dims = node.args[0].meta["val"].dim() + (node.target is aten.unsqueeze.default)
    return call(node.target, pair, dim % dims, *others)


def _sized(call: Calls, node: torch.fx.Node, pair, sizes):
    return call(node.target, pair, [*sizes, 2])


def _same(call: Calls, node: torch.fx.Node, pair, *_):
    return pair


_RULES: dict[object, Callable[..., torch.fx.Node]] = {
    aten.polar.default: _polar,
    aten.complex.default: lambda call, _, real, imaginary: _pair(call, real, imaginary),
    aten.view_as_complex.default: _same,
    aten.view_as_real.default: _same,
    aten.mul.Tensor: _product,
    **dict.fromkeys((aten.unsqueeze.default, aten.slice.Tensor, aten.select.int), _along),
    **dict.fromkeys((aten.view.default, aten.reshape.default, aten.expand.default), _sized),
    **dict.fromkeys((aten.clone.default, aten.contiguous.default, aten.alias.default), _same),
    **dict.fromkeys((aten.to.device, aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default), _same),
}
