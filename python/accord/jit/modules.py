"""Models compiled ahead of their calls, as torch modules: accord.compile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from accord.graph.decomposition import decompose
from accord.graph.errors import ExportError
from accord.graph.explanations import explained
from accord.graph.symbols import symbols_within
from accord.graph.traced import check_arguments, check_dimensions, check_model, check_patterns
from accord.jit.compiled_graph import CompiledGraph
from accord.jit.model_call import Expected, check_leaves, leaves_of
from accord.jit.options import Options
from accord.jit.report import CompilationReport
from accord.jit.saving import save_compiled
from accord.package.producer import producer
from accord.package.progress import terminal_progress


class CompiledModule(torch.nn.Module):
    """The result of accord.compile(): called like the model, it runs in engines where possible."""

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
        self.model = torch.nn.Module()  # holds the weights, under the model's names
        self.weights: list[torch.Tensor] = []
        self.weight_names: dict[int, str] = {}  # by position
        self.inputs: list[Expected] = []
        placeholders = [node for node in decomposed.graph.nodes if node.op == "placeholder"]
        for position, (spec, node) in enumerate(zip(signature.input_specs, placeholders, strict=True)):
            if spec.kind == InputKind.USER_INPUT:
                self.inputs.append(Expected.of(node.meta["val"]))
                continue
            if not isinstance(spec.arg, TensorArgument):
                raise ExportError(f'"{spec.target}" ({spec.kind.name}) cannot be compiled')
            tensor = decomposed.state_dict.get(spec.target)
            self.weights.append(decomposed.constants[spec.target] if tensor is None else tensor)
            self.weight_names[position] = spec.target
            _hold(self.model, spec.target, self.weights[-1])
        if list(self.weight_names) != list(range(len(self.weight_names))):
            raise ExportError("a program whose weights do not come first cannot be compiled")
        symbols = symbols_within(decomposed.range_constraints)
        self.in_spec, self.out_spec = program.call_spec
        self.ranges = dict(decomposed.range_constraints)
        self.graph = CompiledGraph(decomposed.graph_module, self.weight_names, symbols, options)

    @property
    def report(self) -> CompilationReport:
        """Reports what runs where."""
        return self.graph.report

    def build(self, *example_inputs) -> None:
        """Builds the engines now instead of at the first call."""
        self.graph.build(*self.weights, *torch.utils._pytree.tree_leaves(example_inputs))

    def save(
        self,
        path: str | os.PathLike,
        *,
        weights: str | Mapping | None = None,
        checkpoint: str | os.PathLike | None = None,
    ) -> Path:
        """Writes the compiled model to the package `path` (NAME.accord), as accord.export() does with the same
        options; `weights` and `checkpoint` are the same as there. A model with collectives is saved by all ranks of
        torch.distributed's world together. Raises ExportError."""
        check_arguments(path=path, checkpoint=checkpoint)
        check_patterns("weights", weights)
        progress = terminal_progress()
        return save_compiled(self, path, producer(), weights=weights, checkpoint=checkpoint, progress=progress)

    def __reduce__(self):
        raise TypeError(
            "accord: a compiled module is neither copied nor pickled: write it by save(path), and load that by "
            "accord.load(path).module()"
        )

    def forward(self, *args, **kwargs):
        leaves = leaves_of(args, kwargs, self.in_spec)
        check_leaves(leaves, self.inputs)
        return torch.utils._pytree.tree_unflatten(self.graph(*self.weights, *leaves), self.out_spec)


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
    """Compiles `model` now, for calls with inputs like `example_inputs`, to a module that is called like the model.

    Everything that engines can run becomes engines, which share the model's weights where they use them unchanged;
    the rest stays in PyTorch. `options`: same as for torch.compile(backend="accord"), see docs/compile.md; an unknown
    option is an error. `dynamic_shapes`: same as for torch.export. `model` may be a program created by torch.export.
    Raises ExportError, which says what to do.
    """
    check_arguments(dynamic_shapes=dynamic_shapes)
    chosen = Options.read(options)
    if example_inputs is None:
        raise ExportError("example_inputs is None; give a tuple of forward()'s arguments: (x,)")
    if not isinstance(model, torch.export.ExportedProgram):
        check_model(model, example_inputs)
    traced = model
    with contextlib.ExitStack() as stack:
        if not isinstance(model, torch.export.ExportedProgram):
            stack.enter_context(explained(model, lambda: model(*example_inputs)))
            stack.enter_context(torch.no_grad())
            check_dimensions(model, example_inputs, dynamic_shapes)
            traced = torch.export.export(model, tuple(example_inputs), dynamic_shapes=dynamic_shapes)
        compiled = CompiledModule(traced, chosen)
        if example_inputs:
            compiled.build(*example_inputs)
    return compiled
