"""Tensors that a program joins and splits again at the same places, as fused layers do: the original parts are used.

Between the two there may be ops that compute the elements of the joined dimension each by itself, such as an
activation, or the causal convolution of a state space model. They become one op for each part. So a rank's share of a
fused layer is its share of each part.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from accord.graph.arguments import read_by, renamed, values_in, with_new_names

CAT, SPLIT, SLICE = "aten.cat.default", "aten.split_with_sizes.default", "aten.slice.Tensor"
CONVOLUTION = "accord.causal_convolution.default"
STATE_OPS = (CONVOLUTION, "accord.linear_recurrence.default", "accord.wkv.default")
PERMUTE, SELECT, UNSQUEEZE = "aten.permute.default", "aten.select.int", "aten.unsqueeze.default"
MULTIPLY = "aten.mul.Tensor"
# Ops that compute each element of their one tensor by itself.
ELEMENTWISE = {
    "aten.silu.default",
    "aten.gelu.default",
    "aten.relu.default",
    "aten.sigmoid.default",
    "aten.tanh.default",
    "aten._to_copy.default",
}


@dataclass(frozen=True)
class Joined:
    """A value whose dimension `dim` consists of `parts`, values of these sizes there."""

    dim: int
    parts: list[str]
    sizes: list[int]

    def seams(self) -> list[int]:
        return list(itertools.accumulate(self.sizes, initial=0))


class Separation:
    """Rewrites the nodes of a graph. Adds the values that it makes to `values`; values in `outputs` stay."""

    def __init__(self, nodes: list[dict], values: dict[str, dict], outputs: list[str]):
        self.given = nodes
        self.values = values
        self.outputs = set(outputs)
        self.readers: dict[str, list[dict]] = {}
        for node in nodes:
            for name in read_by(node):
                self.readers.setdefault(name, []).append(node)
        self.joined: dict[str, Joined] = {}
        self.renamed: dict[str, str] = {}  # results of splits: the parts that take their place
        self.nodes: list[dict] = []

    def run(self) -> list[dict]:
        for node in self.given:
            node = with_new_names(node, self.renamed)
            name = next((name for name in read_by(node) if name in self.joined), None)
            if name is None or not self._leads_to_splits(node, name, self.joined[name].dim, self.joined[name].seams()):
                self._add(node)
            elif (cuts := self._cuts(node, name, self.joined[name].dim)) is not None:
                for output, (begin, end) in zip(node["outputs"], itertools.pairwise(cuts), strict=True):
                    self.renamed[output["name"]] = self._between(self.joined[name], begin, end, node, output)
            else:
                self._compute_parts(node, name)
        return _with_numbered_states(self.nodes)

    def _add(self, node: dict) -> None:
        self.nodes.append(node)
        if node["op"] != CAT:
            return
        (output,) = node["outputs"]
        parts = node["arguments"]["tensors"].get("values", [])
        dim = node["arguments"].get("dim", 0) % len(output["shape"])
        sizes = [self.values[part]["shape"][dim] for part in parts]
        if all(isinstance(size, int) for size in sizes):
            self.joined[output["name"]] = Joined(dim, parts, sizes)

    def _leads_to_splits(self, node: dict, name: str, dim: int, seams: list[int]) -> bool:
        """Returns True if the node splits the value at such places of the dimension, or if all that its result is used
        for does."""
        cuts = self._cuts(node, name, dim)
        if cuts is not None:
            stays = any(output["name"] in self.outputs for output in node["outputs"])
            return set(cuts) <= set(seams) and not stays
        after = self._dim_after(node, name, dim)
        if after is None:
            return False
        result = node["outputs"][0]["name"]
        readers = self.readers.get(result, [])
        return (
            result not in self.outputs
            and bool(readers)
            and all(self._leads_to_splits(reader, result, after, seams) for reader in readers)
        )

    def _cuts(self, node: dict, name: str, dim: int) -> list[int] | None:
        """Returns the places between which the results of a split lie; None if the node is no split of the value in
        this dimension."""
        arguments, shape = node["arguments"], self.values[name]["shape"]
        if node["op"] not in (SPLIT, SLICE) or arguments.get("dim", 0) % len(shape) != dim:
            return None
        if node["op"] == SPLIT:
            sizes = arguments["split_sizes"]
            return (
                list(itertools.accumulate(sizes, initial=0)) if all(isinstance(size, int) for size in sizes) else None
            )
        begin, end, step = (arguments.get(key, default) for key, default in (("start", 0), ("end", None), ("step", 1)))
        if step != 1 or not isinstance(begin, int | None) or not isinstance(end, int | None):
            return None
        return list(slice(begin, end).indices(shape[dim])[:2])

    def _dim_after(self, node: dict, name: str, dim: int) -> int | None:
        """Returns the dimension of the result that holds what `dim` of the value holds; None if the node does more
        than to compute, move or leave out other dimensions."""
        op, arguments = node["op"], node["arguments"]
        dims = len(self.values[name]["shape"])
        others = read_by(node) - {name}
        if op == MULTIPLY and len(node["outputs"][0]["shape"]) == dims and not others & self.joined.keys():
            return dim
        if others and op != CONVOLUTION:
            return None
        if op in ELEMENTWISE:
            return dim
        if op == CONVOLUTION:
            return dim if arguments["input"] == {"value": name} and dim == 1 else None
        if op == PERMUTE:
            return [one % dims for one in arguments["dims"]].index(dim)
        if op == SELECT:
            selected = arguments["dim"] % dims
            return None if selected == dim else dim - (selected < dim)
        if op == UNSQUEEZE:
            return dim + (arguments["dim"] % (dims + 1) <= dim)
        return None

    def _between(self, joined: Joined, begin: int, end: int, node: dict, output: dict) -> str:
        """Returns the value of a joined value's elements [begin, end): a part, or several that are joined."""
        seams = joined.seams()
        parts = joined.parts[seams.index(begin) : seams.index(end)]
        if len(parts) == 1:
            return parts[0]
        arguments = {"tensors": {"values": parts}, "dim": joined.dim}
        self._add({**node, "op": CAT, "arguments": arguments, "outputs": [output]})
        return output["name"]

    def _compute_parts(self, node: dict, name: str) -> None:
        joined, (output,) = self.joined[name], node["outputs"]
        after = self._dim_after(node, name, joined.dim)
        results = []
        for i, (part, size, begin) in enumerate(zip(joined.parts, joined.sizes, joined.seams(), strict=False)):
            result = {**output, "name": f"{output['name']}_part_{i}", "shape": list(output["shape"])}
            result["shape"][after] = size
            arguments = {key: renamed(value, name, part) for key, value in node["arguments"].items()}
            others = {key: value["value"] for key, value in arguments.items() if values_in(value) not in ([], [part])}
            for key, other in sorted(others.items()):
                # Weights of a convolution have channels first; factors have the dimensions of the result, or the last.
                skipped = (
                    joined.dim if node["op"] == CONVOLUTION else len(output["shape"]) - len(self.values[other]["shape"])
                )
                arguments[key] = self._elements(node, other, after - skipped, begin, begin + size, result["name"])
            self.values[result["name"]] = result
            self.nodes.append({**node, "arguments": arguments, "outputs": [result]})
            results.append(result["name"])
        self.joined[output["name"]] = Joined(after, results, joined.sizes)

    def _elements(self, node: dict, name: str, dim: int, begin: int, end: int, user: str) -> dict:
        """Adds the elements [begin, end) of a value in a dimension, unless it has only one. Returns an argument."""
        whole = self.values[name]
        if dim < 0 or whole["shape"][dim] == 1:
            return {"value": name}
        part = {**whole, "name": f"{name}_of_{user}", "shape": list(whole["shape"])}
        part["shape"][dim] = end - begin
        self.values[part["name"]] = part
        arguments = {"self": {"value": name}, "dim": dim, "start": begin, "end": end}
        self.nodes.append({**node, "op": SLICE, "arguments": arguments, "outputs": [part]})
        return {"value": part["name"]}


def _with_numbered_states(nodes: list[dict]) -> list[dict]:
    """Returns the nodes with the states of convolutions and recurrences numbered in the order of the calls."""
    numbers = itertools.count()
    return [
        {**node, "arguments": {**node["arguments"], "state": next(numbers)}} if node["op"] in STATE_OPS else node
        for node in nodes
    ]
