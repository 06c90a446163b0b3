"""Saved programs: packages with several parts (engines and PyTorch partitions), or with parts that differ from rank
to rank.

A program is a directory NAME.accord like any package. Its manifest.json specifies the order of the parts. Each engine
is a package inside the directory, and each PyTorch partition a torch.export file. The format is described in
docs/engine-format.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from accord._core import Corrupt, InvalidArgument, Unsupported
from accord.graph.errors import ExportError
from accord.package.call_structure import CallStructure
from accord.package.checkpoint_files import Reference
from accord.package.progress import Progress
from accord.package.sharding import ShardingPlan
from accord.package.weights import Packing
from accord.package.writer import PROGRAM_FORMAT, file_facts, placed_at, write_manifest, write_package

PROGRAM_VERSION = 1


@dataclass(frozen=True)
class ProgramPart:
    """One part of a program, as in its manifest. `inputs`: names of values, and ["x", 0] for dimension 0 of x, ["x",
    0, 2, 1] for h if that dimension is 2 * h + 1. `path`: in the package's folder. `size`: of a PyTorch partition's
    file."""

    name: str
    runs_in: str  # "engine" or "pytorch"
    path: str
    sha256: str  # of the file, or of the engine's manifest.json
    ops: list[str]
    inputs: list[str | list]
    outputs: list[str]
    reasons: list[str] = field(default_factory=list)  # why it is not in an engine
    collectives: list[list[str]] = field(default_factory=list)  # op and group
    groups: list[str] = field(default_factory=list)  # of an engine
    size: int = 0


@dataclass(frozen=True)
class RankProgram(CallStructure):
    """The parts that one rank runs, and the model's calling convention."""

    groups: dict[str, list[int]]  # name -> members, by world rank
    parts: list[ProgramPart]


@dataclass(frozen=True)
class ProgramManifest:
    """The manifest of a program. `world_size`: None if any number of ranks may load it, all of which run ranks[0]."""

    sha256: str
    producer: str
    world_size: int | None
    ranks: list[RankProgram]

    def torch_parts(self) -> list[ProgramPart]:
        return [part for rank in self.ranks for part in rank.parts if part.runs_in == "pytorch"]


@dataclass
class EngineToWrite:
    """Everything that an engine's package is written from."""

    document: dict
    tensors: Mapping[str, torch.Tensor]
    plan: ShardingPlan
    packings: Mapping[str, Packing]
    references: Mapping[str, Reference] = field(default_factory=dict)  # weights that stay in a checkpoint


def write_program(
    path: str | os.PathLike, rank_of: Callable[[Path, str, str], RankProgram], producer: str, of_each_rank: bool
) -> Path:
    """Writes the program at `path`. `rank_of(folder, prefix, program)` writes this rank's parts, in files whose names
    begin with the prefix, and returns their description. `of_each_rank`: all ranks of torch.distributed's world call
    this, each with parts of its own. Raises ExportError, on all ranks if one fails."""
    if not of_each_rank:
        with placed_at(path) as folder:
            manifest = {"world_size": None, "ranks": [asdict(rank_of(folder, "", secrets.token_hex(16)))]}
            write_manifest(folder, _head(producer) | manifest)
        return Path(os.path.abspath(path))
    with contextlib.ExitStack() as stack:
        folder, program = _from_first(lambda: (str(stack.enter_context(placed_at(path))), secrets.token_hex(16)))
        mine = _agreed(lambda: asdict(rank_of(Path(folder), f"rank-{dist.get_rank()}-", program)))
        ranks: list = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)

        def finish() -> None:
            write_manifest(Path(folder), _head(producer) | {"world_size": len(ranks), "ranks": ranks})
            stack.close()

        _from_first(finish)
    return Path(os.path.abspath(path))


def _head(producer: str) -> dict:
    return {"format": PROGRAM_FORMAT, "format_version": PROGRAM_VERSION, "producer": producer}


def _from_first(call: Callable[[], object]):
    """Returns the first rank's result of `call` on all ranks."""
    told: list = [None, None]
    if dist.get_rank() == 0:
        try:
            told = [call(), None]
        except Exception as error:
            told = [None, str(error)]
    dist.broadcast_object_list(told)
    if told[1] is not None:
        raise ExportError(told[1])
    return told[0]


def _agreed(call: Callable[[], dict]) -> dict:
    """Returns the result of `call` if it succeeds on all ranks."""
    made, failed = None, None
    try:
        made = call()
    except Exception as error:
        failed = error
    told: list = [None] * dist.get_world_size()
    dist.all_gather_object(told, None if failed is None else f"{type(failed).__name__}: {failed}")
    if failed is not None:
        raise failed
    for rank, text in enumerate(told):
        if text is not None:
            raise ExportError(f"rank {rank} could not write its part: {text}")
    return made


def write_engine(
    folder: Path, file: str, engine: EngineToWrite, producer: str, part: dict | None, progress: Progress | None
) -> str:
    """Writes an engine's package into a program's folder and returns the SHA-256 of its manifest."""
    path = write_package(
        folder / file,
        engine.document,
        engine.tensors,
        engine.plan,
        producer,
        progress,
        packings=engine.packings,
        part=part,
        references=engine.references,
        root=folder.parent,
    )
    return hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()


def write_torch_program(folder: Path, file: str, program: torch.export.ExportedProgram) -> tuple[int, str]:
    """Writes the file and returns its size and SHA-256."""
    torch.export.save(program, folder / file)
    return file_facts(folder / file)


def read_program(path: Path) -> ProgramManifest:
    """Returns the manifest of the program at `path`, checked. Raises Corrupt, or Unsupported for another version."""
    text = (path / "manifest.json").read_bytes()
    sha256 = hashlib.sha256(text).hexdigest()
    if not (path / "manifest.sha256").is_file() or (path / "manifest.sha256").read_bytes() != f"{sha256}\n".encode():
        raise Corrupt(f"{path}: manifest.json: its SHA-256 is {sha256}, manifest.sha256 tells another")
    manifest = json.loads(text)
    if manifest.get("format_version") != PROGRAM_VERSION:
        raise Unsupported(
            f"{path}: format version {manifest.get('format_version')} of programs; this accord reads {PROGRAM_VERSION}"
        )
    try:
        ranks = [
            RankProgram(**{**rank, "parts": [ProgramPart(**part) for part in rank["parts"]]})
            for rank in manifest["ranks"]
        ]
        return ProgramManifest(sha256, manifest["producer"], manifest["world_size"], ranks)
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{path}: manifest.json: {error}") from error


def check_torch_file(path: Path, part: ProgramPart) -> Path:
    """Returns the file of a PyTorch partition, verified against its hash. Raises Corrupt."""
    file = path / part.path
    if file.is_symlink() or not file.is_file():
        raise Corrupt(f'{path}: {part.path}, PyTorch partition "{part.name}", is missing')
    if file.stat().st_size != part.size:
        raise Corrupt(f"{path}: {part.path} has {file.stat().st_size} bytes, expected {part.size}")
    _, sha256 = file_facts(file)
    if sha256 != part.sha256:
        raise Corrupt(f"{path}: {part.path} is damaged: its SHA-256 is {sha256}, expected {part.sha256}")
    return file


def parts_for_places(path: Path, program: ProgramManifest, places: Mapping[str, tuple[int, int]]) -> RankProgram:
    """Returns the parts of the rank that has these places (rank, size) in the groups. If several ranks have them,
    chooses this rank of torch.distributed's world, or any of them if their engines are the same. Raises
    InvalidArgument if there is none."""
    if program.world_size is None:
        return program.ranks[0]
    known = sorted({name for one in program.ranks for name in one.groups})
    unknown = [name for name in places if name not in known]
    if unknown:
        raise InvalidArgument(f'{path} has no group "{unknown[0]}"; it has {", ".join(known)}')
    now = {name: tuple(places.get(name, (0, 1))) for name in known}
    fitting = [number for number in range(program.world_size) if _places_of(program, number, known) == now]
    if not fitting:
        sizes = {name: len(members) for one in program.ranks for name, members in one.groups.items()}
        made = ", ".join(f'"{name}" of {size}' for name, size in sizes.items())
        here = ", ".join(f'{rank} of {size} in "{name}"' for name, (rank, size) in now.items())
        raise InvalidArgument(
            f"{path} was made by {program.world_size} ranks, with groups {made}, and is loaded by exactly as many: "
            f"this is rank {here}"
        )
    if dist.is_initialized() and dist.get_world_size() == program.world_size and dist.get_rank() in fitting:
        return program.ranks[dist.get_rank()]
    engines = {tuple(part.sha256 for part in program.ranks[one].parts if part.runs_in == "engine") for one in fitting}
    if len(engines) > 1:
        raise InvalidArgument(f"{path}: ranks {fitting} have these places, and their parts differ")
    return program.ranks[fitting[0]]


def _places_of(program: ProgramManifest, number: int, groups: list[str]) -> dict[str, tuple[int, int]]:
    members = program.ranks[number].groups
    return {name: (members[name].index(number), len(members[name])) if name in members else (0, 1) for name in groups}
