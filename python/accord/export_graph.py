"""From a torch.export program to the graph of an engine.

The program is decomposed to core ATen, except for the ops that an engine keeps whole. Then each call becomes a node:
symbolic sizes that torch computes by nodes of their own become expressions in the arguments, so no such nodes remain;
calls that only keep a value as it is (clone, a conversion to the same dtype, a view of the same shape) become other
names of their argument; assertions go, their constraints are the ranges of the symbols; what no output needs goes.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
import sys
from dataclasses import dataclass, field

import sympy
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from accord.export_ops import ARGUMENTS, IGNORED, KEPT_WHOLE
from accord.export_sharding import ExportError

DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.uint8: "uint8",
}
MAX_DIMS = 8  # of a tensor, as the C++ side has it


class UnsupportedOpError(ExportError):
    """An op that no engine knows; the message names it and its place in the source model."""


@dataclass
class ExportedGraph:
    """graph.json as Python data, the tensors it takes from the package by name, and which nodes use each tensor."""

    document: dict
    tensors: dict[str, torch.Tensor]
    uses: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)  # tensor -> (op, argument, place)


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program in core ATen, with linear, the norms, gelu, silu, embedding and attention kept whole."""
    table = torch.export.default_decompositions()
    for name in KEPT_WHOLE:
        _, op, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, op), overload), None)
    return program.run_decompositions(table)


class GraphBuilder:
    """Builds one ExportedGraph of a decomposed program. `dim_names`: the user's names of symbols, by torch's own
    name."""

    def __init__(self, program, dim_names: dict[str, str], output_names: list[str] | None):
        self.program = program
        self.output_names = output_names
        self.symbols = self._read_symbols(dim_names)
        self.values: dict[str, dict] = {}  # name in the graph -> {"name", "dtype", "shape"}
        self.of_node: dict[torch.fx.Node, str] = {}  # torch's node -> name in the graph
        self.results: dict[torch.fx.Node, list[str]] = {}  # of calls with several
        self.counters: dict[str, int] = {}
        self.tensor_of_value: dict[str, str] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.inputs: list[dict] = []
        self.parameters: list[dict] = []
        self.nodes: list[dict] = []

    def build(self) -> ExportedGraph:
        self._read_placeholders()
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self._read_call(node)
            elif node.op not in ("placeholder", "output"):
                raise ExportError(f"{_place(node)}: a graph with {node.op} nodes cannot be exported")
        outputs = self._read_outputs()
        self._drop_unused(outputs)
        uses: dict[str, list[tuple[str, str, str]]] = {}
        for node in self.nodes:
            for argument, value in node["arguments"].items():
                for name in _values_in(value):
                    if name in self.tensor_of_value:
                        place = f"{node['source']} (module {node['module'] or 'top'})"
                        uses.setdefault(self.tensor_of_value[name], []).append((node["op"], argument, place))
        document = {
            "symbols": self.symbol_table,
            "inputs": self.inputs,
            "parameters": self.parameters,
            "nodes": self.nodes,
            "outputs": outputs,
        }
        stored = {entry["tensor"]: self.tensors[entry["tensor"]] for entry in self.parameters}
        return ExportedGraph(document, stored, uses)

    def _read_symbols(self, dim_names: dict[str, str]) -> dict[str, str]:
        self.symbol_table = []
        names = {}
        for symbol, limits in self.program.range_constraints.items():
            torch_name = str(symbol)
            name = dim_names.get(torch_name)
            if name is None:
                continue
            if not limits.upper.is_Integer:
                raise ExportError(f'dimension "{name}" has no upper bound: give it one, e.g. Dim("{name}", max=512)')
            names[torch_name] = name
            self.symbol_table.append({"name": name, "min": max(1, int(limits.lower)), "max": int(limits.upper)})
        self.symbol_table.sort(key=lambda symbol: symbol["name"])
        return names

    def _read_placeholders(self) -> None:
        program = self.program
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        stored: dict[tuple, str] = {}  # what a tensor is in memory -> its value, so that tied weights are one
        for spec in program.graph_signature.input_specs:
            if isinstance(spec.arg, ConstantArgument):
                continue
            if not isinstance(spec.arg, TensorArgument):
                raise ExportError(f'input "{spec.arg.name}" is no tensor: an engine takes and gives tensors only')
            node = nodes[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT:
                self.inputs.append(self._new_value(node, node.name))
                continue
            if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                raise ExportError(f'"{spec.target}" ({spec.kind.name}) cannot be exported')
            tensor = program.state_dict.get(spec.target)
            if tensor is None:
                tensor = program.constants[spec.target]
            tensor = tensor.detach()
            key = memory_key(tensor)
            if key in stored:
                self.of_node[node] = stored[key]
                continue
            value = self._new_value(node, "weight." + spec.target)
            stored[key] = value["name"]
            self.tensors[spec.target] = tensor
            self.tensor_of_value[value["name"]] = spec.target
            self.parameters.append({**value, "tensor": spec.target})

    def _read_call(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        op = str(node.target)
        if _is_assertion(op) or isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return
        if node.target is operator.getitem:
            self.of_node[node] = self.results[node.args[0]][node.args[1]]
            return
        same = self._same_as(node, op)
        if same is not None:
            self.of_node[node] = same
            return
        if op not in ARGUMENTS:
            near = difflib.get_close_matches(op, ARGUMENTS, n=1)
            hint = f'; the nearest that there is: "{near[0]}"' if near else ""
            raise UnsupportedOpError(f'unsupported op "{op}" at {_place(node)}, in module "{_module(node)}"{hint}')
        arguments = self._read_arguments(node, op)
        base = op.split(".")[1].strip("_")
        number = self.counters.get(base, 0)
        self.counters[base] = number + 1
        if isinstance(value, (list, tuple)):
            outputs = [self._describe(node, one, f"{base}_{number}_{i}") for i, one in enumerate(value)]
            self.results[node] = [output["name"] for output in outputs]
        else:
            outputs = [self._new_value(node, f"{base}_{number}")]
        self.nodes.append(
            {"op": op, "arguments": arguments, "outputs": outputs, "module": _module(node), "source": _place(node)}
        )

    def _same_as(self, node: torch.fx.Node, op: str) -> str | None:
        """The value that this call gives back unchanged, if it does."""
        if not node.args or not isinstance(node.args[0], torch.fx.Node) or node.args[0] not in self.of_node:
            return None
        source, result = node.args[0].meta["val"], node.meta["val"]
        if not isinstance(result, torch.Tensor) or source.dtype != result.dtype:
            return None
        if [str(size) for size in source.shape] != [str(size) for size in result.shape]:
            return None
        keeps = op in (
            "aten.clone.default",
            "aten.alias.default",
            "aten.detach.default",
            "aten._to_copy.default",
            "aten.view.default",
            "aten.expand.default",
        )
        adds_nothing = op == "aten.add.Tensor" and not result.dtype.is_floating_point and _is_integer_zero(node.args[1])
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
            if schema.name in IGNORED or (schema.has_default_value() and _equal(given, schema.default_value)):
                continue
            if schema.name not in known:
                raise UnsupportedOpError(
                    f'op "{op}" at {_place(node)}: argument "{schema.name}" = {given} is not supported'
                )
            arguments[schema.name] = self._encode(given, node)
        return arguments

    def _encode(self, given, node: torch.fx.Node):
        """One argument as JSON; docs/engine-format.md lists the forms."""
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
            if any(isinstance(item, torch.fx.Node) and item in self.of_node for item in given):
                return {"values": [None if item is None else self.of_node[item] for item in given]}
            items = [item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in given]
            if all(isinstance(item, (int, torch.SymInt)) and not isinstance(item, bool) for item in items):
                return [self._size(item, node) for item in items]
        raise ExportError(f"{_place(node)}: an argument of type {type(given).__name__} cannot be exported")

    def _size(self, size: int | torch.SymInt, node: torch.fx.Node) -> int | str:
        """A number, or an expression over the symbols: a sum of products."""
        if isinstance(size, int):
            return size
        expression = sympy.expand(size.node.expr)
        if expression.is_Integer:
            return int(expression)
        unknown = [str(symbol) for symbol in expression.free_symbols if str(symbol) not in self.symbols]
        if unknown or not expression.is_polynomial(*expression.free_symbols):
            what = f"depends on {', '.join(unknown)}, which no input has" if unknown else "is no sum of products"
            raise ExportError(f"{_place(node)}: the size {size} {what}; such a graph cannot be exported")
        terms = []
        for powers, factor in sympy.Poly(expression).terms():
            factors = [] if factor == 1 and any(powers) else [str(factor)]
            for symbol, power in zip(sympy.Poly(expression).gens, powers, strict=True):
                factors += [self.symbols[str(symbol)]] * power
            terms.append("*".join(factors))
        return " + ".join(terms)

    def _dtype(self, dtype: torch.dtype, node: torch.fx.Node) -> str:
        if dtype not in DTYPES:
            raise ExportError(f"{_place(node)}: dtype {dtype} is not supported; there are {', '.join(DTYPES.values())}")
        return DTYPES[dtype]

    def _new_value(self, node: torch.fx.Node, name: str) -> dict:
        self.of_node[node] = name
        return self._describe(node, node.meta["val"], name)

    def _describe(self, node: torch.fx.Node, value, name: str) -> dict:
        if not isinstance(value, torch.Tensor):
            raise ExportError(f'{_place(node)}: "{node.name}" gives something that is no tensor')
        if value.dim() > MAX_DIMS:
            raise ExportError(
                f'{_place(node)}: "{node.name}" has {value.dim()} dimensions; engines take up to {MAX_DIMS}'
            )
        described = {
            "name": name,
            "dtype": self._dtype(value.dtype, node),
            "shape": [self._size(size, node) for size in value.shape],
        }
        self.values[name] = described
        return described

    def _read_outputs(self) -> list[str]:
        by_name = {node.name: node for node in self.program.graph.nodes}
        outputs = []
        for spec in self.program.graph_signature.output_specs:
            if spec.kind != OutputKind.USER_OUTPUT:
                raise ExportError(f'the model changes "{spec.target}" while it runs; an engine keeps no such state')
            if not isinstance(spec.arg, TensorArgument):
                raise ExportError("the model returns something that is no tensor; an engine gives tensors only")
            node = by_name[spec.arg.name]
            name = self.of_node[node]
            made_here = any(output["name"] == name for made in self.nodes for output in made["outputs"])
            outputs.append(name if made_here and name not in outputs else self._copy(node))
        if self.output_names is None:
            return outputs
        if len(self.output_names) != len(outputs):
            raise ExportError(f"{len(self.output_names)} output names for {len(outputs)} outputs of the model")
        for old, new in zip(list(outputs), self.output_names, strict=True):
            self._rename(old, new)
        return list(self.output_names)

    def _copy(self, node: torch.fx.Node) -> str:
        """A new value equal to the node's: each output is one of its own, also if the model returns a value twice or
        returns what it was given."""
        name = f"copy_{len(self.nodes)}_of_{self.of_node[node]}"
        self.nodes.append(
            {
                "op": "aten._to_copy.default",
                "arguments": {"self": {"value": self.of_node[node]}},
                "outputs": [self._describe(node, node.meta["val"], name)],
                "module": "",
                "source": _place(node),
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
            node["arguments"] = {key: _renamed(value, old, new) for key, value in node["arguments"].items()}

    def _drop_unused(self, outputs: list[str]) -> None:
        needed = set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if any(output["name"] in needed for output in node["outputs"]):
                kept.append(node)
                for value in node["arguments"].values():
                    needed.update(_values_in(value))
        self.nodes = kept[::-1]
        self.parameters = [entry for entry in self.parameters if entry["name"] in needed]


def memory_key(tensor: torch.Tensor) -> tuple:
    """Equal for tensors that are the same memory, seen the same way."""
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def argument_names(op: str) -> list[tuple[str, str]]:
    """(name, type) of each argument of an op in the table."""
    pieces = [piece.split("=")[0].strip() for piece in ARGUMENTS[op].split(", ")]
    return [(piece.split(" ")[1], piece.split(" ")[0]) for piece in pieces]


def _equal(given, default) -> bool:
    if isinstance(given, bool) or isinstance(default, bool):
        return given is default
    return isinstance(given, (int, float, str, type(None))) and given == default


def _is_integer_zero(given) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given == 0


def _is_assertion(op: str) -> bool:
    return bool(re.fullmatch(r"aten\.(_assert_\w+|sym_constrain_range\w*|_functional_assert\w*)\.\w+", op))


def _values_in(argument) -> list[str]:
    if isinstance(argument, dict) and "value" in argument:
        return [argument["value"]]
    if isinstance(argument, dict) and "values" in argument:
        return [name for name in argument["values"] if name is not None]
    return []


def _renamed(argument, old: str, new: str):
    if isinstance(argument, dict) and argument.get("value") == old:
        return {"value": new}
    if isinstance(argument, dict) and "values" in argument:
        return {"values": [new if name == old else name for name in argument["values"]]}
    return argument


def _module(node: torch.fx.Node) -> str:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return stack[-1][0] if stack else ""


def _place(node: torch.fx.Node) -> str:
    """file:line of the innermost frame that is not torch's own, relative to where Python found it."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    torch_folder = os.path.dirname(torch.__file__) + os.sep
    own = [frame for frame in frames if not frame[0].startswith(torch_folder)] or frames
    if not own:
        return node.name
    path, line = own[-1]
    roots = [root for root in map(os.path.abspath, sys.path) if path.startswith(root.rstrip(os.sep) + os.sep)]
    return f"{os.path.relpath(path, max(roots, key=len)) if roots else os.path.basename(path)}:{line}"
