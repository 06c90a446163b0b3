"""What is compiled ahead of its calls, as torch modules: a model (accord.compile), and the engine of a package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import accord
from accord.export_graph import decompose
from accord.export_sharding import ExportError
from accord.export_traced import check_model
from accord.jit.bound_engine import BoundEngine
from accord.jit.compiled_graph import CompiledGraph
from accord.jit.options import Options
from accord.jit.report import CompilationReport
from accord.jit.symbols import traced_symbol


class CompiledModule(torch.nn.Module):
    """What accord.compile() gives: called as the model, it runs in engines where it can."""

    def __init__(self, program: torch.export.ExportedProgram, options: Options) -> None:
        super().__init__()
        from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

        decomposed = decompose(program)
        signature = decomposed.graph_signature
        for spec in signature.output_specs:
            if spec.kind != OutputKind.USER_OUTPUT:
                raise ExportError(
                    f'the model changes "{spec.target}" while it runs; compile it by torch.compile instead'
                )
        self.model = torch.nn.Module()  # its weights, by their names in the model
        self.weights: list[torch.Tensor] = []
        self.weight_names: dict[int, str] = {}  # by their positions
        self.inputs: list[Expected] = []
        placeholders = [node for node in decomposed.graph.nodes if node.op == "placeholder"]
        for position, (spec, node) in enumerate(zip(signature.input_specs, placeholders, strict=True)):
            if spec.kind == InputKind.USER_INPUT:
                self.inputs.append(expected_of(node.meta["val"]))
                continue
            if not isinstance(spec.arg, TensorArgument):
                raise ExportError(f'"{spec.target}" ({spec.kind.name}) cannot be compiled')
            tensor = decomposed.state_dict.get(spec.target)
            self.weights.append(decomposed.constants[spec.target] if tensor is None else tensor)
            self.weight_names[position] = spec.target
            _hold(self.model, spec.target, self.weights[-1])
        if list(self.weight_names) != list(range(len(self.weight_names))):
            raise ExportError("a program whose weights do not come first cannot be compiled")
        symbols = [traced_symbol(str(symbol), limits) for symbol, limits in decomposed.range_constraints.items()]
        self.in_spec, self.out_spec = program.call_spec
        self.ranges = dict(decomposed.range_constraints)
        self.graph = CompiledGraph(decomposed.graph_module, self.weight_names, symbols, options)

    @property
    def report(self) -> CompilationReport:
        """What runs where."""
        return self.graph.report

    def build(self, *example_inputs) -> None:
        """Builds the engines now, and not at the first call."""
        self.graph.build(*self.weights, *torch.utils._pytree.tree_leaves(example_inputs))

    def save(
        self,
        path: str | os.PathLike,
        *,
        weights: str | Mapping | None = None,
        checkpoint: str | os.PathLike | None = None,
    ) -> Path:
        """Writes what was compiled to the package `path` (NAME.accord), as accord.export() does with the same options; `weights` and
        `checkpoint` as there. A model with collectives is saved by all ranks of torch.distributed's world together. Raises ExportError."""
        from accord.exporter import save

        return save(self, path, weights=weights, checkpoint=checkpoint)

    def forward(self, *args, **kwargs):
        leaves = leaves_of(args, kwargs, self.in_spec)
        check_leaves(leaves, self.inputs)
        return torch.utils._pytree.tree_unflatten(self.graph(*self.weights, *leaves), self.out_spec)


def leaves_of(args: tuple, kwargs: dict, in_spec) -> list:
    """The leaves of a call's arguments; TypeError if they are not nested as those that a model was compiled for."""
    leaves, given = torch.utils._pytree.tree_flatten((args, kwargs))
    if given != in_spec:
        raise TypeError(f"accord: the model was compiled for arguments {_nested(in_spec)}, not {_nested(given)}")
    return leaves


def check_leaves(leaves: Sequence, inputs: Sequence[Expected]) -> None:
    """TypeError for what a model was not compiled for."""
    if len(leaves) != len(inputs):
        raise TypeError(f"accord: {len(leaves)} inputs were given, the model takes {len(inputs)}")
    for number, (leaf, expected) in enumerate(zip(leaves, inputs, strict=True)):
        if not expected.is_met_by(leaf):
            raise TypeError(f"accord: input {number} was {expected} when the model was compiled, and is {_told(leaf)}")


def _nested(spec) -> str:
    """How arguments are nested, as a call of forward() that has a * for each."""
    args, kwargs = torch.utils._pytree.tree_unflatten(["*"] * spec.num_leaves, spec)
    told = [str(one) for one in args] + [f"{name}={value}" for name, value in kwargs.items()]
    return f"({', '.join(told)})".replace("'*'", "*")


@dataclass(frozen=True)
class Expected:
    """What a compiled model takes at one place: a tensor, or a value that became part of the program."""

    value: object = None
    dtype: torch.dtype | None = None
    sizes: tuple[int | None, ...] = ()  # None: any

    def is_met_by(self, leaf: object) -> bool:
        if self.dtype is None:
            return type(leaf) is type(self.value) and leaf == self.value
        return (
            isinstance(leaf, torch.Tensor)
            and leaf.dtype == self.dtype
            and leaf.dim() == len(self.sizes)
            and all(size in (None, now) for size, now in zip(self.sizes, leaf.shape, strict=True))
        )

    def __str__(self) -> str:
        if self.dtype is None:
            return repr(self.value)
        return f"{self.dtype} [{', '.join('any' if size is None else str(size) for size in self.sizes)}]"


def expected_of(example: object) -> Expected:
    if not isinstance(example, torch.Tensor):
        return Expected(value=example)
    sizes = tuple(size if isinstance(size, int) else None for size in example.shape)
    return Expected(dtype=example.dtype, sizes=sizes)


def _told(leaf: object) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{leaf.dtype} {list(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, (int, float, str, type(None))) else f"a {type(leaf).__name__}"


def _hold(module: torch.nn.Module, path: str, tensor: torch.Tensor) -> None:
    *outer, name = path.split(".")
    for piece in outer:
        if piece not in module._modules:
            module.add_module(piece, torch.nn.Module())
        module = module._modules[piece]
    if isinstance(tensor, torch.nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def compile(
    model: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Sequence[torch.Tensor] = (),
    options: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: Mapping | Sequence | None = None,
) -> CompiledModule:
    """Compiles `model` now, for calls with inputs like `example_inputs`, to a module that is called as the model is.

    What the engine can run becomes engines, which share the model's weights where they use them as they are; the rest stays in
    PyTorch. `options`: those of torch.compile(backend="accord"), docs/compile.md; an unknown one is an error. `dynamic_shapes`: as
    for torch.export. `model` may be a program that torch.export has made. Raises ExportError, which says what to do.
    """
    chosen = Options.read(options)
    if not isinstance(model, torch.export.ExportedProgram):
        check_model(model, example_inputs)
        with torch.no_grad():
            model = torch.export.export(model, tuple(example_inputs), dynamic_shapes=dynamic_shapes)
    compiled = CompiledModule(model, chosen)
    if example_inputs:
        compiled.build(*example_inputs)
    return compiled


class EngineModule(torch.nn.Module):
    """The engine of a package as a module; Engine.module() says more."""

    def __init__(self, engine: accord.Engine) -> None:
        super().__init__()
        self._bound = BoundEngine(engine, None)
        self._bound.owned_by(self)
        self._names = [info.name for info in engine.inputs]
        self._outputs = [info.name for info in engine.outputs]

    @property
    def engine(self) -> accord.Engine:
        return self._bound.engine

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor):
        """One output alone, several as a tuple."""
        given = dict(zip(self._names, args, strict=False))
        if (
            len(args) > len(self._names)
            or given.keys() & kwargs.keys()
            or given.keys() | kwargs.keys() != set(self._names)
        ):
            raise TypeError(f"accord: the engine takes {', '.join(self._names)}, each once, by position or by name")
        given |= kwargs
        outputs = self._bound.run([given[name].detach().contiguous() for name in self._names])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
