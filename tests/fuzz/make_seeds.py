"""Writes the seed inputs of package_fuzz: make_seeds.py DIRECTORY. The seeds are a graph, a manifest and whole
packages, one of which can be sharded over two ranks, all in the fuzz target's input format.

Sizes and hashes need not be correct because the fuzz target fills them in.
"""

import json
import struct
import sys
from pathlib import Path

HASH = "0" * 16


def graph() -> dict:
    """A graph with one linear layer and with nodes that cover every form of argument."""
    value = {"dtype": "float32", "shape": ["batch", "length", 4]}
    return {
        "symbols": [{"name": "batch", "min": 1, "max": 8}, {"name": "length", "min": 1, "max": 16}],
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", "length", 6]}],
        "parameters": [
            {"name": "weight", "dtype": "float32", "shape": [4, 6], "tensor": "w"},
            {"name": "bias", "dtype": "float32", "shape": [4], "tensor": "b"},
        ],
        "nodes": [
            {
                "op": "aten.linear.default",
                "arguments": {"input": {"value": "x"}, "weight": {"value": "weight"}, "bias": {"value": "bias"}},
                "outputs": [{"name": "linear", **value}],
                "module": "layer.0",
                "source": "model.py:3",
            },
            {
                "op": "aten.clamp.default",
                "arguments": {"self": {"value": "linear"}, "min": 0.5, "max": {"float": "inf"}},
                "outputs": [{"name": "clamp", **value}],
                "module": "",
                "source": "model.py:4",
            },
            {
                "op": "aten.view.default",
                "arguments": {"self": {"value": "clamp"}, "size": ["batch*length", -1]},
                "outputs": [{"name": "view", "dtype": "float32", "shape": ["length*batch", 4]}],
                "module": "",
                "source": "",
            },
            {
                "op": "aten.sum.dim_IntList",
                "arguments": {"self": {"value": "view"}, "dim": None, "keepdim": True, "dtype": {"dtype": "float32"}},
                "outputs": [{"name": "sum", "dtype": "float32", "shape": [1, 1]}],
                "module": "",
                "source": "",
            },
        ],
        "outputs": ["sum", "view"],
    }


def weights() -> tuple[bytes, int]:
    """Returns a safetensors file with "w" (3 units of 32 bytes) and "b", and the size of the file's header."""
    entries = {
        "w": {"dtype": "F32", "shape": [3, 4, 2], "data_offsets": [0, 96]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": [96, 112]},
    }
    return safetensors(entries, bytes(range(112)))


def packed_weights(unit_bytes: int) -> tuple[bytes, int]:
    """Like weights(), with "w" packed in units of `unit_bytes`."""
    entries = {
        "w": {"dtype": "U8", "shape": [3, unit_bytes], "data_offsets": [0, 3 * unit_bytes]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": [3 * unit_bytes, 3 * unit_bytes + 16]},
    }
    return safetensors(entries, bytes(i % 61 for i in range(3 * unit_bytes + 16)))


def safetensors(entries: dict, data: bytes) -> tuple[bytes, int]:
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data, 8 + len(header)


def manifest(header_size: int) -> dict:
    file = "weights-00001.safetensors"
    return {
        "format": "accord-package",
        "format_version": 2,
        "producer": "make_seeds.py",
        "groups": ["tp"],
        "rules": [{"pattern": "layer.*", "style": "row", "unit": 2, "group": "tp"}],
        "files": [
            {"name": "graph.json", "size": 1, "sha256": "0" * 64},
            {"name": file, "size": header_size + 112, "header_size": header_size, "header_sha256": "0" * 64},
        ],
        "tensors": [
            {
                "name": "w",
                "dtype": "float32",
                "shape": [4, 6],
                "sharding": {"group": "tp", "dim": 1, "unit": 2},
                "file": file,
                "offset": header_size,
                "granule_bytes": 32,
                "xxh3": [HASH] * 3,
            },
            {
                "name": "b",
                "dtype": "float32",
                "shape": [4],
                "file": file,
                "offset": header_size + 96,
                "granule_bytes": 8,
                "xxh3": [HASH] * 2,
            },
        ],
    }


def packed_manifest(header_size: int, packed: dict, unit_bytes: int) -> dict:
    whole = manifest(header_size)
    w, b = whole["tensors"]
    w |= {"packed": packed, "granule_bytes": unit_bytes}
    b["offset"] = header_size + 3 * unit_bytes
    whole["files"][1]["size"] = header_size + 3 * unit_bytes + 16
    return whole


def cut_graph() -> dict:
    """A column-parallel layer, an activation and a row-parallel layer over the same weights file. Both layers use
    "w"; "b" is the bias of the row-parallel layer."""

    def node(op: str, arguments: dict, name: str, shape: list) -> dict:
        outputs = [{"name": name, "dtype": "float32", "shape": shape}]
        return {"op": op, "arguments": arguments, "outputs": outputs, "module": name, "source": "model.py:5"}

    def value(name: str) -> dict:
        return {"value": name}

    whole = graph()
    turned = node("aten.permute.default", {"self": value("weight"), "dims": [1, 0]}, "turned", [6, 4])
    x = {"name": "x", "dtype": "float32", "shape": ["batch", 4]}
    return {
        "symbols": whole["symbols"][:1],
        "inputs": [x],
        "parameters": whole["parameters"],
        "nodes": [
            turned,
            node("aten.mul.Tensor", {"self": value("turned"), "other": 2}, "scaled", [6, 4]),
            node("aten.linear.default", {"input": value("x"), "weight": value("scaled")}, "up", ["batch", 6]),
            node("aten.gelu.default", {"self": value("up")}, "gelu", ["batch", 6]),
            node(
                "aten.linear.default",
                {"input": value("gelu"), "weight": value("weight"), "bias": value("bias")},
                "down",
                ["batch", 4],
            ),
        ],
        "outputs": ["down"],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    weight_bytes, header_size = weights()
    graph_bytes = json.dumps(graph()).encode()
    manifest_bytes = json.dumps(manifest(header_size)).encode()

    def package(
        graph_bytes: bytes, manifest_bytes: bytes = manifest_bytes, weight_bytes: bytes = weight_bytes
    ) -> bytes:
        lengths = struct.pack("<II", len(manifest_bytes), len(graph_bytes))
        return lengths + manifest_bytes + graph_bytes + weight_bytes

    def packed_package(packed: dict, unit_bytes: int) -> bytes:
        weight_bytes, header_size = packed_weights(unit_bytes)
        manifest_bytes = json.dumps(packed_manifest(header_size, packed, unit_bytes)).encode()
        return package(graph_bytes, manifest_bytes, weight_bytes)

    # A unit is [4, 2]. It is padded to 16 outputs, and its inputs to whole words or groups.
    int4 = {"type": "int4", "group": 32, "scales": "float16", "minima": True, "error": 0.1}

    seeds = {
        "graph": (0, graph_bytes),
        "manifest": (1, manifest_bytes),
        "package": (2, package(graph_bytes)),
        "packed_package": (2, packed_package({"type": "bfloat16"}, 64)),
        "quantized_package": (2, packed_package(int4, 16 * 4 + 16 * 16)),
        "float8_package": (2, packed_package({"type": "float8_e4m3fn", "error": 0.02}, 64)),
        "cut_package": (2, package(json.dumps(cut_graph()).encode())),
    }
    for name, (kind, content) in seeds.items():
        (folder / name).write_bytes(bytes([kind]) + content)


if __name__ == "__main__":
    main()
