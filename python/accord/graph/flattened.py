"""Rows that a program flattens, computes one by one, and puts back into their shape, as norms over heads do: they are
computed in their shape.

A flattened dimension of tokens and heads has no contiguous part for each rank, so ranks could not share the heads.
"""

from __future__ import annotations

from accord.graph.arguments import read_by, renamed, with_new_names

VIEW = "aten.view.default"
ELEMENTWISE = {
    "aten.add.Tensor",
    "aten.sub.Tensor",
    "aten.mul.Tensor",
    "aten.div.Tensor",
    "aten.pow.Tensor_Scalar",
    "aten.rsqrt.default",
    "aten.sqrt.default",
    "aten.silu.default",
    "aten.sigmoid.default",
    "aten._to_copy.default",
}
MEAN = "aten.mean.dim"


class Unflattening:
    """Rewrites the nodes of a graph. Adds the values that it makes to `values`."""

    def __init__(self, nodes: list[dict], values: dict[str, dict], outputs: list[str]):
        self.given = nodes
        self.values = values
        self.outputs = set(outputs)
        self.in_shape: dict[str, str] = {}  # value [rows, width] -> the same value [.., width]
        self.views: dict[str, dict] = {}  # value [rows, width] that is not computed yet -> the node that makes it
        self.renamed: dict[str, str] = {}  # views that have a value's own shape: that value
        self.nodes: list[dict] = []

    def run(self) -> list[dict]:
        for node in self.given:
            if node["op"] == VIEW and self._flattens(node):
                continue
            read = read_by(node)
            flat = read & self.in_shape.keys()
            if flat and self._is_for_each_row(node, flat, read):
                self._compute_in_shape(node, flat)
            elif flat and node["op"] == VIEW:
                self._view_in_shape(node)
            else:
                self._add(node, flat)
        for name in self.views.keys() & self.outputs:
            self.nodes.append(with_new_names(self.views[name], self.renamed))
        return self.nodes

    def _add(self, node: dict, flat: set[str]) -> None:
        """Adds a node that reads flattened values as they are."""
        for name in sorted(flat & self.views.keys()):
            self.nodes.append(with_new_names(self.views.pop(name), self.renamed))
        self.nodes.append(with_new_names(node, self.renamed))

    def _shape(self, name: str) -> list:
        return self.values[name]["shape"]

    def _flattens(self, node: dict) -> bool:
        """Returns True if the node makes rows of a value, which are kept for later then."""
        source, (output,) = node["arguments"]["self"]["value"], node["outputs"]
        source = self.in_shape.get(source, source)
        given, (*leading, width) = self._shape(source), output["shape"]
        if len(leading) != 1 or not isinstance(width, int) or not isinstance(given[-1], int) or given[-1] % width:
            return False
        if len(given) + (given[-1] != width) < 3:
            return False
        source = self.renamed.get(source, source)
        if given[-1] != width:  # heads side by side
            heads = {**output, "name": f"{output['name']}_in_shape", "shape": [*given[:-1], given[-1] // width, width]}
            self.values[heads["name"]] = heads
            view = {"self": {"value": source}, "size": heads["shape"]}
            self.nodes.append({**node, "arguments": view, "outputs": [heads]})
            source = heads["name"]
        self.in_shape[output["name"]] = source
        self.views[output["name"]] = node
        return True

    def _is_for_each_row(self, node: dict, flat: set[str], read: set[str]) -> bool:
        """Returns True if the node computes each row by itself: all its inputs are such rows, or the same for all."""
        if node["op"] == MEAN:
            return node["arguments"]["dim"] in ([-1], [1]) and node["arguments"].get("keepdim", False)
        leading = {tuple(self._shape(self.in_shape[name])[:-1]) for name in flat}
        return (
            node["op"] in ELEMENTWISE and len(leading) == 1 and all(len(self._shape(name)) < 2 for name in read - flat)
        )

    def _compute_in_shape(self, node: dict, flat: set[str]) -> None:
        (output,) = node["outputs"]
        leading = self._shape(self.in_shape[min(flat)])[:-1]
        result = {**output, "name": f"{output['name']}_in_shape", "shape": [*leading, output["shape"][-1]]}
        arguments = node["arguments"]
        for name in flat:
            arguments = {key: renamed(value, name, self.in_shape[name]) for key, value in arguments.items()}
        if node["op"] == MEAN:
            arguments = {**arguments, "dim": [-1]}
        self.values[result["name"]] = result
        self.nodes.append(with_new_names({**node, "arguments": arguments, "outputs": [result]}, self.renamed))
        self.in_shape[output["name"]] = result["name"]
        view = {"self": {"value": result["name"]}, "size": output["shape"]}
        self.views[output["name"]] = {**node, "op": VIEW, "arguments": view}

    def _view_in_shape(self, node: dict) -> None:
        """Adds a view of rows as one of the value in its shape: nothing if that is the shape wanted."""
        source, (output,) = self.in_shape[node["arguments"]["self"]["value"]], node["outputs"]
        if self._shape(source) == output["shape"] and output["name"] not in self.outputs:
            self.renamed[output["name"]] = source
        else:
            arguments = {**node["arguments"], "self": {"value": source}}
            self.nodes.append(with_new_names({**node, "arguments": arguments}, self.renamed))
