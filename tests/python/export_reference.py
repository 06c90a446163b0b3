"""A slow, plain reader of engine packages: weights by the safetensors library, the graph run op by op with torch."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file


def read_json(package: Path, name: str) -> dict:
    return json.loads((package / name).read_text())


def read_tensors(package: Path) -> dict[str, torch.Tensor]:
    """All tensors in their global shapes, put together from their units."""
    manifest = read_json(package, "manifest.json")
    stored = {}
    for file in manifest["files"][1:]:
        stored.update(load_file(package / file["name"]))
    tensors = {}
    for entry in manifest["tensors"]:
        tensor = stored.pop(entry["name"])
        if "sharding" in entry:
            tensor = torch.cat(list(tensor), dim=entry["sharding"]["dim"])
        assert list(tensor.shape) == entry["shape"]
        tensors[entry["name"]] = tensor
    assert not stored
    return tensors


def run_graph(package: Path, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs graph.json on `inputs` and checks each value against the dtype and shape that the graph claims."""
    graph = read_json(package, "graph.json")
    tensors = read_tensors(package)
    symbols: dict[str, int] = {}
    values: dict[str, torch.Tensor] = {}
    for described, given in zip(graph["inputs"], inputs, strict=True):
        for size, actual in zip(described["shape"], given.shape, strict=True):
            if isinstance(size, str) and size.isidentifier():
                assert symbols.setdefault(size, actual) == actual
        values[described["name"]] = given

    def number(size):
        if isinstance(size, int):
            return size
        assert re.fullmatch(r"[\w *+()-]+", size)
        return eval(size, {"__builtins__": {}}, dict(symbols))

    def argument(given):
        if isinstance(given, list):
            return [number(size) for size in given]
        if not isinstance(given, dict):
            return given
        ((tag, content),) = given.items()
        return {
            "value": lambda: values[content],
            "values": lambda: [None if name is None else values[name] for name in content],
            "symbolic": lambda: number(content),
            "dtype": lambda: getattr(torch, content),
            "float": lambda: float(content),
        }[tag]()

    for parameter in graph["parameters"]:
        values[parameter["name"]] = tensors[parameter["tensor"]]
    for node in graph["nodes"]:
        _, name, overload = node["op"].split(".")
        if name == "view":  # values are dense in an engine; in torch they may be strided
            name, overload = "reshape", "default"
        op = getattr(getattr(torch.ops.aten, name), overload)
        arguments = {key: argument(given) for key, given in node["arguments"].items()}
        if name == "reshape":
            arguments["shape"] = arguments.pop("size")
        (output,) = node["outputs"]
        result = op(**arguments)
        assert list(result.shape) == [number(size) for size in output["shape"]], node
        assert result.dtype == getattr(torch, output["dtype"]), node
        values[output["name"]] = result
    return [values[name] for name in graph["outputs"]]
