"""Writes an engine package: a directory NAME.accord that is created completely or not at all. The format is described
in docs/engine-format.md.

All files are written into a temporary directory beside the destination (weights granule by granule, with a hash of
each), synced, and the directory is then renamed. The safetensors files are not written with the safetensors library,
which would hold all tensors in memory at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from accord.graph.builder import DTYPES
from accord.graph.errors import ExportError
from accord.package.call_structure import CallStructure
from accord.package.checkpoint_files import SAFETENSORS_DTYPES, Reference
from accord.package.loading import check_loads
from accord.package.progress import Progress
from accord.package.sharding import ShardingPlan, TensorSharding, rule_entry
from accord.package.weights import PackedTensor, Packing

FORMAT = "accord-package"
PROGRAM_FORMAT = "accord-program"  # several packages and PyTorch partitions: program.py
FORMAT_VERSION = 2
GRANULE_BYTES = 1 << 20  # for tensors that are not sharded
FILE_BYTES = 4 << 30  # a weights file that reaches this size is followed by another


@dataclass(frozen=True)
class LanguageModelFacts:
    """The facts about a language model that a package contains in addition to its graph."""

    max_context: int  # tokens in one sequence
    stop_tokens: list[int]  # tokens that end a text
    texts: dict[str, bytes]  # file name -> contents: tokenizer.json, chat_format.json, encoder.json
    start_tokens: list[int] | None = None  # with an encoder that all tokens attend to: a sequence begins with them
    source_token: int | None = None  # with an encoder of images: it stands for a row of the encoder's output


@dataclass
class _Placed:
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


def write_package(
    path: str | os.PathLike,
    graph: dict,
    tensors: Mapping[str, torch.Tensor],
    plan: ShardingPlan,
    producer: str,
    progress: Progress | None = None,
    language_model: LanguageModelFacts | None = None,
    packings: Mapping[str, Packing] | None = None,
    part: dict | None = None,
    references: Mapping[str, Reference] | None = None,
    root: Path | None = None,
    structure: CallStructure | None = None,
    texts: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes the package at `path` (NAME.accord), in the way described at placed_at(). `part`: the program of which
    the package is one rank's part. `references`: tensors that stay in other files and are not packed; files below
    `root` (by default the folder that contains the package) are referred to by relative paths. `structure`: the
    model's calling convention. `texts`: files that are not those of a language model, by name. Raises ExportError, also
    if the disk is full and if no engine would load the package."""
    references = references or {}
    own = {name: tensor for name, tensor in tensors.items() if name not in references}
    files = _place(own, plan.tensors, packings or {})
    stayed = [_Placed(name, tensors[name], plan.tensors.get(name), one.offset) for name, one in references.items()]
    with placed_at(path) as folder:
        total = sum(placed.bytes for file in files for placed in file)
        free = shutil.disk_usage(folder).free
        if total > free:
            raise ExportError(f"{path}: the weights take {total:,} bytes, the disk has {free:,} free")
        absolute = Path(os.path.abspath(path))
        outside = _entries_outside(absolute, root or absolute.parent, stayed, references)
        more = {**(language_model.texts if language_model else {}), **(texts or {})}
        _write_files(folder, graph, files, outside, plan, producer, progress, language_model, part, structure, more)
        check_loads(folder, absolute, tensors, plan, part)
    return Path(os.path.abspath(path))


@contextlib.contextmanager
def placed_at(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a folder beside `path` for a package's files, which is moved to `path` when the block ends; nothing
    changes if the block raises. An existing package there is replaced in one step; anything else is left alone, and
    is an error."""
    destination = Path(os.path.abspath(path))
    _check_destination(destination)
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        yield temporary
        os.chmod(temporary, 0o755)
        _move(temporary, destination)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ExportError(f"{destination}: the disk is full; nothing was written") from error
        raise ExportError(f"{destination}: {error}; nothing was written") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _check_destination(destination: Path) -> None:
    if destination.suffix != ".accord":
        raise ExportError(f'{destination}: the name of a package ends in ".accord"')
    if not destination.parent.is_dir():
        raise ExportError(f"{destination}: there is no directory {destination.parent}")
    if os.path.lexists(destination) and not is_package(destination):
        raise ExportError(f"{destination} exists and is not an engine package; it is left unchanged")


def is_package(path: Path) -> bool:
    """Returns True for an engine package of any version, complete or not: only packages may be replaced."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return False
    return not path.is_symlink() and isinstance(manifest, dict) and manifest.get("format") in (FORMAT, PROGRAM_FORMAT)


def _place(
    tensors: Mapping[str, torch.Tensor], shardings: Mapping[str, TensorSharding], packings: Mapping[str, Packing]
) -> list[list[_Placed]]:
    """Distributes the tensors over as many files as needed. Packed tensors, in multiples of 64 bytes, come first,
    then larger elements before smaller ones, so that all are aligned without gaps."""
    files: list[list[_Placed]] = [[]]
    begin = 0
    for name in sorted(tensors, key=lambda name: -64 if name in packings else -tensors[name].element_size()):
        tensor, sharding = tensors[name], shardings.get(name)
        if tensor.numel() == 0:
            raise ExportError(f'tensor "{name}" is empty ({list(tensor.shape)}); an engine has no use for it')
        packed = PackedTensor(tensor, packings[name], sharding) if name in packings else None
        placed = _Placed(name, tensor, sharding, begin, packed)
        if files[-1] and begin + placed.bytes > FILE_BYTES:
            files.append([])
            placed.begin = begin = 0
        files[-1].append(placed)
        begin += placed.bytes
    return [file for file in files if file]


def _write_files(
    folder: Path,
    graph: dict,
    files: list[list[_Placed]],
    outside: tuple[list[dict], list[dict]],
    plan: ShardingPlan,
    producer: str,
    progress: Progress | None,
    language_model: LanguageModelFacts | None,
    part: dict | None,
    structure: CallStructure | None,
    texts: Mapping[str, bytes],
) -> None:
    entries = []
    for name, contents in {"graph.json": graph_text(graph), **texts}.items():
        _write(folder / name, contents)
        entries.append({"name": name, "size": len(contents), "sha256": hashlib.sha256(contents).hexdigest()})
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
        "rules": [rule_entry(rule) for rule in plan.rules],
        "files": entries + outside[0],
        "tensors": tensors + outside[1],
    }
    if language_model:
        facts = {"max_context": language_model.max_context, "stop_tokens": language_model.stop_tokens}
        if language_model.start_tokens is not None:
            facts["start_tokens"] = language_model.start_tokens
        if language_model.source_token is not None:
            facts["source_token"] = language_model.source_token
        manifest["language_model"] = facts
    if part:
        manifest["part"] = part
    if structure:
        manifest["structure"] = structure.entry()
    write_manifest(folder, manifest)


def graph_text(document: dict) -> bytes:
    """Returns the contents of graph.json or encoder.json."""
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def write_manifest(folder: Path, manifest: dict) -> None:
    """Writes manifest.json and its hash, which are the last files."""
    manifest_bytes = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    _write(folder / "manifest.json", manifest_bytes)
    _write(folder / "manifest.sha256", (hashlib.sha256(manifest_bytes).hexdigest() + "\n").encode())
    _sync_directory(folder)


def file_facts(path: Path) -> tuple[int, str]:
    """Syncs a file to disk and returns its size and SHA-256."""
    sha256, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            sha256.update(piece)
            size += len(piece)
        os.fsync(file.fileno())
    return size, sha256.hexdigest()


def _entries_outside(
    package: Path, root: Path, placed: list[_Placed], references: Mapping[str, Reference]
) -> tuple[list[dict], list[dict]]:
    """Returns the manifest's entries for the files of a checkpoint, and for the tensors that stay in them."""
    names: dict[Path, str] = {}
    files, tensors = [], []
    for one in placed:
        file = references[one.name].file
        if file.path not in names:
            names[file.path] = f"checkpoint-{len(names) + 1:05}.safetensors"
            files.append(file.entry(names[file.path], package, root))
        hashes = [xxhash.xxh3_64_hexdigest(granule) for granule in one.granules()]
        tensors.append(_tensor_entry(one, names[file.path], 0, hashes))
    return files, tensors


def _safetensors_header(file: list[_Placed]) -> bytes:
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


def _tensor_entry(placed: _Placed, file: str, header_size: int, hashes: list[str]) -> dict:
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
    """Moves `temporary` to `destination`. An old package there is exchanged in one step if the file system supports
    that, so that a package exists at every moment."""
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
