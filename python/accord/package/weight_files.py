"""The files of a package's weights, which are safetensors files: the place of each tensor, and its entry in the
manifest. Tensors are written granule by granule, with a hash of each. The safetensors library would hold all of them in
memory at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from accord.graph.builder import DTYPES
from accord.graph.errors import ExportError
from accord.package.checkpoint_files import SAFETENSORS_DTYPES
from accord.package.progress import Progress
from accord.package.sharding import TensorSharding
from accord.package.weights import PackedTensor, Packing

FORMAT = "accord-package"
GRANULE_BYTES = 1 << 20  # for tensors that are not sharded
FILE_BYTES = 4 << 30  # a weights file that reaches this size is followed by another


@dataclass
class PlacedTensor:
    """A tensor and its location in its file's data."""

    name: str
    tensor: torch.Tensor
    sharding: TensorSharding | None
    begin: int
    packed: PackedTensor | None = None

    @property
    def bytes(self) -> int:
        if self.packed:
            return self.packed.units * self.packed.unit_bytes()
        return self.tensor.numel() * self.tensor.element_size()

    def stored(self) -> tuple[str, list[int]]:
        """Returns the dtype and shape in the file. A tensor divided into equal units is stored as [units, ...shape
        with its sharded dimension reduced to one unit]; if the last unit is shorter, as a flat list of all elements;
        a packed tensor as its bytes."""
        if self.packed:
            return "U8", [self.packed.units, self.packed.unit_bytes()]
        dtype, shape = SAFETENSORS_DTYPES[DTYPES[self.tensor.dtype]], list(self.tensor.shape)
        if self.sharding is None:
            return dtype, shape
        units, rest = divmod(shape[self.sharding.dim], self.sharding.unit)
        if rest:
            return dtype, [self.tensor.numel()]
        shape[self.sharding.dim] = self.sharding.unit
        return dtype, [units, *shape]

    def granule_bytes(self) -> int:
        if self.sharding is None:
            return GRANULE_BYTES
        if self.packed:
            return self.packed.unit_bytes()
        return self.bytes // self.tensor.shape[self.sharding.dim] * self.sharding.unit

    def granules(self):
        """Yields the bytes of each granule, in order."""
        if self.sharding is not None:
            pieces = self.tensor.split(self.sharding.unit, dim=self.sharding.dim)
            yield from self.packed.packed_units() if self.packed else map(_bytes_of, pieces)
            return
        (flat,) = self.packed.packed_units() if self.packed else (_bytes_of(self.tensor),)
        for begin in range(0, self.bytes, GRANULE_BYTES):
            yield flat[begin : begin + GRANULE_BYTES]

    def in_words(self) -> str:
        """Describes the layout for readers of the file that do not use accord."""
        words = "x".join(map(str, self.tensor.shape))
        if self.sharding:
            words += f", cut along dimension {self.sharding.dim} in units of {self.sharding.unit}"
            words += "" if self.packed else ": concatenate the first dimension's slices along it"
        if self.packed:
            words += f", each packed as {self.packed.packing.type} for products; the manifest tells how"
        return words


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Returns the tensor's elements in row-major order, without a copy if they already have it."""
    return memoryview(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def place_tensors(
    tensors: Mapping[str, torch.Tensor], shardings: Mapping[str, TensorSharding], packings: Mapping[str, Packing]
) -> list[list[PlacedTensor]]:
    """Distributes the tensors over as many files as needed. Packed tensors, in multiples of 64 bytes, come first,
    then larger elements before smaller ones, so that all are aligned without gaps."""
    files: list[list[PlacedTensor]] = [[]]
    begin = 0
    for name in sorted(tensors, key=lambda name: -64 if name in packings else -tensors[name].element_size()):
        tensor, sharding = tensors[name], shardings.get(name)
        if tensor.numel() == 0:
            raise ExportError(f'tensor "{name}" is empty ({list(tensor.shape)}); an engine has no use for it')
        packed = PackedTensor(tensor, packings[name], sharding) if name in packings else None
        placed = PlacedTensor(name, tensor, sharding, begin, packed)
        if files[-1] and begin + placed.bytes > FILE_BYTES:
            files.append([])
            placed.begin = begin = 0
        files[-1].append(placed)
        begin += placed.bytes
    return [file for file in files if file]


def write_weight_files(
    folder: Path, stem: str, files: list[list[PlacedTensor]], progress: Progress | None
) -> tuple[list[dict], list[dict]]:
    """Writes the files STEM-00001.safetensors and so on. Returns the manifest's entries for them and their tensors."""
    entries, tensors = [], []
    total = sum(placed.bytes for file in files for placed in file)
    done = 0
    for number, file in enumerate(files, 1):
        name = f"{stem}-{number:05}.safetensors"
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
                tensors.append(tensor_entry(placed, name, len(header), hashes))
            size = out.tell()
            out.flush()
            os.fsync(out.fileno())
        sha256 = hashlib.sha256(header).hexdigest()
        entries.append({"name": name, "size": size, "header_size": len(header), "header_sha256": sha256})
    return entries, tensors


def _safetensors_header(file: list[PlacedTensor]) -> bytes:
    """Returns length and JSON, padded with spaces to a multiple of 64 bytes, as safetensors allows. __metadata__ says
    how the sharded tensors are put together again."""
    metadata = {"format": FORMAT}
    entries = {}
    for placed in file:
        if placed.sharding or placed.packed:
            metadata[f"stored:{placed.name}"] = placed.in_words()
        dtype, shape = placed.stored()
        entries[placed.name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [placed.begin, placed.begin + placed.bytes],
        }
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return struct.pack("<Q", len(text)) + text


def tensor_entry(placed: PlacedTensor, file: str, header_size: int, hashes: list[str]) -> dict:
    entry = {"name": placed.name, "dtype": DTYPES[placed.tensor.dtype], "shape": list(placed.tensor.shape)}
    if placed.sharding:
        entry["sharding"] = placed.sharding.entry()
    if placed.packed:
        entry["packed"] = placed.packed.packing.entry(placed.packed.error())
    return {
        **entry,
        "file": file,
        "offset": header_size + placed.begin,
        "granule_bytes": placed.granule_bytes(),
        "xxh3": hashes,
    }


def write_file(path: Path, contents: bytes) -> None:
    with open(path, "xb") as out:
        out.write(contents)
        out.flush()
        os.fsync(out.fileno())
