"""Loaded programs: engines and PyTorch partitions that run in turn. accord.load() creates them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from accord._core import Communicator, Corrupt, Engine, EngineContext, Error, MemoryBudget, Mismatch, Unsupported
from accord.jit.bound_engine import BoundEngine
from accord.jit.model_call import ModelCall, inputs_of
from accord.jit.report import CollectiveReport, CompilationReport, PartitionReport
from accord.jit.torch_partition import runner_of
from accord.package.program import ProgramPart, RankProgram, check_torch_file, parts_for_places, read_program

Runner = Callable[..., list[torch.Tensor] | tuple[torch.Tensor, ...]]


class Program:
    """A package with PyTorch partitions or several engines, as returned by accord.load(): bound and ready to run.
    `report` says what runs where; `groups` are this rank's places (rank, size) in its groups."""

    def __init__(
        self,
        path: Path,
        ranks: RankProgram,
        runners: Mapping[str, Runner],
        engines: list[tuple[Engine, EngineContext]],
    ) -> None:
        self.path = path
        self.engines = [engine for engine, _ in engines]
        self.report = _report(path, ranks)
        self.groups = {name: place for engine in self.engines for name, place in engine.groups.items()}
        self._module = ProgramModule(ranks, runners, engines)

    def run(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Runs on the tensors of the model's arguments, in order, and returns the tensors of its outputs. Collective
        over the groups: every rank passes equal inputs. Raises TypeError for inputs that the model was not exported
        for."""
        with torch.no_grad():
            return [value for value in self._module.run(inputs) if isinstance(value, torch.Tensor)]

    def module(self) -> torch.nn.Module:
        """Returns the program as a module that is called like the model and returns the same results."""
        return self._module

    def close(self) -> None:
        """Closes its engines."""
        for engine in self.engines:
            engine.close()

    def __repr__(self) -> str:
        return f"Program({str(self.path)!r}, {len(self.report.partitions)} parts)"


class ProgramModule(torch.nn.Module):
    """The result of Program.module(). Several threads may call it."""

    def __init__(
        self, ranks: RankProgram, runners: Mapping[str, Runner], engines: list[tuple[Engine, EngineContext]]
    ) -> None:
        super().__init__()
        bound = [BoundEngine(engine, None, contexts=[context]) for engine, context in engines]
        for engine in bound:
            engine.owned_by(self)
        waiting = iter(bound)
        self._steps = [
            (part, _engine_runner(next(waiting)) if part.runs_in == "engine" else runners[part.name])
            for part in ranks.parts
        ]
        self._call = ModelCall(ranks)

    def run(self, leaves) -> list:
        """Returns the leaves of the outputs for the leaves of the arguments."""
        values = self._call.values_of(leaves)
        for part, runner in self._steps:
            values.update(zip(part.outputs, runner(*inputs_of(part.inputs, values)), strict=True))
        return self._call.structure.results(values)

    @torch.no_grad()
    def forward(self, *args, **kwargs):
        return self._call.nested(self.run(self._call.leaves_of(args, kwargs)))


def load_program(
    path: Path,
    groups: Mapping[str, Communicator] | None,
    *,
    strict: bool,
    memory_limit: int | str,
    **of_engines: object,
) -> Program:
    """Implements accord.load() for a program; `of_engines` are the options for each engine. The ranks exchange
    whether they succeeded before engines are bound.
    """
    groups = dict(groups or {})
    failed = ranks = None
    runners: dict[str, Runner] = {}
    engines: list[tuple[Engine, EngineContext]] = []
    identity = ""
    try:
        program = read_program(path)
        identity = program.sha256
        outside = [f'"{part.name}" ({", ".join(dict.fromkeys(part.ops))})' for part in program.torch_parts()]
        if strict and outside:
            raise Unsupported(
                f"{path}: strict, but these parts run in PyTorch: {', '.join(dict.fromkeys(outside))}; export the model without "
                "options to be told of the ops, or load it without strict"
            )
        places = {name: (one.rank, one.size) for name, one in groups.items()}
        ranks = parts_for_places(path, program, places)
        budget = MemoryBudget(memory_limit)
        for part in ranks.parts:
            if part.runs_in == "pytorch":
                runners[part.name] = _torch_runner(path, part, budget)
            else:
                _check_engine(path, part)
                mine = {name: places[name] for name in part.groups if name in places}
                engine = Engine.load(path / part.path, mine, **of_engines, memory_limit=budget)
                engines.append((engine, engine.create_context()))  # its first arena counts now
    except Exception as error:
        failed = error
    _agree(groups, failed, identity)
    for engine, _ in engines:
        engine.bind({name: groups[name] for name in engine.groups if name in groups})
    return Program(path, ranks, runners, engines)


def _torch_runner(path: Path, part: ProgramPart, budget: MemoryBudget) -> Runner:
    file = check_torch_file(path, part)
    try:
        program = torch.export.load(file)
        runner = runner_of(program)
    except Exception as error:
        raise Unsupported(
            f'{file}: PyTorch partition "{part.name}" ({", ".join(dict.fromkeys(part.ops))}) cannot be loaded: {error}; ops of '
            "a library of your own have to be registered before"
        ) from error
    budget.take("PyTorch partitions", _held_bytes(program))
    return runner


def _held_bytes(program: torch.export.ExportedProgram) -> int:
    """Returns the bytes of its weights and constants."""
    held = [one for one in (*program.state_dict.values(), *program.constants.values()) if isinstance(one, torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in held}
    return sum(storage.nbytes() for storage in storages.values())


def _check_engine(path: Path, part: ProgramPart) -> None:
    """Raises Corrupt unless an engine's package is the one that the program was written with. Loading checks the
    rest.
    """
    try:
        sha256 = hashlib.sha256((path / part.path / "manifest.json").read_bytes()).hexdigest()
    except OSError as error:
        raise Corrupt(f"{path}: {part.path}: {error.strerror}") from error
    if sha256 != part.sha256:
        raise Corrupt(f"{path}: {part.path}/manifest.json is damaged, or of another engine: its SHA-256 is {sha256}")


def _agree(groups: Mapping[str, Communicator], failed: Exception | None, identity: str) -> None:
    """Raises `failed`, or an error about another rank that failed or has a different program. A rank that failed
    takes part in all groups, so that no rank waits for it."""
    mine = torch.frombuffer(
        bytearray(hashlib.sha256(f"{failed is None} {identity}".encode()).digest()), dtype=torch.uint8
    )
    if failed is not None:
        mine.zero_()
    for name in sorted(groups):
        told = torch.empty(groups[name].size, len(mine), dtype=torch.uint8)
        groups[name].all_gather(mine, told)
        broken = [rank for rank, one in enumerate(told) if not one.any()]
        others = [rank for rank, one in enumerate(told) if not one.equal(told[0])]
        if failed is None and broken:
            failed = Error(f'group "{name}": rank {broken[0]} could not load the program')
        elif failed is None and others:
            failed = Mismatch(f'group "{name}": ranks {others} loaded another program than rank 0')
    if failed is not None:
        raise failed


def _engine_runner(engine: BoundEngine) -> Runner:
    def run(*inputs):
        # A size that no tensor reveals is passed as a tensor of that many bytes.
        given = [torch.empty(one, dtype=torch.uint8) if isinstance(one, int) else one for one in inputs]
        return engine.run([tensor.detach().contiguous() for tensor in given])

    return run


def _report(path: Path, ranks: RankProgram) -> CompilationReport:
    parts = [PartitionReport(part.name, part.runs_in, tuple(part.ops), tuple(part.reasons)) for part in ranks.parts]
    collectives = [CollectiveReport(op, group, "engine") for part in ranks.parts for op, group in part.collectives]
    engines = sum(part.runs_in == "engine" for part in ranks.parts)
    return CompilationReport(str(path), parts, collectives, engines, 1)
