"""Compares an engine with PyTorch, layer by layer. Also the program behind `accord engine compare`.

The model runs with hooks that keep the output of each module. The engine runs once and reports every value that it
computes, each with the module of its op. A module's output is matched with the last value of the same shape that is
computed in it or in the modules below it. Outputs that the engine fused away cannot be compared: they are listed with
the next module that can.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from accord._core import Communicator, Engine, Error, InvalidArgument
from accord.engines.loading import load
from accord.exporter import language_model
from accord.exporter.masks import attention_reaches

RELATIVE_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class ModuleDeviation:
    """How far the engine's value of one module's output is from PyTorch's."""

    module: str
    kind: str  # the module's class
    value: str  # its name in the package's graph
    shape: tuple[int, ...]
    largest: float  # largest absolute difference
    relative: float  # the largest difference divided by the largest magnitude of PyTorch's values
    tolerance: float
    # Modules between the previously compared one and this one whose outputs the engine fused away.
    unseen: tuple[str, ...]

    @property
    def deviates(self) -> bool:
        return not self.relative <= self.tolerance  # true for NaN


@dataclass(frozen=True)
class Comparison:
    """Result of compare(): the modules in the order in which the engine computes them."""

    modules: list[ModuleDeviation] = field(default_factory=list)

    @property
    def first_deviation(self) -> ModuleDeviation | None:
        return next((module for module in self.modules if module.deviates), None)

    def __str__(self) -> str:
        lines = [f"{'largest difference':>18} {'relative':>9} {'allowed':>9}  module"]
        for module in self.modules:
            mark = "  <- deviates" if module.deviates else ""
            lines.append(
                f"{module.largest:>18.3g} {module.relative:>9.2g} {module.tolerance:>9.2g}  "
                f"{module.module or '(the model)'} ({module.kind}, {list(module.shape)}){mark}"
            )
        first = self.first_deviation
        if first is None:
            lines.append(f"all {len(self.modules)} modules agree")
        else:
            unseen = f"; fused into it: {', '.join(first.unseen)}" if first.unseen else ""
            lines.append(f"the first module that deviates: {first.module or '(the model)'}{unseen}")
        return "\n".join(lines)

    def to_json(self) -> dict:
        first = self.first_deviation
        return {
            "first_deviation": None if first is None else first.module,
            "modules": [{**asdict(module), "deviates": module.deviates} for module in self.modules],
        }


def compare(
    model: torch.nn.Module,
    engine: Engine | str | os.PathLike,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    *,
    tolerance: float | None = None,
    groups: Mapping[str, Communicator] | None = None,
) -> Comparison:
    """Runs `model` and `engine` on `inputs` and compares the output of each module.

    engine: a bound engine, or a package, which is then loaded for `groups`. inputs: same as for forward(); for a
    language model they may also be the token ids [tokens] of a single sequence. tolerance: limit for the largest
    difference divided by the largest magnitude of a module's output; by default 1e-4 in float32, 2e-2 in float16,
    5e-2 in bfloat16.

    The first module beyond the tolerance is where to look: all modules before it agree. Collective over the engine's
    groups: all ranks pass equal models and inputs, and get the same answer. Raises ValueError if no module of the
    model is in the engine, and InvalidArgument if the engine is split into pipeline stages or replicas.
    """
    if not isinstance(engine, Engine):
        with load(engine, groups) as loaded:
            return compare(model, loaded, inputs, tolerance=tolerance)
    for name, what in (("pp", "a stage of a pipeline"), ("dp", "a replica with a part of the batch")):
        if engine.groups.get(name, (0, 1))[1] > 1:
            raise InvalidArgument(
                f'this rank has {what} (group "{name}") and cannot show all modules; the package computes the same without: load it so'
            )
    given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    prefix = ""
    with torch.no_grad():
        more_inputs = [info.name for info in engine.inputs][2:]
        if language_model.is_language_model(model) and more_inputs in (["rows"], ["rows", "adapters"]):
            if len(given) == 1:
                given += [torch.arange(len(given[0]))] * 2
            reaches = attention_reaches(model, language_model.longest_context(model))
            with language_model.steps_of(model, reaches) as steps:
                expected = _module_outputs(steps, given, language_model.PREFIX)
            prefix = language_model.PREFIX.removesuffix(".")
            if more_inputs[1:]:
                given.append(torch.zeros_like(given[0]))  # the model itself, without an adapter
        else:
            expected = _module_outputs(model, given)
    shown = sorted(engine.create_context().run_observed(*given), key=lambda value: value[0])
    seen = [
        _Value(name, "" if module == prefix else module, torch.Size(shape), _tensor(dtype, shape, data))
        for _, name, module, dtype, shape, data in shown
    ]
    return _joined(expected, seen, tolerance)


@dataclass(frozen=True)
class _Value:
    name: str
    module: str
    shape: torch.Size
    tensor: torch.Tensor | None  # None if it was fused away


def _module_outputs(
    model: torch.nn.Module, inputs: list, prefix: str = ""
) -> dict[str, tuple[str, list[torch.Tensor]]]:
    """Returns the class of each module and the tensors that its last call returned, by module path."""
    outputs: dict[str, tuple[str, list[torch.Tensor]]] = {}

    def keep(path: str):
        def hook(module, _, output):
            leaves = torch.utils._pytree.tree_leaves(output)
            tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
            outputs[path] = (type(module).__name__, tensors)

        return hook

    handles = []
    for path, module in model.named_modules():
        if path.startswith(prefix):
            handles.append(module.register_forward_hook(keep(path.removeprefix(prefix))))
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def _tensor(dtype: str, shape: Sequence[int], data: bytes | None) -> torch.Tensor | None:
    if data is None:
        return None
    if not data:
        return torch.empty(list(shape), dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(list(shape))


def _joined(expected: dict, seen: list, tolerance: float | None) -> Comparison:
    places: list[tuple[int, str]] = []  # index in `seen` of the module's output
    unseen: list[str] = []
    for path, (_, tensors) in expected.items():
        place = _output_of(path, tensors, seen)
        if place is not None:
            places.append((place, path))
        elif tensors:
            unseen.append(path)
    if not places:
        raise ValueError("the engine has no module of this model: is it a package of another one?")
    order = list(expected)  # a module's output comes after those of its submodules
    places.sort(key=lambda entry: (entry[0], order.index(entry[1])))
    rows = []
    for place, path in places:
        kind, tensors = expected[path]
        value = seen[place]
        alike = [tensor for tensor in tensors if tensor.shape == value.shape]
        before = [other for other in unseen if order.index(other) < order.index(path)]
        unseen = [other for other in unseen if other not in before]
        found = [_row(path, kind, value, reference, tolerance, tuple(before)) for reference in alike]
        rows.append(min(found, key=lambda row: row.relative))  # if several outputs have this shape, the closest one
    return Comparison(rows)


def _output_of(path: str, tensors: list[torch.Tensor], seen: list[_Value]) -> int | None:
    """Returns the index of the last value that is computed in the module or below it and has the shape of one of its
    outputs. Returns None if there is none or if it was fused away.
    """
    shapes = [tensor.shape for tensor in tensors if tensor.is_floating_point()]
    for place in range(len(seen) - 1, -1, -1):
        value = seen[place]
        inside = path == "" or value.module == path or value.module.startswith(path + ".")
        if inside and value.shape in shapes:
            return place if value.tensor is not None else None
    return None


def _row(path, kind, value, reference, tolerance, unseen) -> ModuleDeviation:
    difference = (value.tensor.double() - reference.double()).abs()
    largest = difference.max().item() if difference.numel() else 0.0
    magnitude = reference.double().abs().max().item() if reference.numel() else 0.0
    relative = largest / magnitude if magnitude else largest
    allowed = RELATIVE_TOLERANCE.get(reference.dtype, 1e-4) if tolerance is None else tolerance
    return ModuleDeviation(path, kind, value.name, tuple(value.shape), largest, relative, allowed, unseen)


def _made_model(source: str) -> torch.nn.Module:
    """Creates the model from FILE.py:FUNCTION or from a transformers model folder."""
    file, colon, function = source.rpartition(":")
    if colon and file.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        if spec is None or not Path(file).is_file():
            raise FileNotFoundError(f"{file}: there is no such file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, function)().eval()
    import transformers

    kinds = (transformers.AutoModelForCausalLM, transformers.AutoModel)
    architectures = transformers.AutoConfig.from_pretrained(source).architectures or [""]
    return kinds[0 if architectures[0].endswith(("ForCausalLM", "LMHeadModel")) else 1].from_pretrained(source).eval()


def _made_inputs(engine: Engine, path: str | None, tokens: int) -> list[torch.Tensor]:
    """Reads the inputs from a safetensors file; without a file, creates token ids for a language model."""
    names = [info.name for info in engine.inputs]
    if path is not None:
        from safetensors.torch import load_file

        tensors = load_file(path)
        if missing := [name for name in names if name not in tensors]:
            raise ValueError(f"{path} has no tensor {', '.join(missing)}, which the engine takes")
        return [tensors[name] for name in names]
    if names[2:] != ["rows"]:
        raise ValueError(f"give the engine's inputs ({', '.join(names)}) by --inputs")
    vocabulary = engine.outputs[0].shape[1]
    return [torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(0))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="accord engine compare", allow_abbrev=False)
    parser.add_argument("package")
    parser.add_argument("--model", required=True)
    parser.add_argument("--inputs")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--tolerance", type=float)
    parser.add_argument("--group", default="tp")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--canonical-ranks", type=int, default=0)
    parser.add_argument("--all-reduce-dtype")
    parser.add_argument("--activation-dtype")
    parser.add_argument("--memory-limit", default="0")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        with Communicator.from_environment() as comm:
            groups = {options.group: comm} if comm.size > 1 else {}
            named = ("threads", "canonical_ranks", "all_reduce_dtype", "activation_dtype", "memory_limit")
            how = {name: getattr(options, name) for name in named}
            on_host = os.environ.get("LOCAL_RANK", comm.rank)
            how["device"] = f"cuda:{on_host}" if options.device == "cuda" else options.device
            with load(options.package, groups, **how) as engine:
                inputs = _made_inputs(engine, options.inputs, options.tokens)
                found = compare(_made_model(options.model), engine, inputs, tolerance=options.tolerance)
            if comm.rank == 0:
                print(json.dumps(found.to_json()) if options.json else found, flush=True)
    except (Error, OSError, ValueError, AttributeError) as error:
        print(f"accord engine compare: {error}", file=sys.stderr)
        return 1
    return 0 if found.first_deviation is None else 1


if __name__ == "__main__":
    sys.exit(main())
