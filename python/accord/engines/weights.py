"""New weights for a loaded engine: from a package, from safetensors files, or from a state dict."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from accord._core import Engine, Error, Mismatch, NotFound
from accord.package.weight_names import by_package_names

if TYPE_CHECKING:
    import torch


def load_weights(engine: Engine, weights: str | os.PathLike | Mapping[str, torch.Tensor]) -> None:
    """Implements Engine.load_weights(). A state dict is first written beside the package, packed in the same way,
    read from there, and removed.
    """
    if not isinstance(weights, Mapping):
        path = Path(weights)
        if (path / "manifest.json").is_file() or path.suffix == ".accord":
            engine.load_package_weights(path)
            return
    with contextlib.ExitStack() as stack:
        try:
            written = _write_package(engine, weights, stack)
        except BaseException:
            # The ranks agree on new weights, so a rank without weights takes part with a package that does not exist.
            with contextlib.suppress(Error):
                engine.load_package_weights(Path(engine.path) / "none.accord")
            raise
        engine.load_package_weights(written)


def _write_package(engine: Engine, weights, stack: contextlib.ExitStack) -> Path:
    """Writes a package like the engine's with these weights. It exists until the stack ends."""
    from accord.package.writer import write_package

    given = weights if isinstance(weights, Mapping) else _read_checkpoint(Path(weights))
    package = Path(engine.path)
    manifest, graph = (json.loads((package / name).read_text()) for name in ("manifest.json", "graph.json"))
    folder = Path(tempfile.mkdtemp(prefix=".weights.", dir=package.absolute().parent))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    tensors = _tensors_of(package, manifest, given)
    plan, packings = _plan_of(manifest)
    return write_package(
        folder / "new.accord",
        graph,
        tensors,
        plan,
        manifest["producer"],
        lambda done, total: None,
        _encoder_of(package, manifest),
        packings=packings,
    )


def _encoder_of(package: Path, manifest: dict):
    """Returns the facts that go with the encoder of a language model, whose graph uses the tensors too."""
    from accord.package.writer import LanguageModelFacts

    file = package / "encoder.json"
    if not file.is_file():
        return None
    facts = manifest["language_model"]
    return LanguageModelFacts(
        facts["max_context"],
        facts["stop_tokens"],
        {file.name: file.read_bytes()},
        facts.get("start_tokens"),
        facts.get("source_token"),
    )


def _read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise NotFound(f"{path}: there are no safetensors files")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        tensors.update(load_file(file))
    return tensors


def _tensors_of(package: Path, manifest: dict, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the new value of each of the package's tensors, checked. A tensor that no product reads (a buffer, for
    example) may be missing and keeps its value.
    """
    from accord.graph.builder import DTYPES, memory_key

    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    given = by_package_names(given, {entry["name"]: entry["shape"] for entry in manifest["tensors"]})
    tensors = {}
    for entry in manifest["tensors"]:
        name, dtype = entry["name"], dtypes[entry["dtype"]]
        tensor = given.get(name)
        if tensor is None:
            if "packed" in entry or "sharding" in entry:
                raise Mismatch(f'the new weights have no tensor "{name}"')
            tensors[name] = _kept(package, manifest, entry, dtype)
            continue
        if list(tensor.shape) != entry["shape"]:
            raise Mismatch(
                f'tensor "{name}" is {list(tensor.shape)} in the new weights, {entry["shape"]} in the engine'
            )
        if tensor.dtype != dtype and not (tensor.dtype.is_floating_point and dtype.is_floating_point):
            raise Mismatch(f'tensor "{name}" is {tensor.dtype} in the new weights, {dtype} in the engine')
        tensors[name] = tensor.detach().to(dtype)
    used = {memory_key(tensor) for name, tensor in given.items() if name in tensors}
    unknown = [name for name, tensor in given.items() if name not in tensors and memory_key(tensor) not in used]
    if unknown:
        raise Mismatch(f'the engine has no tensor "{unknown[0]}", which the new weights have')
    return tensors


def _kept(package: Path, manifest: dict, entry: dict, dtype: torch.dtype) -> torch.Tensor:
    """Returns the current value of a tensor that is stored row-major in its file."""
    import torch

    count = math.prod(entry["shape"])
    file = next(one for one in manifest["files"] if one["name"] == entry["file"])
    return (
        torch.from_file(
            str(package / file.get("reference", file["name"])),
            shared=False,
            size=entry["offset"] + count * dtype.itemsize,
            dtype=torch.uint8,
        )[entry["offset"] :]
        .view(dtype)
        .reshape(entry["shape"])
    )


def _plan_of(manifest: dict):
    from accord.package.sharding import Rule, ShardingPlan, TensorSharding
    from accord.package.weights import Packing

    rules = [Rule(**rule) for rule in manifest["rules"]]
    shardings = {}
    packings = {}
    for entry in manifest["tensors"]:
        if sharding := entry.get("sharding"):
            shardings[entry["name"]] = TensorSharding(**sharding)
        if packed := entry.get("packed"):
            packings[entry["name"]] = Packing(**{name: value for name, value in packed.items() if name != "error"})
    return ShardingPlan(rules, shardings, manifest["groups"]), packings
