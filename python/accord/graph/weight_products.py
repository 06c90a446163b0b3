"""Products with a transposed weight, which a model computes without a linear layer: they become linear layers, so that
the weight is stored packed and sharding rules find it."""

from __future__ import annotations

MATRIX_PRODUCT, PERMUTE, LINEAR = "aten.mm.default", "aten.permute.default", "aten.linear.default"


def with_linear_layers(nodes: list[dict], tensor_of_value: dict[str, str]) -> list[dict]:
    """Returns the nodes of a graph with linear layers in place of such products. `tensor_of_value`: the names of stored
    tensors, by value."""
    transposed = {}  # value -> the weight of which it is the transposed
    for node in nodes:
        source = node["arguments"].get("self")
        if node["op"] == PERMUTE and node["arguments"]["dims"] == [1, 0] and source["value"] in tensor_of_value:
            transposed[node["outputs"][0]["name"]] = source["value"]

    def linear(node: dict) -> dict:
        weight = transposed.get(node["arguments"]["mat2"]["value"]) if node["op"] == MATRIX_PRODUCT else None
        if weight is None:
            return node
        arguments = {"input": node["arguments"]["self"], "weight": {"value": weight}}
        module = tensor_of_value[weight].removesuffix(".weight")
        return {**node, "op": LINEAR, "arguments": arguments, "module": module}

    return [linear(node) for node in nodes]
