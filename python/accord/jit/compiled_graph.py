"""A graph that runs in engines where possible, and in PyTorch elsewhere.

The graph is partitioned into blocks when it is compiled. Engines are built at the first call, when the weights are
available: one set of engines for each set of weights that it is called with (layers of one class share their graph),
rebuilt when weights have changed. If an engine cannot be built, its error names the op at fault: that op moves to
PyTorch, and the graph is partitioned again.
"""

from __future__ import annotations

import copy
import itertools
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

import accord
from accord.graph.builder import GraphBuilder
from accord.graph.errors import ExportError
from accord.graph.source_places import place_of
from accord.graph.symbols import limit_symbols, symbol_sources
from accord.graph.traced import TracedGraph, TracedSymbol, TracedWeight
from accord.jit.bound_engine import BoundEngine
from accord.jit.engine_builder import build_engine
from accord.jit.lowering import lower
from accord.jit.options import Options
from accord.jit.partitioning import (
    Block,
    Support,
    as_traced,
    blocks_of,
    copy_for_torch,
    counts,
    is_collective,
    is_number,
    is_wait,
)
from accord.jit.report import CollectiveReport, CompilationReport, PartitionReport
from accord.jit.weight_state import WeightState
from accord.process_groups import logical_name, process_group

MOST_OF_SAME_WEIGHTS = 2  # sets of engines kept for the latest addresses of the same weight tensors

_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
_numbers = itertools.count()


@dataclass
class EnginePlan:
    """Everything an engine is built from, except the weights."""

    name: str
    block: Block
    document: dict
    uses: dict[str, list[tuple[str, str, str]]]  # same as in ExportedGraph
    weights: dict[str, int | torch.Tensor]  # name in the graph -> index of the argument, or a constant
    inputs: list[torch.fx.Node]
    size_inputs: list[str]  # symbols that no input's shape reveals; each has an input of that many bytes
    outputs: list[torch.fx.Node]
    groups: dict[str, object]


@dataclass
class _Variant:
    """Engines built for one set of weights."""

    state: WeightState
    runner: torch.fx.GraphModule
    weights: list[weakref.ref] = field(default_factory=list)


class CompiledGraph:
    """Called like the graph module that it is created from, whose placeholders are tensors and sizes, and whose nodes
    modify nothing in place. Several threads may call it."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        weights: Mapping[int, str],
        symbols: Sequence[TracedSymbol],
        options: Options,
        name: str | None = None,
        just_in_time: bool = False,
    ) -> None:
        """weights: the arguments that are weights, by position, with their names. symbols: sizes that may change.
        just_in_time: behaves as torch.compile requires: outputs have PyTorch's memory layout, and a call that engines
        reject runs in PyTorch. Raises ExportError if the options forbid ops that have to stay in PyTorch."""
        self.number = next(_numbers)
        self.report = CompilationReport(name or f"graph {self.number}")
        self.module = module
        self._weights = dict(weights)
        self._positions = tuple(weights)
        self._options = options
        self._just_in_time = just_in_time
        self._lock = threading.RLock()
        self._variants: dict[tuple[int, ...], _Variant] = {}
        for node in module.graph.find_nodes(op="get_attr"):
            node.meta.setdefault("val", getattr(module, node.target))
        lower(module.graph, all_views=just_in_time)
        module.recompile()
        self.placeholders = module.graph.find_nodes(op="placeholder")
        self.symbol_sources = symbol_sources(self.placeholders)
        self._symbols = [symbol for symbol in symbols if symbol.torch_name in self.symbol_sources]
        (output,) = module.graph.find_nodes(op="output")
        self._output_places = {node: place for place, node in reversed(list(enumerate(output.all_input_nodes)))}
        self._support = Support(module.graph, self._symbols, options)
        self._plan()
        _graphs.add(self)

    def __call__(self, *args):
        if self._limits and self._exceeds_limits(args):
            return self.module(*args)
        try:
            return self._variant(args).runner(*args)
        except (accord.Unsupported, accord.InvalidArgument):
            # Rejected before anything ran, and on all ranks alike. Collectives are not started a second time.
            if not self._just_in_time or self._options.pass_through_build_failures or self.report.collectives:
                raise
            return self.module(*args)

    def _exceeds_limits(self, args: Sequence) -> bool:
        values = self._symbol_values(args)
        return any(not least <= values[name] <= most for name, (least, most) in self._limits.items())

    def build(self, *args) -> None:
        """Builds the engines for calls with these weights."""
        self._variant(args)

    def parts(self) -> list[tuple[Block, EnginePlan | None]]:
        """Returns its blocks in an order in which they can run, with the plans of the blocks that run in engines."""
        plans = iter(self._engines)
        return [(block, next(plans) if block.in_engine else None) for block in self._blocks]

    def output_leaves(self) -> list:
        """Returns the nodes and constants of its results, one for each leaf."""
        (output,) = self.module.graph.find_nodes(op="output")
        return list(output.args[0])

    def computes_numbers(self) -> bool:
        """Returns True if any result is a number that is not a size."""
        nodes = [leaf for leaf in self.output_leaves() if isinstance(leaf, torch.fx.Node)]
        return any(is_number(node) and self.size_of(node) is None for node in nodes)

    def size_of(self, node: torch.fx.Node) -> int | str | None:
        """Returns the node's number as a size over symbols, or None if it is not a number or not such a size."""
        value = node.meta.get("val")
        if not isinstance(value, torch.SymInt):
            return None
        try:
            return self._support.size(value, node)
        except ExportError:
            return None

    def _variant(self, args: Sequence) -> _Variant:
        weights = [args[position] for position in self._positions]
        addresses = tuple([weight.data_ptr() for weight in weights])
        variant = self._variants.get(addresses)
        if variant is None or not variant.state.holds(weights):
            variant = self._build(args, weights, addresses)
        return variant

    def uses_any(self, addresses: set[int]) -> bool:
        """Returns True if it was called with a weight at one of these addresses."""
        return any(not addresses.isdisjoint(key) for key in self._variants)

    # Compiling.

    def _plan(self) -> None:
        blocks, reasons = blocks_of(self.module.graph, self._support, self._options)
        self._blocks = blocks
        self.reasons = reasons  # why nodes stay in PyTorch
        self._engines: list[EnginePlan] = []
        report = self.report
        report.partitions, report.collectives = [], []
        for block in blocks:
            ops = tuple(str(node.target) for node in block.nodes if counts(node))
            if block.in_engine:
                self._engines.append(self._plan_engine(block, f"{report.name}, engine {len(self._engines)}"))
            if ops:
                name = f"engine {len(self._engines) - 1}" if block.in_engine else f"pytorch {len(report.partitions)}"
                why = tuple(reasons[node] for node in block.nodes if node in reasons and counts(node))
                report.partitions.append(PartitionReport(name, "engine" if block.in_engine else "pytorch", ops, why))
            for node in block.nodes:
                if is_collective(node) and not is_wait(node):
                    group = logical_name(process_group(node.args[-1]))
                    report.collectives.append(
                        CollectiveReport(node.target._opname, group, "engine" if block.in_engine else "pytorch")
                    )
        self._limits = self._find_limits()
        self._check_strictness()

    def _find_limits(self) -> dict[str, tuple[int, int]]:
        """Returns the smallest and largest sizes that engines are built for, for symbols with which the model allows
        other sizes: calls with those stay in PyTorch."""
        limits: dict[str, tuple[int, int]] = {}
        given = {symbol.name: symbol for symbol in self._symbols}
        for plan in self._engines:
            for symbol in plan.document["symbols"]:
                name, most = symbol["name"], symbol["max"]
                least = symbol["min"] if given[name].may_fall_below else -sys.maxsize
                if not given[name].may_exceed and most == given[name].max:
                    most = sys.maxsize
                known_least, known_most = limits.get(name, (-sys.maxsize, sys.maxsize))
                limits[name] = max(least, known_least), min(most, known_most)
        return {name: limit for name, limit in limits.items() if limit != (-sys.maxsize, sys.maxsize)}

    def _check_strictness(self) -> None:
        left = [part for part in self.report.partitions if part.where == "pytorch"]
        if self._options.require_full_compilation and left:
            why = "\n  ".join(dict.fromkeys(reason for part in left for reason in part.reasons))
            raise ExportError(f"require_full_compilation, but these ops stay in PyTorch:\n  {why}")
        outside = [one.op for one in self.report.collectives if one.where == "pytorch"]
        if self._options.strict_collectives and outside:
            raise ExportError(f"strict_collectives, but these stay in PyTorch: {', '.join(outside)}\n{self.report}")

    def _plan_engine(self, block: Block, name: str) -> EnginePlan:
        inside = set(block.nodes)
        sources = list(dict.fromkeys(one for node in block.nodes for one in node.all_input_nodes if one not in inside))
        tensors = [node for node in sources if _is_tensor(node)]
        outputs = [node for node in block.nodes if _is_tensor(node) and any(user not in inside for user in node.users)]
        places = {node: position for position, node in enumerate(self.placeholders)}
        weights: dict[str, int | torch.Tensor] = {}
        traced_weights, inputs = [], []
        for node in tensors:
            if node.op == "get_attr":
                weights[node.name] = getattr(self.module, node.target)
                traced_weights.append(TracedWeight(node, node.name))
            elif places.get(node) in self._weights:
                weight = self._weights[places[node]]
                weights[weight] = places[node]
                traced_weights.append(TracedWeight(node, weight))
            else:
                inputs.append(node)
        inputs.sort(key=lambda node: places.get(node, len(places)))
        outputs.sort(key=lambda node: self._output_places.get(node, len(self._output_places)))
        traced = TracedGraph(block.nodes, inputs, traced_weights, outputs, self._symbols)
        builder = GraphBuilder(traced)
        built = builder.build()
        document = built.document
        used = {entry["tensor"] for entry in document["parameters"]}
        shown = limit_symbols(document)
        for symbol in shown:
            document["inputs"].append({"name": f"size_{symbol}", "dtype": "uint8", "shape": [symbol]})
        return EnginePlan(
            name,
            block,
            document,
            built.uses,
            {weight: source for weight, source in weights.items() if weight in used},
            inputs,
            shown,
            outputs,
            builder.groups,
        )

    # Building.

    def _build(self, args: Sequence, weights: Sequence[torch.Tensor], addresses: tuple[int, ...]) -> _Variant:
        with self._lock:
            variant = self._variants.get(addresses)
            if variant is not None and variant.state.holds(weights):  # built by another thread
                return variant
            self._forget_earlier(weights)
            state = WeightState(weights)
            engines = self._build_engines(args, new=variant is None)
            variant = _Variant(state, self._runner(engines))
            forget = self._variants.pop
            for weight in weights:
                variant.weights.append(weakref.ref(weight, lambda _: forget(addresses, None)))
            self._variants[addresses] = variant
            self.report.engines = len(self._variants)
            self.report.builds += 1
            return variant

    def _forget_earlier(self, weights: Sequence[torch.Tensor]) -> None:
        """Of the engines for these tensors at other addresses, keeps the newest: a program may alternate between
        addresses.
        """
        of_these = [
            addresses
            for addresses, variant in list(self._variants.items())
            if weights and all(one() is weight for one, weight in zip(variant.weights, weights, strict=True))
        ]
        for addresses in of_these[: 1 - MOST_OF_SAME_WEIGHTS]:
            self._variants.pop(addresses, None)

    def _build_engines(self, args: Sequence, new: bool) -> list[BoundEngine]:
        """new: False if weights have changed. They may keep changing, so their engines are not cached."""
        options = self._options if new else replace(self._options, engine_cache=False)
        while True:
            engines = []
            for plan in self._engines:
                try:
                    engines.append(self._build_engine(plan, args, options))
                except (accord.Unsupported, accord.Corrupt, accord.InvalidArgument) as error:
                    if self._options.pass_through_build_failures:
                        raise
                    self._refuse(plan.block, str(error))
                    self._plan()
                    break
            else:
                return engines

    def _build_engine(self, plan: EnginePlan, args: Sequence, options: Options) -> BoundEngine:
        tensors = {name: args[source] if isinstance(source, int) else source for name, source in plan.weights.items()}
        values = self._symbol_values(args)
        sizes = {symbol["name"]: values[symbol["name"]] for symbol in plan.document["symbols"]}
        engine, was_cached = build_engine(plan, tensors, sizes, options)
        self.report.from_cache += was_cached
        return BoundEngine(engine, plan.groups, tensors.values())

    def _refuse(self, block: Block, message: str) -> None:
        """Moves the nodes that the message names to PyTorch."""
        of_op = [node for node in block.nodes if f'"{node.target}"' in message]
        here = [node for node in of_op if place_of(node) in message]
        for node in here or of_op or block.nodes:
            self._support.refused[node] = message

    def _symbol_values(self, args: Sequence) -> dict[str, int]:
        return {name: source.value(args) for name, source in self.symbol_sources.items()}

    def _runner(self, engines: Sequence[BoundEngine]) -> torch.fx.GraphModule:
        """Returns the graph with each engine's block replaced by a call of the engine."""
        graph = torch.fx.Graph()
        known: dict[torch.fx.Node, torch.fx.Node] = {}
        held: dict[str, object] = {}
        for node in self.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                known[node] = graph.node_copy(node)
                if node.op == "get_attr":
                    held[node.target] = getattr(self.module, node.target)
        symbols: dict[str, torch.fx.Node] = {}
        for name, source in self.symbol_sources.items():
            symbols[name] = source.read_in(graph, known[self.placeholders[source.position]])
        remaining = iter(engines)
        for block, plan in self.parts():
            if plan is None:
                for node in block.nodes:
                    known[node] = copy_for_torch(graph, node, known)
                continue
            engine = next(remaining)
            held[f"engine_{engine.number}"] = _EngineCall(engine, len(plan.inputs))
            inputs = [known[node] for node in plan.inputs] + [symbols[name] for name in plan.size_inputs]
            call = graph.call_module(f"engine_{engine.number}", tuple(inputs))
            for index, node in enumerate(plan.outputs):
                known[node] = as_traced(graph, graph.call_function(_item, (call, index)), node)
        (output,) = self.module.graph.find_nodes(op="output")
        graph.output(torch.fx.map_arg(output.args[0], known.__getitem__))
        graph.eliminate_dead_code(lambda node: node.op != "call_function" or node.target is not _item)
        return torch.fx.GraphModule(held, graph)


class _EngineCall(torch.nn.Module):
    """Calls an engine with the inputs of its block: tensors, then sizes."""

    def __init__(self, engine: BoundEngine, tensors: int) -> None:
        super().__init__()
        self.engine = engine
        self._tensors = tensors

    def forward(self, *inputs):
        given = [tensor.detach().contiguous() for tensor in inputs[: self._tensors]]
        given += [torch.empty(size, dtype=torch.uint8) for size in inputs[self._tensors :]]
        return self.engine.run(given)


def _item(outputs: list[torch.Tensor], index: int) -> torch.Tensor:
    return outputs[index]


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def compilation_report(module: torch.nn.Module | None = None) -> list[CompilationReport]:
    """Reports what runs where: one report for each existing graph of torch.compile(backend="accord") and
    accord.compile(), in the order of compilation. With `module`, only graphs that have run with weights of it.
    Returns a snapshot."""
    graphs = sorted(_graphs, key=lambda graph: graph.number)
    if module is not None:
        addresses = _addresses_of(module)
        graphs = [graph for graph in graphs if graph.uses_any(addresses)]
    return [copy.deepcopy(graph.report) for graph in graphs]


def _addresses_of(module: torch.nn.Module) -> set[int]:
    tensors = [*module.parameters(), *module.buffers()]
    return {getattr(tensor, "_local_tensor", tensor).data_ptr() for tensor in tensors}
