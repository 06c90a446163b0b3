"""Weights that stay in the safetensors files of a checkpoint: a package refers to them by location and hash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from accord.graph.builder import DTYPES
from accord.graph.errors import ExportError
from accord.package.weights import Packing

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
    """A safetensors file."""

    path: Path
    size: int
    header_size: int
    header_sha256: str

    def entry(self, name: str, package: Path, root: Path) -> dict:
        """Returns the file's entry in the manifest of `package`. The path is relative if the file is below `root`,
        which moves together with the package.
        """
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
    """Location of a tensor that is stored row-major."""

    file: CheckpointFile
    offset: int  # of its first byte in the file


def find_references(
    checkpoint: str | os.PathLike | None,
    parts: Sequence[tuple[Mapping[str, torch.Tensor], Mapping[str, Packing]]],
) -> list[dict[str, Reference]]:
    """Finds tensors that a package can refer to in a checkpoint, which is a safetensors file or a folder of them.

    parts: the tensors and their packings, for each part. Returns, for each part, the tensors that the checkpoint
    stores under the same name, unchanged, and that are not to be quantized. Reads and compares their values. Raises
    ExportError if no part has such a tensor. Without a checkpoint (None) finds nothing."""
    if checkpoint is None:
        return [{} for _ in parts]
    path = Path(os.path.abspath(checkpoint))
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ExportError(f"checkpoint {path}: there are no safetensors files")
    if path.is_dir():
        _check_index(path, files)
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
    """Returns the file and its tensors by name."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = file.read(8)
        text = file.read(min(int.from_bytes(length, "little"), size))
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(
            f"{path}: no safetensors file: it begins with no header ({size:,} bytes are there)"
        ) from error
    if not isinstance(header, dict):
        raise ExportError(f"{path}: not a safetensors file: its header is not a table of tensors")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _check_entry(path, name, entry, size - 8 - len(text))
    sha256 = hashlib.sha256(length + text).hexdigest()
    return CheckpointFile(path, size, 8 + len(text), sha256), header


def _check_entry(path: Path, name: str, entry: object, size: int) -> None:
    """Raises ExportError unless the entry has a dtype, shape and valid location. size: bytes of data in the file."""
    fields = entry if isinstance(entry, dict) else {}
    numbers = [fields.get(field) for field in ("shape", "data_offsets")]
    if not isinstance(fields.get("dtype"), str) or not all(map(_is_numbers, numbers)) or len(numbers[1]) != 2:
        raise ExportError(f'{path} is damaged: its header says of "{name}" no dtype, shape and place')
    begin, end = numbers[1]
    if begin > end or end > size:
        raise ExportError(
            f'{path} is damaged, or its end is missing: "{name}" lies at bytes {begin:,} to {end:,} of {size:,}'
        )


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, int) and one >= 0 for one in value)


def _check_index(folder: Path, files: Sequence[Path]) -> None:
    """Raises ExportError if a file named in the folder's index is missing."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            named = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(f"{index} is damaged: it has no table of weights and files") from error
        missing = sorted(map(str, named - {file.name for file in files}))
        if missing:
            raise ExportError(f"checkpoint {folder}: {index.name} names files that are not there: {', '.join(missing)}")
