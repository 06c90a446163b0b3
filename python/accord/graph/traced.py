"""The input of a graph builder: a torch graph and its placeholders, outputs and sizes. Also checks of arguments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, SymIntArgument, TensorArgument
from torch.nn.parameter import is_lazy

from accord.graph.errors import ExportError
from accord.graph.explanations import JUST_IN_TIME


@dataclass
class TracedWeight:
    """A placeholder that is a weight. `tensor` is None while only its name is known."""

    node: torch.fx.Node
    name: str
    tensor: torch.Tensor | None = None


@dataclass
class TracedSymbol:
    """A size that may change, with torch's name and the graph's. `min` and `max` are the limits that engines are
    built for. `may_exceed`, `may_fall_below`: the model allows sizes beyond them."""

    torch_name: str
    name: str
    min: int
    max: int
    may_exceed: bool = False
    may_fall_below: bool = False


@dataclass
class TracedGraph:
    """The input of a graph builder: torch's nodes, in core ATen, and their roles as placeholders and outputs."""

    nodes: Sequence[torch.fx.Node]
    inputs: list[torch.fx.Node]
    weights: list[TracedWeight]
    outputs: list[torch.fx.Node]
    symbols: list[TracedSymbol] = field(default_factory=list)


def check_model(model: object, example_inputs: object) -> None:
    """Raises ExportError for models that torch.export misreads, or rejects with an internal error."""
    if isinstance(model, torch.export.ExportedProgram):
        raise ExportError("the model is a program of torch.export; accord.compile(program).save(path) saves it")
    if not isinstance(model, torch.nn.Module):
        raise ExportError(
            f"the model is a {type(model).__name__}, not a torch.nn.Module; put a function into one's forward()"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError(
            "the model is a TorchScript module, which torch.export does not trace; give the model in Python"
        )
    # A module of such a program keeps the mode in which it was traced: its eval() raises.
    if model.training and "eval" not in vars(model) and _has_parts(model):
        raise ExportError("the model is in training mode; call model.eval() first")
    if example_inputs is not None and not isinstance(example_inputs, (tuple, list)):
        raise ExportError(
            f"example_inputs is a {type(example_inputs).__name__}; give a tuple of forward()'s arguments: (x,)"
        )
    for name, module in model.named_modules():
        if type(module).__module__.startswith(_QUANTIZED_MODULES):
            raise ExportError(
                f'module "{name}" ({type(module).__name__}) is quantized by torch.ao, in ops that torch.export '
                'does not trace; give the model as it was before, and weights="int8"'
            )
    named = (*model.named_parameters(), *model.named_buffers())
    inputs = ((f"example_inputs[{index}]", value) for index, value in enumerate(example_inputs or ()))
    for name, value in (*((f'"{name}"', value) for name, value in named), *inputs):
        for is_so, what, remedy in _UNTRACED_TENSORS:
            if isinstance(value, torch.Tensor) and is_so(value):
                raise ExportError(f"{name} is {what}, which torch.export does not trace; {remedy}")
    for name, value in named:
        if value.is_inference():
            raise ExportError(
                f'"{name}" was made within torch.inference_mode(), and torch.export does not trace that; make the '
                "model within torch.no_grad() instead"
            )


def check_dimensions(model: torch.nn.Module, example_inputs: Sequence, dynamic_shapes: object) -> None:
    """Raises ExportError for a dimension in dynamic_shapes that its input lacks. torch reports other mistakes."""
    inputs: object = tuple(example_inputs)
    if isinstance(dynamic_shapes, Mapping):
        try:
            inputs = inspect.signature(model.forward).bind(*example_inputs).arguments
        except TypeError:  # the model does not accept these inputs; running it reports that
            return
    _check_dimensions(inputs, dynamic_shapes)


def _check_dimensions(value: object, shapes: object) -> None:
    if isinstance(value, torch.Tensor):
        for dim in shapes if isinstance(shapes, Mapping) else ():
            if type(dim) is not int or not -value.ndim <= dim < value.ndim:
                raise ExportError(f"dynamic_shapes names dimension {dim!r} of an input of shape {list(value.shape)}")
    elif isinstance(value, Mapping) and isinstance(shapes, Mapping):
        for key in (key for key in shapes if key in value):
            _check_dimensions(value[key], shapes[key])
    elif isinstance(value, (tuple, list)) and isinstance(shapes, (tuple, list)):
        for one, shape in zip(value, shapes, strict=False):
            _check_dimensions(one, shape)


_QUANTIZED_MODULES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")
_UNTRACED_TENSORS = (
    (is_lazy, "of no shape yet, of a lazy module", "run the model once before"),
    (lambda tensor: tensor.is_nested, "a nested tensor", "pad it to one shape, and mask what was added"),
    (lambda tensor: tensor.layout != torch.strided, "a sparse tensor", "give its to_dense()"),
    (lambda tensor: tensor.is_quantized, "a quantized tensor", "give its dequantize()"),
)
MOST_OF_NAME = 512  # bytes, as in packages
_TEXTS = (str, os.PathLike)
# The types of arguments, and a description of what is expected. None is the default of optional arguments; required
# ones reject it.
_ARGUMENTS = {
    "path": (_TEXTS, "the name of a package, NAME.accord"),
    "checkpoint": (_TEXTS, "a safetensors file, or a folder of them"),
    "file": (_TEXTS, "a GGUF file"),
    "folder": (_TEXTS, "the folder of a checkpoint"),
    "tokenizer": (_TEXTS, "a tokenizer.json, or the folder that has one"),
    "dynamic_shapes": ((Mapping, tuple, list), "the dimensions of each input: ({0: Dim('batch', max=64)},)"),
    "output_names": ((tuple, list), "a list of names"),
    "options": (Mapping, 'a mapping like {"min_block_size": 1}'),
    "progress": (Callable, "a function of the bytes written and the bytes in all"),
}


def check_arguments(**given: object) -> None:
    """Raises ExportError for arguments of accord.export() and similar functions that have the wrong type."""
    for name, value in given.items():
        types, expected = _ARGUMENTS[name]
        if (value is None and name in ("path", "file", "folder")) or (
            value is not None and not isinstance(value, types)
        ):
            raise ExportError(f"{name} is {value!r}; give {expected}")
        if isinstance(value, _TEXTS) and "\0" in os.fspath(value):
            raise ExportError(f"{name} is {value!r}; a path has no zeros in it")
    names = given.get("output_names") or ()
    if not all(
        isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= MOST_OF_NAME for name in names
    ):
        raise ExportError(f"output_names is {names!r}; give a list of names of 1 to {MOST_OF_NAME} printable bytes")


def check_patterns(name: str, rules: object) -> None:
    """Raises ExportError for rules whose patterns are not strings."""
    for pattern in rules if isinstance(rules, Mapping) else ():
        if not isinstance(pattern, str):
            raise ExportError(
                f'{name}: the pattern {pattern!r} is no text; give names of modules, "*" stands for any characters'
            )


def _has_parts(model: torch.nn.Module) -> bool:
    """Returns True if it has modules or weights. Without any it is a function, for which the mode means nothing."""
    return any(True for _ in (*model.children(), *model.parameters(), *model.buffers()))


def traced_program(
    program: torch.export.ExportedProgram, dim_names: Mapping[str, str], prefix: str = ""
) -> TracedGraph:
    """Describes a decomposed program. `dim_names`: the user's names of symbols, by torch's names. `prefix`: start of
    the weights' names in the program that the graph omits."""
    nodes = {node.name: node for node in program.graph.nodes}
    traced = TracedGraph(list(program.graph.nodes), [], [], [], _symbols_of(program, dim_names))
    for spec in program.graph_signature.input_specs:
        if isinstance(spec.arg, ConstantArgument):
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise ExportError(f'input "{spec.arg.name}" is no tensor: an engine takes and gives tensors only')
        node = nodes[spec.arg.name]
        if spec.kind == InputKind.USER_INPUT:
            traced.inputs.append(node)
            continue
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise ExportError(f'"{spec.target}" ({spec.kind.name}) cannot be exported')
        tensor = program.state_dict.get(spec.target)
        if tensor is None:
            tensor = program.constants[spec.target]
        traced.weights.append(TracedWeight(node, spec.target.removeprefix(prefix), tensor.detach()))
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise ExportError(
                f'the model changes "{spec.target}" while it runs, and an engine keeps no such state; give the new value as an '
                f"output, or {JUST_IN_TIME}"
            )
        if isinstance(spec.arg, TensorArgument):
            traced.outputs.append(nodes[spec.arg.name])
        elif not isinstance(spec.arg, (ConstantArgument, SymIntArgument)):
            raise ExportError(
                f'the model returns "{spec.arg.name}", a number that it computes; a package gives tensors, sizes '
                "and constants unless it is exported with options={}, which lets PyTorch compute the number"
            )
    if not traced.outputs:
        raise ExportError("the model returns no tensor; an engine gives tensors")
    return traced


def _symbols_of(program: torch.export.ExportedProgram, dim_names: Mapping[str, str]) -> list[TracedSymbol]:
    symbols = []
    for symbol, limits in program.range_constraints.items():
        name = dim_names.get(str(symbol))
        if name is None:
            continue
        if not limits.upper.is_Integer:
            raise ExportError(f'dimension "{name}" has no upper bound: give it one, e.g. Dim("{name}", max=512)')
        symbols.append(TracedSymbol(str(symbol), name, max(1, int(limits.lower)), int(limits.upper)))
    return symbols
