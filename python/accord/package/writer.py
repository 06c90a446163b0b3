"""Writes an engine package: a directory NAME.accord that is created completely or not at all. The format is described
in docs/engine-format.md.

All files are written into a temporary directory beside the destination, synced, and the directory is then renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from accord.graph.errors import ExportError
from accord.package.call_structure import CallStructure
from accord.package.checkpoint_files import Reference
from accord.package.loading import check_loads
from accord.package.progress import Progress
from accord.package.sharding import ShardingPlan, rule_entry
from accord.package.weight_files import (
    FORMAT,
    PlacedTensor,
    place_tensors,
    tensor_entry,
    write_file,
    write_weight_files,
)
from accord.package.weights import Packing

PROGRAM_FORMAT = "accord-program"  # several packages and PyTorch partitions: program.py
FORMAT_VERSION = 2


@dataclass(frozen=True)
class LanguageModelFacts:
    """The facts about a language model that a package contains in addition to its graph."""

    max_context: int  # tokens in one sequence
    stop_tokens: list[int]  # tokens that end a text
    texts: dict[str, bytes]  # file name -> contents: tokenizer.json, chat_format.json, encoder.json
    start_tokens: list[int] | None = None  # with an encoder that all tokens attend to: a sequence begins with them
    source_token: int | None = None  # with an encoder of images: it stands for a row of the encoder's output


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
    files = place_tensors(own, plan.tensors, packings or {})
    stayed = [PlacedTensor(name, tensors[name], plan.tensors.get(name), one.offset) for name, one in references.items()]
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


def _write_files(
    folder: Path,
    graph: dict,
    files: list[list[PlacedTensor]],
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
        entries.append(write_text_file(folder, name, contents))
    weight_files, tensors = write_weight_files(folder, "weights", files, progress)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "producer": producer,
        "groups": plan.groups,
        "rules": [rule_entry(rule) for rule in plan.rules],
        "files": entries + weight_files + outside[0],
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


def write_text_file(folder: Path, name: str, contents: bytes) -> dict:
    """Writes a file and returns its entry in the manifest."""
    write_file(folder / name, contents)
    return {"name": name, "size": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}


def graph_text(document: dict) -> bytes:
    """Returns the contents of graph.json or encoder.json."""
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def write_manifest(folder: Path, manifest: dict) -> None:
    """Writes manifest.json and its hash, which are the last files."""
    manifest_bytes = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    write_file(folder / "manifest.json", manifest_bytes)
    write_file(folder / "manifest.sha256", (hashlib.sha256(manifest_bytes).hexdigest() + "\n").encode())
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
    package: Path, root: Path, placed: list[PlacedTensor], references: Mapping[str, Reference]
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
        tensors.append(tensor_entry(one, names[file.path], 0, hashes))
    return files, tensors


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
