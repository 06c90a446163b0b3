"""Adds adapters to the package of a language model.

The weights do not change: the new package has the same files, without a copy where the file system can give them a
second name, and a further file with the matrices of all adapters. In the graph, each linear layer that an adapter
changes becomes an "accord.adapted_linear.default", which computes for each token the adapter of its request.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from accord.adapters.peft_folder import LayerAdapter, read_adapter
from accord.graph.builder import DTYPES
from accord.graph.errors import ExportError
from accord.package.loading import check_loads
from accord.package.progress import Progress
from accord.package.sharding import ADAPTED_LINEAR, LINEAR, Rule, ShardingPlan, apply_rules
from accord.package.weight_files import place_tensors, write_weight_files
from accord.package.writer import graph_text, placed_at, write_manifest, write_text_file

__all__ = ["export_adapters"]

_INPUT, _OF_ROWS = "adapters", "adapters_of_rows"  # values of the graph: the adapter of each token, of each wanted row


def export_adapters(
    package: str | os.PathLike,
    adapters: Mapping[str, str | os.PathLike],
    *,
    path: str | os.PathLike,
    progress: Progress | None = None,
) -> Path:
    """Writes the package `path` (NAME.accord): the language model of `package` with `adapters`, and returns its path.

    `adapters`: name to folder, as the library PEFT saves an adapter (adapter_config.json and
    adapter_model.safetensors). A request chooses one by its name, or none (`adapter=` of generate() and submit()), and
    requests with different adapters are computed together. Adapters change linear layers; their matrices are rounded
    to the layer's dtype and divided among ranks as its weight is. The package may have quantized weights.

    The weights are not read. Files get a second name (a hard link) if both packages are on one file system, and are
    copied otherwise. Cost of a layer's adapters in memory: those of the largest rank, for each adapter.

    Raises ExportError, which names the adapter and its tensor or setting, for variants of LoRA that engines do not run
    (DoRA, biases, embeddings, replaced layers) and for layers that the model does not have."""
    package = Path(package)
    if not adapters:
        raise ExportError("there are no adapters to add")
    manifest, graph = (_read_json(package / name) for name in ("manifest.json", "graph.json"))
    _check_base(package, manifest, graph)
    given = [read_adapter(folder) for folder in adapters.values()]
    tensors = _adapt(graph, dict(zip(adapters, given, strict=True)))
    plan = _plan_of(manifest, graph)
    destination = Path(os.path.abspath(path))
    with placed_at(path) as folder:
        new = {name: plan.tensors[name] for name in tensors if name in plan.tensors}
        files, entries = write_weight_files(folder, "adapters", place_tensors(tensors, new, {}), progress)
        of_graph = write_text_file(folder, "graph.json", graph_text(graph))
        others = [_same_file(package, one, destination, folder) for one in manifest["files"][1:]]
        manifest["files"] = [of_graph, *others, *files]
        manifest["tensors"] += entries
        manifest["language_model"]["adapters"] = list(adapters)
        write_manifest(folder, manifest)
        shapes = {entry["name"]: torch.empty(entry["shape"], device="meta") for entry in manifest["tensors"]}
        check_loads(folder, destination, shapes, plan, None)
    return destination


def _read_json(file: Path) -> dict:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ExportError(f"{file}: {error}") from error


def _check_base(package: Path, manifest: dict, graph: dict) -> None:
    if manifest.get("language_model") is None:
        raise ExportError(f"{package} is not a language model: requests choose adapters, and others have none")
    if manifest["language_model"].get("adapters"):
        raise ExportError(f"{package} has adapters already; add all of them to the package without any")
    if [one["name"] for one in graph["inputs"][:3]] != ["input_ids", "positions", "rows"]:
        raise ExportError(f"{package} does not take input_ids, positions and rows")


def _adapt(graph: dict, adapters: Mapping[str, Mapping[str, LayerAdapter]]) -> dict[str, torch.Tensor]:
    """Changes the graph, and returns the tensors of its new parameters."""
    _check_names(graph, adapters)
    values = {one["name"]: one for kind in ("inputs", "parameters") for one in graph[kind]}
    values |= {one["name"]: one for node in graph["nodes"] for one in node["outputs"]}
    ids, _, rows = graph["inputs"][:3]
    of_rows = {"name": _OF_ROWS, "dtype": "int64", "shape": rows["shape"]}
    graph["inputs"].append({"name": _INPUT, "dtype": "int64", "shape": ids["shape"]})
    select = {"self": {"value": _INPUT}, "dim": 0, "index": {"value": rows["name"]}}
    chosen = {tuple(ids["shape"]): _INPUT, tuple(rows["shape"]): _OF_ROWS}
    tensors: dict[str, torch.Tensor] = {}
    for node in graph["nodes"]:
        module = node["module"]
        of_layer = [layers.get(module) for layers in adapters.values()]
        if node["op"] != LINEAR or not any(of_layer):
            continue
        leading = tuple(size for size in node["outputs"][0]["shape"][:-1] if size != 1)
        if leading not in chosen:
            raise ExportError(f'"{module}" computes rows that are not tokens {list(leading)}, so it cannot be adapted')
        weight = values[node["arguments"]["weight"]["value"]]
        for side, tensor in _stacked(module, of_layer, weight, adapters).items():
            name = f"adapters.{module}.{side}"
            if name not in tensors:
                tensors[name] = tensor
                entry = {"name": f"weight.{name}", "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)}
                graph["parameters"].append(entry | {"tensor": name})
            node["arguments"][side] = {"value": f"weight.{name}"}
        node["op"] = ADAPTED_LINEAR
        node["arguments"]["adapters"] = {"value": chosen[leading]}
    if any(node["arguments"].get("adapters") == {"value": _OF_ROWS} for node in graph["nodes"]):
        node = {
            "op": "aten.index_select.default",
            "arguments": select,
            "outputs": [of_rows],
            "module": "",
            "source": "",
        }
        graph["nodes"].insert(0, node)
    return tensors


def _check_names(graph: dict, adapters: Mapping[str, Mapping[str, LayerAdapter]]) -> None:
    """Raises ExportError for a name that is no text, and for a layer that the graph does not have."""
    modules = {node["module"] for node in graph["nodes"] if node["op"] == LINEAR}
    others = {node["module"]: node["op"] for node in graph["nodes"]}
    for name, layers in adapters.items():
        if not isinstance(name, str) or not name or not name.isprintable() or len(name.encode()) > 512:
            raise ExportError(f"{name!r} cannot be the name of an adapter")
        for module in layers:
            if module in modules:
                continue
            if module in others:
                raise ExportError(
                    f'adapter "{name}": "{module}" is computed by {others[module]}, not by a linear layer'
                )
            near = difflib.get_close_matches(module, modules, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise ExportError(f'adapter "{name}": the package has no linear layer "{module}"{hint}')


def _stacked(
    module: str, layers: list[LayerAdapter | None], weight: dict, names: Mapping[str, object]
) -> dict[str, torch.Tensor]:
    """Returns the matrices of all adapters: down [adapters, rank, in] and up [adapters, out, rank], where ranks are
    filled up with zeros, and an adapter without this layer has zeros only."""
    dtype = {name: dtype for dtype, name in DTYPES.items()}[weight["dtype"]]
    out_size, in_size = weight["shape"]
    rank = max(len(layer.down) for layer in layers if layer)
    down, up = torch.zeros(len(layers), rank, in_size), torch.zeros(len(layers), out_size, rank)
    for index, (name, layer) in enumerate(zip(names, layers, strict=True)):
        if layer is None:
            continue
        if layer.down.shape[1] != in_size or len(layer.up) != out_size:
            raise ExportError(
                f'adapter "{name}": "{module}" takes {in_size} inputs and has {out_size} outputs, but the adapter is '
                f"for {layer.down.shape[1]} and {len(layer.up)}"
            )
        down[index, : len(layer.down)] = layer.down
        up[index, :, : len(layer.down)] = layer.up
    return {"down": down.to(dtype), "up": up.to(dtype)}


def _plan_of(manifest: dict, graph: dict) -> ShardingPlan:
    rules = [Rule(**rule) for rule in manifest["rules"]]
    tensors, _ = apply_rules(rules, graph)
    return ShardingPlan(rules, tensors, manifest["groups"])


def _same_file(package: Path, entry: dict, path: Path, folder: Path) -> dict:
    """Puts a file of the base package into `folder`, which will be at `path`. Returns its entry."""
    if "reference" in entry:
        reference = Path(entry["reference"])
        if reference.is_absolute():
            return entry
        return entry | {"reference": os.path.relpath(package.absolute() / reference, path)}
    source, copy = package / entry["name"], folder / entry["name"]
    try:
        os.link(source, copy)
    except OSError:
        shutil.copyfile(source, copy)
    return entry
