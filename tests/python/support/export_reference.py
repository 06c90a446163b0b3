"""A slow, plain reader of engine packages. It reads weights with the safetensors library and runs the graph op by op
in torch."""

import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file


def read_json(package: Path, name: str) -> dict:
    return json.loads((package / name).read_text())


def _bytes_of(words: np.ndarray) -> np.ndarray:
    """Returns the 8-bit codes in words [words, width] as [inputs, width]."""
    return np.stack([words >> 8 * byte & 255 for byte in (0, 2, 1, 3)], 1).reshape(-1, words.shape[-1])


def _short_codes_of(words: np.ndarray, high: int) -> np.ndarray:
    """Returns the codes of 4 bits and `high` more in words [words, width] as [inputs, width]."""
    per_block = 4 // high if high else 1
    blocks = words.reshape(-1, per_block + (high > 0), words.shape[-1])
    codes = []
    for block in blocks:
        for n in range(per_block):
            for shift in (0, 16, 4, 20, 8, 24, 12, 28):
                code = block[n] >> shift & 15
                if high:
                    code |= (block[-1] >> shift // 8 * 8 + high * (2 * n + shift % 8 // 4) & (1 << high) - 1) << 4
                codes.append(code)
    return np.stack(codes)


def unpacked(data: np.ndarray, out: int, in_: int, packed: dict) -> np.ndarray:
    """Decodes one packed block to float64 [out, in], element by element, as docs/engine-format.md and
    src/kernels/linear/format.hpp describe it."""
    if packed["type"] == "float8_e4m3fn":  # no panels: scales, then rows
        together = packed.get("group", in_)
        size = 4 * out * -(-in_ // together)
        scales, elements = (
            data[:size].view(np.float32).reshape(out, -1),
            data[size : size + out * in_].reshape(out, in_),
        )
        numbers = torch.from_numpy(elements.copy()).view(torch.float8_e4m3fn).double().numpy()
        return scales.astype(np.float64).repeat(together, 1)[:, :in_] * numbers
    group, rounded = packed.get("group", 0), -(-in_ // packed.get("group", 2)) * packed.get("group", 2)
    result = np.zeros((out, rounded))
    begin = 0
    for first in range(0, out, 64):
        width = min(64, -(-(out - first) // 16) * 16)

        def take(count: int, dtype) -> np.ndarray:
            nonlocal begin
            taken = data[begin : (begin := begin + count * np.dtype(dtype).itemsize)].view(dtype)
            return taken.reshape(-1, width)  # noqa: B023

        if packed["type"] in ("float32", "float16"):
            panel = take(in_ * width, packed["type"]).astype(np.float64).T
        elif packed["type"] == "bfloat16":
            words = take(rounded // 2 * width, np.uint32)
            halves = [(words << 16).view(np.float32), (words & 0xFFFF0000).view(np.float32)]
            panel = np.stack(halves, 1).reshape(-1, width).T
        else:
            table = packed.get("table")
            bits, minima = 4 if table else int(packed["type"].removeprefix("int")), packed["minima"]

            def take_scales(dtype) -> tuple[np.ndarray, np.ndarray | float]:
                scales = take(width, dtype).astype(np.float64)  # noqa: B023
                return scales, take(width, dtype).astype(np.float64) if minima else 0.0  # noqa: B023

            supers = [(1.0, 1.0)] * -(-rounded // 256)
            if packed["scales"] == "int8":
                supers = [take_scales(np.float16) for _ in supers]
            groups = []
            for number in range(rounded // group):
                super_scale, super_minimum = supers[number * group // 256]
                scale, minimum = take_scales(packed["scales"])
                words = take(group * bits // 32 * width, np.uint32)
                codes = _bytes_of(words) if bits == 8 else _short_codes_of(words, bits - 4)
                zero = 0 if minima else 1 << (bits - 1)
                numbers = np.array(table)[codes] if table else codes.astype(np.float64) - zero
                groups.append(super_scale * scale * numbers + super_minimum * minimum)
            panel = np.concatenate(groups).T
        result[first : first + width, : panel.shape[1]] = panel[: out - first]
    return result[:, :in_]


def unpacked_tensor(stored: torch.Tensor, entry: dict) -> torch.Tensor:
    """Decodes a packed tensor from the bytes of its units. A unit has one block per expert, or per group of a
    convolution."""
    packed, sharding, shape = entry["packed"], entry.get("sharding"), list(entry["shape"])
    dim = sharding["dim"] if sharding else 0
    unit = shape.copy()
    if sharding:
        unit[dim] = sharding["unit"]
    transposed = packed.get("transposed", False)
    blocks = []
    for data in stored.numpy():
        if groups := packed.get("groups"):
            places = math.prod(shape[2:])
            rows = [unpacked(one, shape[0] // groups, places * shape[1], packed) for one in np.split(data, groups)]
            block = np.concatenate(rows).reshape(shape[0], places, shape[1]).swapaxes(1, 2).reshape(shape)
        elif len(shape) == 3:
            block = np.stack([unpacked(one, *unit[1:], packed) for one in np.split(data, unit[0])])
        else:
            block = unpacked(data, *(unit[::-1] if transposed else unit), packed)
        blocks.append(torch.from_numpy(block.T if transposed else block))
    whole = torch.cat(blocks, dim).narrow(dim, 0, shape[dim])
    return whole.to(getattr(torch, entry["dtype"])).contiguous()


def changed_manifest(package: Path, to: Path, change) -> Path:
    """Copies the package, applies `change` to the copy's manifest and updates the hash."""
    copy = shutil.copytree(package, to)
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    text = json.dumps(manifest).encode()
    (copy / "manifest.json").write_bytes(text)
    (copy / "manifest.sha256").write_text(hashlib.sha256(text).hexdigest() + "\n")
    return copy


def read_tensors(package: Path) -> dict[str, torch.Tensor]:
    """Reads all tensors in their global shapes, assembled from their units."""
    manifest = read_json(package, "manifest.json")
    stored = {}
    for file in manifest["files"][1:]:
        stored.update(load_file(package / file["name"]))
    tensors = {}
    for entry in manifest["tensors"]:
        tensor = stored.pop(entry["name"])
        if "packed" in entry:
            tensor = unpacked_tensor(tensor, entry)
        elif "sharding" in entry and tensor.dim() == 1:
            before = entry["shape"][: entry["sharding"]["dim"]]
            assert math.prod(before) == 1, "units of another dimension are woven"
            tensor = tensor.reshape(entry["shape"])
        elif "sharding" in entry:
            tensor = torch.cat(list(tensor), dim=entry["sharding"]["dim"])
        assert list(tensor.shape) == entry["shape"]
        tensors[entry["name"]] = tensor
    assert not stored
    return tensors


def run_graph(package: Path, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs graph.json on `inputs` and checks each value against the dtype and shape that the graph declares."""
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
        if name == "view":  # an engine's values are dense; torch's may be strided
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
