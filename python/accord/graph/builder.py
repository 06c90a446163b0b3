"""Converts a torch.export program to the graph of an engine.

Each call of the decomposed program becomes a node. Symbolic sizes that torch computes in nodes of their own become
expressions in the arguments, so no such nodes remain. Calls that return their argument unchanged (clone, a conversion
to the same dtype, a view of the same shape) become aliases of it. Assertions are dropped, since the ranges of the
symbols express their constraints. Nodes that no output depends on are dropped as well.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field

import sympy
import torch

from accord.graph.arguments import argument_names, equal, is_integer_zero, renamed, values_in
from accord.graph.errors import ExportError, UnsupportedOpError
from accord.graph.flattened import Unflattening
from accord.graph.joined import Separation
from accord.graph.ops import ARGUMENTS, IGNORED
from accord.graph.source_places import place_of
from accord.graph.traced import TracedGraph
from accord.graph.weight_products import with_linear_layers

DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.uint8: "uint8",
}
ENLARGE = "aten.upsample_nearest2d.vec"
SOURCE_ATTENTION = "accord.source_attention.default"  # of traced programs, with keys and values
CROSS_ATTENTION = "accord.cross_attention.default"  # of graphs, which find them in the cache
MAX_DIMS = 8  # dimensions of a tensor; the same limit as in C++


@dataclass
class ExportedGraph:
    """graph.json as Python data, the tensors that it takes from the package by name, and the nodes that use each."""

    document: dict
    tensors: dict[str, torch.Tensor]
    uses: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)  # tensor -> (op, argument, place)


class GraphBuilder:
    """Builds one ExportedGraph from a traced program. `prefix`: start of the module paths in the program that the
    graph omits."""

    def __init__(self, traced: TracedGraph, output_names: list[str] | None = None, prefix: str = ""):
        self.traced = traced
        self.prefix = prefix
        self.output_names = output_names
        self.symbols = {symbol.torch_name: symbol.name for symbol in traced.symbols}
        self.groups: dict[str, object] = {}  # logical name -> torch's process group, for the collectives
        self.values: dict[str, dict] = {}  # name in the graph -> {"name", "dtype", "shape"}
        self.of_node: dict[torch.fx.Node, str] = {}  # torch's node -> name in the graph
        self.results: dict[torch.fx.Node, list[str]] = {}  # of calls with several results
        self.empty: set[torch.fx.Node] = set()  # nodes whose tensors have no elements
        self.counters: dict[str, int] = {}
        self.tensor_of_value: dict[str, str] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.inputs: list[dict] = []
        self.parameters: list[dict] = []
        self.nodes: list[dict] = []

    def build(self) -> ExportedGraph:
        self._read_placeholders()
        for node in self.traced.nodes:
            if node.op == "call_function":
                self.read_call(node)
        outputs = self._read_outputs()
        nodes = with_linear_layers(self.nodes, self.tensor_of_value)
        nodes = Unflattening(nodes, self.values, outputs).run()
        self.nodes = Separation(nodes, self.values, outputs).run()
        self._drop_unused(outputs)
        uses: dict[str, list[tuple[str, str, str]]] = {}
        for node in self.nodes:
            for argument, value in node["arguments"].items():
                for name in values_in(value):
                    if name in self.tensor_of_value:
                        place = f"{node['source']} (module {node['module'] or 'top'})"
                        uses.setdefault(self.tensor_of_value[name], []).append((node["op"], argument, place))
        document = {
            "symbols": sorted(
                ({"name": symbol.name, "min": symbol.min, "max": symbol.max} for symbol in self.traced.symbols),
                key=lambda symbol: symbol["name"],
            ),
            "inputs": self.inputs,
            "parameters": self.parameters,
            "nodes": self.nodes,
            "outputs": outputs,
        }
        stored = {entry["tensor"]: self.tensors[entry["tensor"]] for entry in self.parameters if self.tensors}
        return ExportedGraph(document, stored, uses)

    def _read_placeholders(self) -> None:
        for node in self.traced.inputs:
            self.inputs.append(self._new_value(node, node.name))
        stored: dict[tuple, str] = {}  # memory of a tensor -> its value, so that tied weights are one value
        for weight in self.traced.weights:
            key = (weight.name,) if weight.tensor is None else memory_key(weight.tensor)
            if key in stored:
                self.of_node[weight.node] = stored[key]
                continue
            value = self._new_value(weight.node, "weight." + weight.name)
            stored[key] = value["name"]
            if weight.tensor is not None:
                self.tensors[weight.name] = weight.tensor
            self.tensor_of_value[value["name"]] = weight.name
            self.parameters.append({**value, "tensor": weight.name})

    def read_call(self, node: torch.fx.Node) -> None:
        """Adds the node of a call. Raises ExportError if the graph cannot express it."""
        value = node.meta.get("val")
        op = str(node.target)
        if _is_assertion(op) or isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return
        if node.target is operator.getitem:
            self.of_node[node] = self.results[node.args[0]][node.args[1]]
            return
        if isinstance(value, torch.Tensor) and 0 in value.shape:
            self.empty.add(node)  # a part of a tensor with nothing left; other parts may be joined with it
            return
        same = self._same_as(node, op)
        if same is not None:
            self.of_node[node] = same
            return
        arguments = None
        if op == ENLARGE:
            op, arguments = self._enlargement(node)
        elif op == SOURCE_ATTENTION:
            op, arguments = self._cross_attention(node)
        if op not in ARGUMENTS:
            raise UnsupportedOpError(f'unsupported op "{op}" at {self._place(node)}')
        arguments = arguments or self._read_arguments(node, op)
        base = op.split(".")[1].strip("_")
        number = self.counters.get(base, 0)
        self.counters[base] = number + 1
        if isinstance(value, (list, tuple)):
            outputs = [self._describe(node, one, f"{base}_{number}_{i}") for i, one in enumerate(value)]
            self.results[node] = [output["name"] for output in outputs]
        else:
            outputs = [self._new_value(node, f"{base}_{number}")]
        self.nodes.append(
            {
                "op": op,
                "arguments": arguments,
                "outputs": outputs,
                "module": self._module(node),
                "source": place_of(node),
            }
        )

    def _place(self, node: torch.fx.Node) -> str:
        module = self._module(node)
        return f'{place_of(node)}, in module "{module}"' if module else place_of(node)

    def _enlargement(self, node: torch.fx.Node) -> tuple[str, dict]:
        """Replaces factors by the sizes that result from them, if these are integers."""
        image, _, factors = (*node.args, None)[:3]
        given, made = image.meta["val"].shape[2:], node.meta["val"].shape[2:]
        if factors and any(
            before * factor != after for before, after, factor in zip(given, made, factors, strict=True)
        ):
            raise UnsupportedOpError(f'op "{ENLARGE}" at {place_of(node)}: factors {factors} do not give whole sizes')
        arguments = {"self": self._encode(image, node), "output_size": [self._size(size, node) for size in made]}
        return "aten.upsample_nearest2d.default", arguments

    def _cross_attention(self, node: torch.fx.Node) -> tuple[str, dict]:
        """Leaves out keys and values, which an engine finds in its cache."""
        query, _, value, layer, scale = node.args
        value_dim = self._size(value.meta["val"].shape[-1], node)
        arguments = {"query": self._encode(query, node), "layer": layer, "scale": scale, "value_dim": value_dim}
        return CROSS_ATTENTION, arguments

    def _module(self, node: torch.fx.Node) -> str:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        return stack[-1][0].removeprefix(self.prefix) if stack else ""

    def _same_as(self, node: torch.fx.Node, op: str) -> str | None:
        """Returns the value that this call returns unchanged, or None if it computes something."""
        if not node.args or not isinstance(node.args[0], torch.fx.Node) or node.args[0] not in self.of_node:
            return None
        source, result = node.args[0].meta["val"], node.meta["val"]
        if not isinstance(result, torch.Tensor) or source.dtype != result.dtype:
            return None
        if [str(size) for size in source.shape] != [str(size) for size in result.shape]:
            return None
        keeps = op in (
            "_c10d_functional.wait_tensor.default",  # an engine's collectives are complete when they return
            "aten.clone.default",
            "aten.alias.default",
            "aten.detach.default",
            "aten.lift_fresh_copy.default",
            "aten._to_copy.default",
            "aten.view.default",
            "aten.expand.default",
            "aten.slice.Tensor",  # of as many elements: all of them
        )
        adds_nothing = op == "aten.add.Tensor" and not result.dtype.is_floating_point and is_integer_zero(node.args[1])
        return self.of_node[node.args[0]] if keeps or adds_nothing else None

    def _read_arguments(self, node: torch.fx.Node, op: str) -> dict:
        known = {name for name, _ in argument_names(op)}
        arguments = {}
        for position, schema in enumerate(node.target._schema.arguments):
            if position < len(node.args):
                given = node.args[position]
            elif schema.name in node.kwargs:
                given = node.kwargs[schema.name]
            else:
                continue
            if schema.name in IGNORED or (schema.has_default_value() and equal(given, schema.default_value)):
                continue
            if schema.name not in known:
                raise UnsupportedOpError(
                    f'op "{op}" at {place_of(node)}: argument "{schema.name}" = {given} is not supported'
                )
            arguments[schema.name] = self._group(given) if schema.name == "group_name" else self._encode(given, node)
        return arguments

    def _group(self, given) -> str:
        from accord.process_groups import logical_name, process_group  # most models do not need it

        group = process_group(given)
        name = logical_name(group)
        if self.groups.setdefault(name, group) is not group:
            raise ExportError(f'two groups are called "{name}"; give them names of their own (group_desc of new_group)')
        return name

    def _encode(self, given, node: torch.fx.Node):
        """Returns an argument as JSON. docs/engine-format.md lists the forms."""
        if isinstance(given, torch.fx.Node):
            if given in self.of_node:
                return {"value": self.of_node[given]}
            given = given.meta["val"]
        if given is None or isinstance(given, (bool, int, str)):
            return given
        if isinstance(given, float):
            return given if math.isfinite(given) else {"float": str(given)}
        if isinstance(given, torch.SymInt):
            size = self._size(given, node)
            return size if isinstance(size, int) else {"symbolic": size}
        if isinstance(given, torch.dtype):
            return {"dtype": self._dtype(given, node)}
        if isinstance(given, (list, tuple)):
            given = [item for item in given if not (isinstance(item, torch.fx.Node) and item in self.empty)]
            if any(isinstance(item, torch.fx.Node) and item in self.of_node for item in given):
                return {"values": [None if item is None else self.of_node[item] for item in given]}
            items = [item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in given]
            if all(isinstance(item, (int, torch.SymInt)) and not isinstance(item, bool) for item in items):
                return [self._size(item, node) for item in items]
        kind = type(given).__name__
        if isinstance(given, torch.Tensor):
            kind = "tensor without elements"
        elif isinstance(given, torch.SymFloat):
            kind = "number that is computed from a size or taken out of a tensor"
        raise UnsupportedOpError(
            f'unsupported argument of op "{node.target}" at {self._place(node)}: a {kind}; engines take tensors, '
            "sizes, and numbers that are constant"
        )

    def _size(self, size: int | torch.SymInt, node: torch.fx.Node) -> int | str:
        """Returns a number, or an expression over the symbols: a sum of products."""
        if isinstance(size, int):
            return size
        expression = sympy.expand(size.node.expr)
        if expression.is_Integer:
            return int(expression)
        unknown = [str(symbol) for symbol in expression.free_symbols if str(symbol) not in self.symbols]
        if unknown or not expression.is_polynomial(*expression.free_symbols):
            what = f"depends on {', '.join(unknown)}, which no input has" if unknown else "is not a sum of products"
            raise UnsupportedOpError(f"unsupported size {size} at {self._place(node)}: it {what}")
        terms = []
        for powers, factor in sympy.Poly(expression).terms():
            factors = [] if factor == 1 and any(powers) else [str(factor)]
            for symbol, power in zip(sympy.Poly(expression).gens, powers, strict=True):
                factors += [self.symbols[str(symbol)]] * power
            terms.append("*".join(factors))
        return " + ".join(terms)

    def _dtype(self, dtype: torch.dtype, node: torch.fx.Node) -> str:
        if dtype not in DTYPES:
            weight = next((one.name for one in self.traced.weights if one.node is node), None)
            where = f'"{node.name}"' if node.op == "placeholder" else f'op "{node.target}" at {self._place(node)}'
            where = f'weight "{weight}"' if weight else where
            raise UnsupportedOpError(f"{where}: dtype {dtype} is not supported; there are {', '.join(DTYPES.values())}")
        return DTYPES[dtype]

    def _new_value(self, node: torch.fx.Node, name: str) -> dict:
        self.of_node[node] = name
        return self._describe(node, node.meta["val"], name)

    def _describe(self, node: torch.fx.Node, value, name: str) -> dict:
        if not isinstance(value, torch.Tensor):
            raise ExportError(f'{place_of(node)}: "{node.name}" gives something that is no tensor')
        if value.dim() > MAX_DIMS:
            raise UnsupportedOpError(
                f'{place_of(node)}: "{node.name}" has {value.dim()} dimensions; engines take up to {MAX_DIMS}'
            )
        described = {
            "name": name,
            "dtype": self._dtype(value.dtype, node),
            "shape": [self._size(size, node) for size in value.shape],
        }
        self.values[name] = described
        return described

    def _read_outputs(self) -> list[str]:
        outputs = []
        for node in self.traced.outputs:
            if node in self.empty:
                raise ExportError(
                    f"{place_of(node)}: an output has no elements, its shape is {list(node.meta['val'].shape)}; give example_inputs "
                    "with at least one"
                )
            name = self.of_node[node]
            made_here = any(output["name"] == name for made in self.nodes for output in made["outputs"])
            outputs.append(name if made_here and name not in outputs else self._copy(node))
        if self.output_names is None:
            return outputs
        for old, new in zip(list(outputs), self.output_names, strict=True):
            self._rename(old, new)
        return list(self.output_names)

    def _copy(self, node: torch.fx.Node) -> str:
        """Adds a new value equal to the node's. Each output has a value of its own, even if the model returns a value
        twice or returns one of its inputs."""
        name = f"copy_{len(self.nodes)}_of_{self.of_node[node]}"
        self.nodes.append(
            {
                "op": "aten._to_copy.default",
                "arguments": {"self": {"value": self.of_node[node]}},
                "outputs": [self._describe(node, node.meta["val"], name)],
                "module": "",
                "source": place_of(node),
            }
        )
        return name

    def _rename(self, old: str, new: str) -> None:
        made = [output for node in self.nodes for output in node["outputs"] if output["name"] == old]
        if new in self.values:
            raise ExportError(f'output name "{new}" is already the name of another value')
        self.values[new] = self.values.pop(old)
        made[0]["name"] = new
        for node in self.nodes:
            node["arguments"] = {key: renamed(value, old, new) for key, value in node["arguments"].items()}

    def _drop_unused(self, outputs: list[str]) -> None:
        needed = set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if any(output["name"] in needed for output in node["outputs"]):
                kept.append(node)
                for value in node["arguments"].values():
                    needed.update(values_in(value))
        self.nodes = kept[::-1]
        self.parameters = [entry for entry in self.parameters if entry["name"] in needed]


def memory_key(tensor: torch.Tensor) -> tuple:
    """Returns a key that is equal for tensors that view the same memory in the same way."""
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _is_assertion(op: str) -> bool:
    return bool(re.fullmatch(r"aten\.(_assert_\w+|sym_constrain_range\w*|_functional_assert\w*)\.\w+", op))
