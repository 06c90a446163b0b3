"""Writes an engine package: a directory NAME.accord, there as a whole or not at all. docs/engine-format.md is the
format.

Everything is written into a temporary directory beside the destination, weights granule by granule with a hash of
each, synced, and then renamed. The safetensors files are written here and not by the safetensors library, which would
hold all tensors in memory at once.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from accord.export_graph import DTYPES
from accord.export_sharding import ExportError, Rule, ShardingPlan, TensorSharding

FORMAT = "accord-package"
FORMAT_VERSION = 1
GRANULE_BYTES = 1 << 20  # of a tensor that is not sharded
FILE_BYTES = 4 << 30  # a weights file that reaches this is followed by another
SAFETENSORS_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
    "uint8": "U8",
}

Progress = Callable[[int, int], None]


@dataclass
class _Placed:
    """A tensor and where it lies in its file's data."""

    name: str
    tensor: torch.Tensor
    sharding: TensorSharding | None
    begin: int
    bytes: int

    def stored_shape(self) -> list[int]:
        """Of a sharded tensor: [units, ...shape with its sharded dimension cut to one unit]."""
        shape = list(self.tensor.shape)
        if self.sharding is None:
            return shape
        units = shape[self.sharding.dim] // self.sharding.unit
        shape[self.sharding.dim] = self.sharding.unit
        return [units, *shape]

    def granule_bytes(self) -> int:
        return self.bytes // self.stored_shape()[0] if self.sharding else GRANULE_BYTES

    def granules(self):
        """The bytes of each granule, in order."""
        if self.sharding is None:
            flat = _bytes_of(self.tensor)
            for begin in range(0, self.bytes, GRANULE_BYTES):
                yield flat[begin : begin + GRANULE_BYTES]
        else:
            for piece in self.tensor.split(self.sharding.unit, dim=self.sharding.dim):
                yield _bytes_of(piece)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's elements in row-major order, without a copy where it lies so already."""
    return memoryview(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def write_package(
    path: str | os.PathLike,
    graph: dict,
    tensors: Mapping[str, torch.Tensor],
    plan: ShardingPlan,
    producer: str,
    progress: Progress | None = None,
) -> Path:
    """Writes the package at `path` (NAME.accord). An older package there is replaced in one step; anything else is left
    alone and an error. ExportError also if the disk is full."""
    destination = Path(os.path.abspath(path))
    _check_destination(destination)
    files = _place(tensors, plan.tensors)
    total = sum(placed.bytes for file in files for placed in file)
    free = shutil.disk_usage(destination.parent).free
    if total > free:
        raise ExportError(f"{destination}: the weights take {total:,} bytes, the disk has {free:,} free")
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        _write_files(temporary, graph, files, plan, producer, progress)
        os.chmod(temporary, 0o755)
        _move(temporary, destination)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ExportError(f"{destination}: the disk is full; nothing was written") from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return destination


def _check_destination(destination: Path) -> None:
    if destination.suffix != ".accord":
        raise ExportError(f'{destination}: the name of a package ends in ".accord"')
    if not destination.parent.is_dir():
        raise ExportError(f"{destination}: there is no directory {destination.parent}")
    if os.path.lexists(destination) and not is_package(destination):
        raise ExportError(f"{destination} exists and is no engine package; it is left as it is")


def is_package(path: Path) -> bool:
    """Whether a directory is an engine package of any version, whole or not: only such a one may be replaced."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return False
    return not path.is_symlink() and isinstance(manifest, dict) and manifest.get("format") == FORMAT


def _place(tensors: Mapping[str, torch.Tensor], shardings: Mapping[str, TensorSharding]) -> list[list[_Placed]]:
    """Spreads the tensors, in their given order, over as many files as are needed."""
    files: list[list[_Placed]] = [[]]
    begin = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            raise ExportError(f'tensor "{name}" is empty ({list(tensor.shape)}); an engine has no use for it')
        if files[-1] and begin + size > FILE_BYTES:
            files.append([])
            begin = 0
        files[-1].append(_Placed(name, tensor, shardings.get(name), begin, size))
        begin += size
    return [file for file in files if file]


def _write_files(
    folder: Path, graph: dict, files: list[list[_Placed]], plan: ShardingPlan, producer: str, progress: Progress | None
) -> None:
    graph_bytes = (json.dumps(graph, indent=1, allow_nan=False) + "\n").encode()
    _write(folder / "graph.json", graph_bytes)
    entries = [{"name": "graph.json", "size": len(graph_bytes), "sha256": hashlib.sha256(graph_bytes).hexdigest()}]
    tensors = []
    total = sum(placed.bytes for file in files for placed in file)
    done = 0
    for number, file in enumerate(files, 1):
        name = f"weights-{number:05}.safetensors"
        header = _safetensors_header(file)
        with open(folder / name, "xb") as out:
            out.write(header)
            for placed in file:
                hashes = []
                for granule in placed.granules():
                    out.write(granule)
                    hashes.append(xxhash.xxh3_64_hexdigest(granule))
                    done += len(granule)
                    if progress:
                        progress(done, total)
                tensors.append(_tensor_entry(placed, name, len(header), hashes))
            size = out.tell()
            out.flush()
            os.fsync(out.fileno())
        entries.append(
            {
                "name": name,
                "size": size,
                "header_size": len(header),
                "header_sha256": hashlib.sha256(header).hexdigest(),
            }
        )
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "producer": producer,
        "groups": plan.groups,
        "rules": [_rule_entry(rule) for rule in plan.rules],
        "files": entries,
        "tensors": tensors,
    }
    manifest_bytes = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    _write(folder / "manifest.json", manifest_bytes)
    _write(folder / "manifest.sha256", (hashlib.sha256(manifest_bytes).hexdigest() + "\n").encode())
    _sync_directory(folder)


def _safetensors_header(file: list[_Placed]) -> bytes:
    """Length and JSON, padded with spaces to 8 bytes, as safetensors lays it down. __metadata__ says how the sharded
    tensors are put together again."""
    metadata = {"format": FORMAT}
    entries = {}
    for placed in file:
        if placed.sharding:
            shape = "x".join(map(str, placed.tensor.shape))
            metadata[f"sharded:{placed.name}"] = (
                f"{shape}, cut along dimension {placed.sharding.dim} in units of {placed.sharding.unit}: "
                f"concatenate the first dimension's slices along it"
            )
        entries[placed.name] = {
            "dtype": SAFETENSORS_DTYPES[DTYPES[placed.tensor.dtype]],
            "shape": placed.stored_shape(),
            "data_offsets": [placed.begin, placed.begin + placed.bytes],
        }
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _tensor_entry(placed: _Placed, file: str, header_size: int, hashes: list[str]) -> dict:
    entry = {"name": placed.name, "dtype": DTYPES[placed.tensor.dtype], "shape": list(placed.tensor.shape)}
    if placed.sharding:
        entry["sharding"] = {
            "group": placed.sharding.group,
            "dim": placed.sharding.dim,
            "unit": placed.sharding.unit,
        }
    return {
        **entry,
        "file": file,
        "offset": header_size + placed.begin,
        "granule_bytes": placed.granule_bytes(),
        "xxh3": hashes,
    }


def _rule_entry(rule: Rule) -> dict:
    return {"pattern": rule.pattern, "style": rule.style, "unit": rule.unit, "group": rule.group}


def _write(path: Path, contents: bytes) -> None:
    with open(path, "xb") as out:
        out.write(contents)
        out.flush()
        os.fsync(out.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(temporary: Path, destination: Path) -> None:
    """Puts `temporary` in the place of `destination`; an old package there is exchanged in one step where the file
    system can do that, so that there is one at every moment."""
    if destination.exists() and not _exchange(temporary, destination):
        aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        os.rename(destination, aside / "old")
        os.rename(temporary, destination)
        shutil.rmtree(aside, ignore_errors=True)
    elif temporary.exists() and not destination.exists():
        os.rename(temporary, destination)
    _sync_directory(destination.parent)


def _exchange(one: Path, other: Path) -> bool:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    at_working_directory, exchange = -100, 2
    return (
        renameat2 is not None
        and renameat2(at_working_directory, os.fsencode(one), at_working_directory, os.fsencode(other), exchange) == 0
    )
