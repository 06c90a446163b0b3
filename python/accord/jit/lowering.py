"""Rewrites a traced graph into a form that suits engines: small rewrites that preserve its meaning."""

from __future__ import annotations

import operator
from collections import Counter

import torch

aten = torch.ops.aten


def lower(graph: torch.fx.Graph, all_views: bool) -> None:
    """Applies all rewrites in place. all_views: outputs that are views keep the memory layout that torch traced."""
    _conversions_of_aten(graph)
    _whole_again(graph)
    _join_nothing(graph)
    _products_to_linear(graph)
    _views_of_outputs_apart(graph, all_views)
    graph.eliminate_dead_code()


KEPT_VIEW = "accord_kept_view"  # key in the meta of nodes


def _views_of_outputs_apart(graph: torch.fx.Graph, all_views: bool) -> None:
    """Gives outputs that are views nodes of their own, which stay in PyTorch: views of inputs, and views that share
    memory with another output, which copies would not; or all views. torch recreates views of inputs with the strides
    and offset that they have here."""
    (output,) = graph.find_nodes(op="output")
    chains = {node: views_to(node) for node in output.all_input_nodes}
    shared = Counter(chain[-1].args[0] if chain else node for node, chain in chains.items())
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node, chain in chains.items():
        if not chain:
            continue
        base = chain[-1].args[0]
        if not (all_views or shared[base] > 1 or base.op == "placeholder"):
            continue
        with graph.inserting_before(output):
            for one in reversed(chain):
                if one not in copies:
                    copies[one] = graph.node_copy(one, lambda given: copies.get(given, given))
                    copies[one].meta[KEPT_VIEW] = True
        output.replace_input_with(node, copies[node])


def views_to(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Returns `node` and the preceding nodes that return views, last first, up to one that does not."""
    chain = []
    while _gives_view(node):
        chain.append(node)
        node = node.args[0]
    return chain


def _gives_view(node: torch.fx.Node) -> bool:
    if node.target is operator.getitem:
        return _gives_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _conversions_of_aten(graph: torch.fx.Graph) -> None:
    """Replaces dtype conversions that some of torch's passes write with an op of their own."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        node.target, node.args, node.kwargs = aten._to_copy.default, node.args[:1], {"dtype": node.args[1]}


# Ops with several results, of which only the first is used: the op that computes that one, with the names of its
# arguments.
_WHOLE = {
    aten.native_layer_norm.default: aten.layer_norm.default,
    aten._fused_rms_norm.default: aten.rms_norm.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default: aten.scaled_dot_product_attention.default,
}


def _whole_again(graph: torch.fx.Graph) -> None:
    """Recombines norms and attention that torch has decomposed."""
    for parts, whole in _WHOLE.items():
        for node in graph.find_nodes(op="call_function", target=parts):
            if any(user.args[1] != 0 for user in node.users):
                continue
            schema = [argument.name for argument in parts._schema.arguments]
            given = {**dict(zip(schema, node.args, strict=False)), **node.kwargs}
            names = [argument.name for argument in whole._schema.arguments]
            for user in list(node.users):
                with graph.inserting_before(node):
                    made = graph.call_function(whole, (), {name: given[name] for name in names if name in given})
                made.meta = {**node.meta, "val": user.meta["val"]}
                user.replace_all_uses_with(made)
                graph.erase_node(user)
            graph.erase_node(node)


def _join_nothing(graph: torch.fx.Graph) -> None:
    """Drops tensors without elements from cat, unless they determine the dtype."""
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        parts = [part for part in node.args[0] if 0 not in part.meta["val"].shape]
        if node.meta["val"].dtype not in {part.meta["val"].dtype for part in parts}:
            continue
        if len(parts) == 1:
            node.target, node.args, node.kwargs = aten.clone.default, (parts[0],), {}
        elif 0 < len(parts) < len(node.args[0]):
            node.args = (parts, *node.args[1:])


def _products_to_linear(graph: torch.fx.Graph) -> None:
    """Turns mm and addmm with a transposed weight into linear, whose weight an engine packs once. torch.compile
    writes linear layers of DTensors this way."""
    for target in (aten.mm.default, aten.addmm.default):
        for node in list(graph.find_nodes(op="call_function", target=target)):
            bias = node.args[0] if target is aten.addmm.default else None
            product = node.args if bias is None else node.args[1:]
            weight = _turned_around(product[1])
            if weight is None or node.kwargs or (bias is not None and bias.meta["val"].dim() != 1):
                continue
            with graph.inserting_before(node):
                linear = graph.call_function(aten.linear.default, (product[0], weight, *([bias] if bias else [])))
            linear.meta = dict(node.meta)
            node.replace_all_uses_with(linear)
            graph.erase_node(node)


def _turned_around(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the placeholder that `node` is the transpose of, or None."""
    if node.target is not aten.permute.default or list(node.args[1]) != [1, 0] or node.args[0].op != "placeholder":
        return None
    return node.args[0]
