"""Decomposes the ops that torch.export traces into core ATen, from which engines are built.

torch's own run_decompositions traces the whole program again, twice, with symbolic sizes, which takes most of the
export time of models with many layers. Most programs do not write to a tensor that has another name, so their calls
can be decomposed one by one, and a call that each layer makes on tensors of the same shapes is traced only once.
Other programs (with writes to views, graphs within the graph, or sizes that depend on data) are left to torch.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Mapping

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._higher_order_ops.effects import has_effects
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_iter

from accord.graph.complex_numbers import replace_complex_numbers
from accord.graph.ops import CHECKED, KEPT_WHOLE
from accord.graph.substitutes import SUBSTITUTES


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Returns the program in core ATen, except for the ops in KEPT_WHOLE. A call with side effects (a check that
    raises, a print) is a normal call in it, without torch's ordering tokens."""
    replace_complex_numbers(program.graph)
    return _decomposed_by_calls(program) or _remove_effect_tokens(program.run_decompositions(core_aten()))


def core_aten() -> dict:
    """Returns torch's decomposition table to core ATen, without the ops that are kept whole, and with substitutes for
    ops that engines lack."""
    table = torch.export.default_decompositions()
    check_is_kept = has_effects(torch.ops.aten._linalg_check_errors.default)
    for name in KEPT_WHOLE if check_is_kept else KEPT_WHOLE + CHECKED:
        _, op, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, op), overload), None)
    table.update(SUBSTITUTES)
    return table


@functools.cache
def decompositions() -> tuple[Mapping, Mapping]:
    """Splits core_aten() the way a tracer needs it: composite ops that stay whole, with torch's rule for that, and
    ops that Python functions decompose. Cached, because torch takes long to list its ops."""
    from torch._export.utils import _special_op_to_preserve_cia
    from torch.export.exported_program import _split_decomp_table_to_cia_and_python_decomp

    written_together, others = _split_decomp_table_to_cia_and_python_decomp(core_aten())
    return {op: rule for op, rule in written_together.items() if rule is _special_op_to_preserve_cia}, others


def _decomposed_by_calls(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram | None:
    """Returns the decomposed program, or None if it has a call that cannot be decomposed by itself."""
    from torch.export._trace import _ignore_backend_decomps
    from torch.export.exported_program import _get_updated_range_constraints, _override_composite_implicit_decomp

    mode = detect_fake_mode([node.meta["val"] for node in program.graph.find_nodes(op="placeholder")])
    if mode is None:
        return None
    with mode, torch.no_grad(), _ignore_backend_decomps():
        given = _without_writes(program.graph)
        if not all(_is_functional(node) for node in given.nodes):
            return None
        kept, others = decompositions()
        with enable_python_dispatcher(), _override_composite_implicit_decomp(kept):
            graph = _Decomposer(kept, others).decompose(given)
    if graph is None:
        return None
    signature = copy.deepcopy(program.graph_signature)
    for spec, node in zip(signature.output_specs, graph.output_node().args[0], strict=True):
        if isinstance(node, torch.fx.Node):
            spec.arg.name = node.name
    graph.eliminate_dead_code(lambda node: node.is_impure(impure_random=False))
    module = torch.fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=_get_updated_range_constraints(module, program.range_constraints),
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _without_writes(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Returns a copy in which a call that writes to a tensor creates a new one instead, if the tensor shares its
    memory with no other value.
    """
    functional = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        without_write = _without_write(node, copies)
        made = _copied(functional, node, copies)
        if without_write is not None:
            made.target = without_write
            written = copies[node.args[0]]
            copies.update({name: made for name, copied in copies.items() if copied is written})
        copies[node] = made
    return functional


def _without_write(node: torch.fx.Node, copies: Mapping) -> torch._ops.OpOverload | None:
    """For a call such as add_, returns add, if the written tensor is the only value that shows the write."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    schema, name = node.target._schema, node.target._opname.removesuffix("_")
    writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    call = getattr(getattr(torch.ops.aten, name, None), node.target._overloadname, None)
    if name == node.target._opname or call is None or writes != [True] + [False] * (len(writes) - 1):
        return None
    if not node.args or not isinstance(node.args[0], torch.fx.Node):  # a list of tensors, or self passed by name
        return None
    written = copies[node.args[0]]
    made_by = written.args[0] if written.target is operator.getitem else written
    if not all(_makes_new(op) for op in (call, made_by.target, *(user.target for user in written.users))):
        return None
    if [argument.name for argument in call._schema.arguments] != [argument.name for argument in schema.arguments]:
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
    keeps_dtype = call(*args, **kwargs).dtype == written.meta["val"].dtype  # a sum of two dtypes may be wider
    return call if keeps_dtype else None


def _makes_new(op: object) -> bool:
    """Returns True if no result of a call shares memory with its arguments."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or _is_implicit(op):
        return False
    return all(result.alias_info is None for result in op._schema.returns)


def _is_implicit(op: torch._ops.OpOverload) -> bool:
    """Returns True if the op is a composite of other ops."""
    return op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def _copied(graph: torch.fx.Graph, node: torch.fx.Node, copies: Mapping) -> torch.fx.Node:
    made = graph.node_copy(node, copies.__getitem__)
    if node.op == "placeholder":
        made.name = node.name  # the signature refers to it; a graph gives no node the name of a builtin
    return made


def _is_functional(node: torch.fx.Node) -> bool:
    """Returns True if the node creates new values, of sizes that do not depend on data, and modifies none."""
    sized = (value for value in tree_iter(node.meta.get("val")) if isinstance(value, (torch.Tensor, torch.SymInt)))
    if any(free_unbacked_symbols(value) for value in sized):
        return False
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable
    return not isinstance(node.target, torch._ops.HigherOrderOperator)


class _Decomposer:
    """Copies a graph's calls, replacing calls that core ATen lacks with their decompositions. `kept` and `others` are
    decompositions()."""

    def __init__(self, kept: Mapping, others: Mapping):
        self.kept = kept
        self.others = others
        self.graph = torch.fx.Graph()
        self.copies: dict[torch.fx.Node, object] = {}  # a list for a call with several results
        self.traced: dict[str, torch.fx.Graph] = {}  # keyed by the call and the shapes of its tensors

    def decompose(self, graph: torch.fx.Graph) -> torch.fx.Graph | None:
        """Returns the new graph, or None if a call writes to a tensor while it is computed."""
        for node in graph.nodes:
            given = self.copies.get(node.args[0]) if node.target is operator.getitem else None
            if isinstance(given, (list, tuple)):
                self.copies[node] = given[node.args[1]]
            elif not self._is_decomposed(node):
                self.copies[node] = _copied(self.graph, node, self.copies)
            else:
                parts = self._parts(node)
                if not all(_is_functional(part) for part in parts.nodes):
                    return None
                self._copy_parts(node, parts)
        return self.graph

    def _is_decomposed(self, node: torch.fx.Node) -> bool:
        """Returns True if core ATen decomposes this call. Calls that return sizes stay, because engines have none."""
        if not isinstance(node.target, torch._ops.OpOverload) or node.target in self.kept:
            return False
        if not any(isinstance(value, torch.Tensor) for value in tree_iter(node.meta.get("val"))):
            return False
        return node.target in self.others or _is_implicit(node.target)

    def _parts(self, node: torch.fx.Node) -> torch.fx.Graph:
        """Returns the calls that this one decomposes into. Its distinct argument nodes are the placeholders."""
        inputs = node.all_input_nodes
        described = {given: f"{number}: {_described(given.meta['val'])}" for number, given in enumerate(inputs)}
        key = f"{node.target} {map_arg((node.args, node.kwargs), described.__getitem__)}"
        if key not in self.traced:

            def call(*values: object) -> object:
                of = dict(zip(inputs, values, strict=True))
                return node.target(*map_arg(node.args, of.__getitem__), **map_arg(node.kwargs, of.__getitem__))

            traced = make_fx(call, decomposition_table=self.others)(*(given.meta["val"] for given in inputs))
            self.traced[key] = traced.graph
        return self.traced[key]

    def _copy_parts(self, node: torch.fx.Node, parts: torch.fx.Graph) -> None:
        of = dict(zip(parts.find_nodes(op="placeholder"), node.all_input_nodes, strict=True))
        of = {placeholder: self.copies[given] for placeholder, given in of.items()}
        for part in parts.nodes:
            if part.op == "call_function":
                of[part] = self.graph.node_copy(part, of.__getitem__)
                of[part].meta = {**node.meta, "val": part.meta.get("val")}
        self.copies[node] = map_arg(parts.output_node().args[0], of.__getitem__)


def _described(value: object) -> str:
    """Describes everything about a value that a trace depends on."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value}"
    memory = f"{value.stride()} {value.storage_offset()} {value.device} {value.layout}"
    return f"{value.dtype} {tuple(value.shape)} {memory} {value.is_conj()} {value.is_neg()}"
