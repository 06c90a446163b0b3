"""Weights that stay in the safetensors files of a checkpoint: a package refers to them by place and hash."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from accord.export_graph import DTYPES
from accord.export_sharding import ExportError
from accord.export_weights import Packing

SAFETENSORS_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
    "uint8": "U8",
}


@dataclass(frozen=True)
class CheckpointFile:
    """A file of safetensors."""

    path: Path
    size: int
    header_size: int
    header_sha256: str

    def entry(self, name: str, package: Path, root: Path) -> dict:
        """As the manifest of `package` has it: by a relative path if it lies below `root`, which moves with the package."""
        beside = self.path.is_relative_to(root)
        return {
            "name": name,
            "reference": os.path.relpath(self.path, package) if beside else str(self.path),
            "size": self.size,
            "header_size": self.header_size,
            "header_sha256": self.header_sha256,
        }


@dataclass(frozen=True)
class Reference:
    """Where a tensor lies row-major."""

    file: CheckpointFile
    offset: int  # of its first byte in the file


def find_references(
    checkpoint: str | os.PathLike | None,
    parts: Sequence[tuple[Mapping[str, torch.Tensor], Mapping[str, Packing]]],
) -> list[dict[str, Reference]]:
    """Of each part, tensors and their packings: those tensors that lie in the checkpoint, a file of safetensors or a folder of such files, under
    their names and as they are, and are not to be quantized. Reads them. ExportError if no part has one. None is no checkpoint."""
    if checkpoint is None:
        return [{} for _ in parts]
    path = Path(os.path.abspath(checkpoint))
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ExportError(f"checkpoint {path}: there are no safetensors files")
    found: list[dict[str, Reference]] = [{} for _ in parts]
    for file in files:
        opened, header = _read_header(file)
        data = torch.from_file(str(file), shared=False, size=opened.size, dtype=torch.uint8)
        for name, entry in header.items():
            begin, end = (opened.header_size + one for one in entry["data_offsets"])
            for references, (tensors, packings) in zip(found, parts, strict=True):
                tensor = tensors.get(name)
                if tensor is None or (name in packings and packings[name].rounds):
                    continue
                if entry["dtype"] != SAFETENSORS_DTYPES[DTYPES[tensor.dtype]] or entry["shape"] != list(tensor.shape):
                    continue
                if data[begin:end].equal(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)):
                    references[name] = Reference(opened, begin)
    if not any(found):
        raise ExportError(
            f"checkpoint {path}: no weight of the model lies there as it is, by its name, dtype and values"
        )
    return found


def _read_header(path: Path) -> tuple[CheckpointFile, dict]:
    """The file, and its tensors by name."""
    try:
        with open(path, "rb") as file:
            length = file.read(8)
            text = file.read(struct.unpack("<Q", length)[0])
            size = os.fstat(file.fileno()).st_size
        header = json.loads(text)
        header.pop("__metadata__", None)
    except (struct.error, ValueError, OverflowError, MemoryError) as error:
        raise ExportError(f"{path}: no safetensors file: {error}") from error
    sha256 = hashlib.sha256(length + text).hexdigest()
    return CheckpointFile(path, size, 8 + len(text), sha256), header
