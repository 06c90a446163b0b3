"""Decides which nodes of a graph run in engines.

A node can run in an engine if engines support its op with these arguments, dtypes and sizes. Nodes are then grouped
into blocks that are as large as possible without a cycle between them: a node's level is the highest level of its
inputs, plus one if the node that computes that input runs in the other place. Levels therefore alternate between
engines and PyTorch, and all nodes of a level are one block. A block that is too small moves to PyTorch, and the
levels are computed again.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from accord.graph.builder import GraphBuilder
from accord.graph.errors import ExportError
from accord.graph.traced import TracedGraph, TracedSymbol
from accord.jit.lowering import KEPT_VIEW, views_to
from accord.jit.options import Options

COLLECTIVES = ("_c10d_functional", "c10d_functional")
ANY_SIZE = 11  # of a symbol without a value, where only the order of strides matters
READ_MEMORY = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


@dataclass
class Block:
    """Nodes that run one after the other in one place, in the order of the graph."""

    in_engine: bool
    nodes: list[torch.fx.Node] = field(default_factory=list)


def is_collective(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in COLLECTIVES


def is_wait(node: torch.fx.Node) -> bool:
    return is_collective(node) and node.target._opname == "wait_tensor"


def counts(node: torch.fx.Node) -> bool:
    """Returns True if the node counts as an op in reports and in the sizes of blocks."""
    return (
        node.op == "call_function"
        and KEPT_VIEW not in node.meta
        and node.target is not operator.getitem
        and not is_wait(node)
        and bool(_tensors_in(_value(node)))
    )


def is_number(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


class Support:
    """Determines for each node why an engine cannot run it, if so."""

    def __init__(self, graph: torch.fx.Graph, symbols: list[TracedSymbol], options: Options) -> None:
        self._options = options
        self._builder = GraphBuilder(TracedGraph([], [], [], [], symbols))
        self.refused: dict[torch.fx.Node, str] = {}  # errors of engines that could not be built
        self._indescribable: dict[torch.fx.Node, str] = {}  # tensors that no engine can take or return
        for node in graph.nodes:
            if isinstance(node.meta.get("val"), torch.Tensor):
                self._builder.of_node[node] = node.name
                try:
                    self._builder._describe(node, node.meta["val"], node.name)
                except ExportError as error:
                    self._indescribable[node] = str(error)
        self._read_in_memory = set()
        for node in graph.nodes:
            if node.target in READ_MEMORY:
                self._read_in_memory.update(views_to(node.args[0]))

    def size(self, size: torch.SymInt, node: torch.fx.Node) -> int | str:
        """Returns the size as graphs express it. Raises ExportError if they cannot."""
        return self._builder._size(size, node)

    def reason_against(self, node: torch.fx.Node) -> str | None:
        op = str(node.target)
        if self._options.keeps_in_torch(op):
            return f"{op} is one of torch_executed_ops"
        if KEPT_VIEW in node.meta:
            return f"{op} gives a view, which shares memory"
        if node in self.refused:
            return self.refused[node]
        if node in self._read_in_memory:
            return f"{op} gives a view, which is read by its strides"
        if is_wait(node) and not is_collective(node.args[0]):
            return f"{op} waits for what began elsewhere"
        tensors = [value for value in map(_value, (node, *node.all_input_nodes)) for value in _tensors_in(value)]
        if not _tensors_in(_value(node)):
            return f"{op} gives no tensor"
        for tensor in tensors:
            if tensor.device.type != "cpu":
                return f"{op} runs on {tensor.device}"
            if any(_depends_on_data(size) for size in tensor.shape):
                return f"{op}: a size depends on data"
            if 0 in tensor.shape:
                return f"{op}: a tensor without elements"
        for one in (node, *node.all_input_nodes):
            if one in self._indescribable:
                return self._indescribable[one]
        try:
            name = self._builder.of_node.get(node)
            self._builder.read_call(node)
            if name is not None:
                self._builder.of_node[node] = name
        except ExportError as error:
            return str(error)
        return None


def _value(node: torch.fx.Node):
    return node.meta.get("val")


def _tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for one in value if isinstance(one, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def _depends_on_data(size) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def blocks_of(
    graph: torch.fx.Graph, support: Support, options: Options
) -> tuple[list[Block], dict[torch.fx.Node, str]]:
    """Returns the blocks in an order in which they can run, and the reasons why nodes stay in PyTorch."""
    reasons: dict[torch.fx.Node, str] = {}
    least = 1 if options.require_full_compilation else options.min_block_size
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not is_number(node):
            reason = support.reason_against(node)
            if reason is not None:
                reasons[node] = reason
    while True:
        blocks = _levels(graph, lambda node: node.op == "call_function" and node not in reasons and not is_number(node))
        small = [block for block in blocks if block.in_engine and not _large_enough(block, least)]
        if not small:
            return blocks, reasons
        for block in small:
            size = sum(map(counts, block.nodes))
            for node in block.nodes:
                reasons[node] = f"a block of {size} ops is smaller than min_block_size, {least}"


def _large_enough(block: Block, least: int) -> bool:
    return sum(map(counts, block.nodes)) >= least or any(
        is_collective(node) and not is_wait(node) for node in block.nodes
    )


def _levels(graph: torch.fx.Graph, can: Callable[[torch.fx.Node], bool]) -> list[Block]:
    """Returns one block for each level. Even levels run in engines, odd ones in PyTorch."""
    level: dict[torch.fx.Node, int] = {}
    blocks: dict[int, Block] = defaultdict(lambda: Block(True))
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if (node.target is operator.getitem or is_wait(node)) and node.args[0] in level:
            level[node] = level[node.args[0]]  # same block as its producer
        else:
            in_engine = can(node)
            # Sizes are expressions in an engine's graph, so the nodes that compute them need not come before it.
            inputs = [level[one] for one in node.all_input_nodes if one in level and not (in_engine and is_number(one))]
            parity = 0 if in_engine else 1
            highest = max(inputs, default=parity)
            level[node] = highest if highest % 2 == parity else highest + 1
        block = blocks[level[node]]
        block.in_engine = level[node] % 2 == 0
        block.nodes.append(node)
    return [blocks[number] for number in sorted(blocks)]


def copy_for_torch(
    graph: torch.fx.Graph, node: torch.fx.Node, known: Mapping[torch.fx.Node, torch.fx.Node]
) -> torch.fx.Node:
    """Copies a node that stays in PyTorch to another graph. `known`: the counterparts of other nodes there."""
    copied = graph.node_copy(node, known.__getitem__)
    # Engines return other strides than torch has traced.
    if node.target is torch.ops.aten.view.default and KEPT_VIEW not in node.meta:
        copied.target = torch.ops.aten.reshape.default
    return copied


def as_traced(graph: torch.fx.Graph, copied: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    """Converts an engine's row-major result for `node` to the memory layout that torch traced, if its dimensions have
    another order in memory. `copied` is the result's node in `graph`."""
    order = _order_in_memory(node.meta["val"])
    if order == sorted(order):
        return copied
    back = [order.index(dim) for dim in range(len(order))]
    value = node.meta["val"]
    for op, arguments, options in (
        (torch.ops.aten.permute.default, (order,), {}),
        (torch.ops.aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (torch.ops.aten.permute.default, (back,), {}),
    ):
        copied = graph.call_function(op, (copied, *arguments), options)
        value = copied.meta["val"] = op(value, *arguments, **options)
    return copied


def _order_in_memory(tensor: torch.Tensor) -> list[int]:
    """Returns its dimensions in memory order, outermost first, or unchanged if there are gaps between its elements."""
    sizes, strides = (_hints(numbers) for numbers in (tensor.shape, tensor.stride()))
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return list(range(tensor.dim()))
        expected *= sizes[dim]
    return order


def _hints(sizes: Sequence[int | torch.SymInt]) -> list[int]:
    """Returns the sizes that torch traced with, and ANY_SIZE for symbols that depend on data and have no value."""
    found = []
    for size in sizes:
        if not isinstance(size, torch.SymInt):
            found.append(size)
        elif not _depends_on_data(size):
            found.append(int(size.node.hint))
        else:
            found.append(int(size.node.expr.subs(dict.fromkeys(size.node.expr.free_symbols, ANY_SIZE))))
    return found
