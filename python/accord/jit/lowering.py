"""From the graph that torch has traced to one that an engine likes: small rewrites, each of equal meaning."""

from __future__ import annotations

import operator
from collections import Counter

import torch

aten = torch.ops.aten


def lower(graph: torch.fx.Graph, all_views: bool) -> None:
    """All rewrites, in place. all_views: outputs that are views lie in memory as torch has traced them."""
    _conversions_of_aten(graph)
    _whole_again(graph)
    _join_nothing(graph)
    _products_to_linear(graph)
    _views_of_outputs_apart(graph, all_views)
    graph.eliminate_dead_code()


KEPT_VIEW = "accord_kept_view"  # in the meta of nodes


def _views_of_outputs_apart(graph: torch.fx.Graph, all_views: bool) -> None:
    """Outputs that are views get nodes of their own, which stay in PyTorch: those of inputs and those that share
    memory with another output, which copies would not, or all of them. torch makes views of inputs anew by the strides
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
    """`node` and those before it, the last one first, that give views of what is no view."""
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
    """Conversions of dtype that some of torch's passes write with an op of their own."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        node.target, node.args, node.kwargs = aten._to_copy.default, node.args[:1], {"dtype": node.args[1]}


# Of ops that give more than one tensor, of which only the first is used: what gives that one, by the names of its arguments.
_WHOLE = {
    aten.native_layer_norm.default: aten.layer_norm.default,
    aten._fused_rms_norm.default: aten.rms_norm.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default: aten.scaled_dot_product_attention.default,
}


def _whole_again(graph: torch.fx.Graph) -> None:
    """Norms and attention, where torch has taken them apart."""
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
    """cat of tensors of which some have no elements: without those, unless they decide the dtype."""
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        parts = [part for part in node.args[0] if 0 not in part.meta["val"].shape]
        if node.meta["val"].dtype not in {part.meta["val"].dtype for part in parts}:
            continue
        if len(parts) == 1:
            node.target, node.args, node.kwargs = aten.clone.default, (parts[0],), {}
        elif 0 < len(parts) < len(node.args[0]):
            node.args = (parts, *node.args[1:])


def _products_to_linear(graph: torch.fx.Graph) -> None:
    """mm and addmm with a weight that is turned around: linear, whose weight an engine packs once. torch.compile of DTensors
    writes them so."""
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
    """The placeholder of which `node` is the transpose."""
    if node.target is not aten.permute.default or list(node.args[1]) != [1, 0] or node.args[0].op != "placeholder":
        return None
    return node.args[0]
