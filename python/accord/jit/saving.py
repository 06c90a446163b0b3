"""Saves a compiled model as a program: each engine as a package, each PyTorch partition as a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from accord.graph.builder import ExportedGraph
from accord.graph.errors import ExportError
from accord.graph.symbolic_sizes import symbols_in
from accord.jit.compiled_graph import CompiledGraph, EnginePlan
from accord.jit.partitioning import Block, counts, is_collective, is_number, is_wait
from accord.jit.torch_partition import TorchPartition, torch_partition
from accord.package.call_structure import CallStructure, constant_entry, spec_to_text
from accord.package.checkpoint_files import find_references
from accord.package.formats import Format
from accord.package.program import (
    EngineToWrite,
    ProgramPart,
    RankProgram,
    write_engine,
    write_program,
    write_torch_program,
)
from accord.package.progress import Progress
from accord.package.sharding import ShardingPlan
from accord.package.weights import plan_packings
from accord.process_groups import logical_name, process_group

if TYPE_CHECKING:
    from accord.jit.modules import CompiledModule


@dataclass
class _Engine:
    plan: EnginePlan
    graph: ExportedGraph
    to_write: EngineToWrite | None = None


@dataclass
class _Cut:
    """A compiled model split into its parts, in order."""

    compiled: CompiledModule
    parts: list[_Engine | TorchPartition] = field(default_factory=list)

    @property
    def engines(self) -> list[_Engine]:
        return [part for part in self.parts if isinstance(part, _Engine)]

    @property
    def groups(self) -> dict[str, object]:
        """torch's process groups of the collectives, by name."""
        return {name: group for engine in self.engines for name, group in engine.plan.groups.items()}


def save_compiled(
    compiled: CompiledModule,
    path: str | os.PathLike,
    producer: str,
    *,
    plan_of: Callable[[list[ExportedGraph]], list[ShardingPlan]] | None = None,
    weights: str | Mapping[str, str | Format] | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the program of `compiled`. plan_of: returns how the weights of the engines' graphs are sharded. If the
    program has collectives, all ranks of torch.distributed's world save together."""
    cut = _cut(compiled)
    of_each_rank = bool(cut.groups)
    if of_each_rank or plan_of is None:
        plans = [ShardingPlan([], {}, list(engine.plan.groups)) for engine in cut.engines]
    else:
        plans = plan_of([engine.graph for engine in cut.engines])
    packings = plan_packings([(one.graph, plan.tensors) for one, plan in zip(cut.engines, plans, strict=True)], weights)
    for engine, plan, packing in zip(cut.engines, plans, packings, strict=True):
        engine.to_write = EngineToWrite(engine.graph.document, engine.graph.tensors, plan, packing)
    groups = {name: dist.get_process_group_ranks(process_group(group)) for name, group in cut.groups.items()}

    def write(folder: Path, prefix: str, program: str) -> RankProgram:
        parts = []
        entry = _part_entry(groups, program) if of_each_rank else None
        _leave_in(checkpoint, [engine.to_write for engine in cut.engines])
        for number, part in enumerate(cut.parts):
            if isinstance(part, _Engine):
                file = f"{prefix}engine-{number}.accord"
                sha256 = write_engine(folder, file, part.to_write, producer, entry, progress)
                parts.append(_engine_entry(compiled, part, f"engine {number}", file, sha256))
            else:
                file = f"{prefix}pytorch-{number}.pt2"
                size, sha256 = write_torch_program(folder, file, part.program)
                parts.append(_torch_entry(compiled, part, f"pytorch {number}", file, sha256, size))
        return RankProgram(
            inputs=_inputs(compiled),
            outputs=_outputs(compiled),
            in_spec=spec_to_text(compiled.in_spec),
            out_spec=spec_to_text(compiled.out_spec),
            groups=groups,
            parts=parts,
        )

    return write_program(path, write, producer, of_each_rank)


def save_whole(
    structure: CallStructure,
    graph: ExportedGraph,
    groups: Mapping[str, object],
    path: str | os.PathLike,
    producer: str,
    *,
    weights: str | Mapping[str, str | Format] | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes a program of one engine for each rank of torch.distributed's world: `graph`, with collectives over
    `groups`. All ranks call it together."""
    members = {name: dist.get_process_group_ranks(process_group(group)) for name, group in groups.items()}
    (packings,) = plan_packings([(graph, {})], weights)
    engine = EngineToWrite(graph.document, graph.tensors, ShardingPlan([], {}, list(groups)), packings)
    inputs, outputs = graph.document["inputs"], graph.document["outputs"]

    def write(folder: Path, prefix: str, identity: str) -> RankProgram:
        _leave_in(checkpoint, [engine])
        file = f"{prefix}engine-0.accord"
        part = ProgramPart(
            name="engine 0",
            runs_in="engine",
            path=file,
            sha256=write_engine(folder, file, engine, producer, _part_entry(members, identity), progress),
            ops=[node["op"] for node in graph.document["nodes"]],
            inputs=[one["name"] for one in inputs],
            outputs=outputs,
            collectives=[
                [node["op"].split(".")[1], node["arguments"]["group_name"]]
                for node in graph.document["nodes"]
                if "group_name" in node["arguments"]
            ],
            groups=list(groups),
        )
        return RankProgram(**structure.entry(), groups=members, parts=[part])

    return write_program(path, write, producer, of_each_rank=True)


def _leave_in(checkpoint: str | os.PathLike | None, engines: list[EngineToWrite]) -> None:
    """Leaves weights that are stored in the checkpoint there."""
    found = find_references(checkpoint, [(engine.tensors, engine.packings) for engine in engines])
    for engine, references in zip(engines, found, strict=True):
        engine.references = references


def _part_entry(groups: dict[str, list[int]], program: str) -> dict:
    rank = dist.get_rank()
    return {"program": program, "places": {name: [ranks.index(rank), len(ranks)] for name, ranks in groups.items()}}


def _cut(compiled: CompiledModule) -> _Cut:
    graph = compiled.graph
    cut = _Cut(compiled)
    weights = {
        graph.placeholders[position]: (name, compiled.weights[position])
        for position, name in compiled.weight_names.items()
    }
    for node in graph.module.graph.find_nodes(op="get_attr"):
        if isinstance(node.meta["val"], torch.Tensor):
            weights[node] = (node.target, node.meta["val"])
    for block, plan in graph.parts():
        if plan is not None:
            tensors = {name: _weight(compiled, source) for name, source in plan.weights.items()}
            cut.parts.append(_Engine(plan, ExportedGraph(plan.document, tensors, plan.uses)))
            continue
        outside = _collectives(block)
        if outside:
            raise ExportError(
                f"{outside[0].target} stays in PyTorch, where a saved program has no groups: {compiled.report}"
            )
        part = torch_partition(block, graph.module.graph, weights, compiled.ranges)
        if part is not None:
            cut.parts.append(part)
    left = [leaf for leaf in graph.output_leaves() if _is_left(graph, leaf, weights)]
    if left:
        cut.parts.append(torch_partition(Block(False, left), graph.module.graph, weights, compiled.ranges, left))
    return cut


def _is_left(graph: CompiledGraph, leaf: object, weights: Mapping[torch.fx.Node, object]) -> bool:
    """Returns True if an output leaf is a weight, or a number that is not a size, which no part returns yet."""
    if not isinstance(leaf, torch.fx.Node):
        return False
    return leaf in weights or (is_number(leaf) and leaf.op != "placeholder" and graph.size_of(leaf) is None)


def _weight(compiled: CompiledModule, source: int | torch.Tensor) -> torch.Tensor:
    return (compiled.weights[source] if isinstance(source, int) else source).detach()


def _engine_entry(compiled: CompiledModule, part: _Engine, name: str, file: str, sha256: str) -> ProgramPart:
    graph = compiled.graph
    sizes = [graph.symbol_sources[symbol] for symbol in part.plan.size_inputs]
    return ProgramPart(
        name=name,
        runs_in="engine",
        path=file,
        sha256=sha256,
        ops=_ops(part.plan.block),
        inputs=[node.name for node in part.plan.inputs]
        + [source.entry(graph.placeholders[source.position].name) for source in sizes],
        outputs=[node.name for node in part.plan.outputs],
        collectives=[
            [node.target._opname, logical_name(process_group(node.args[-1]))] for node in _collectives(part.plan.block)
        ],
        groups=list(part.to_write.plan.groups),
    )


def _torch_entry(
    compiled: CompiledModule, part: TorchPartition, name: str, file: str, sha256: str, size: int
) -> ProgramPart:
    reasons = compiled.graph.reasons
    return ProgramPart(
        name=name,
        runs_in="pytorch",
        path=file,
        sha256=sha256,
        ops=_ops(part.block),
        inputs=[node.name for node in part.inputs],
        outputs=[node.name for node in part.outputs],
        reasons=list(dict.fromkeys(reasons[node] for node in part.block.nodes if node in reasons and counts(node)))
        or [f'the model returns "{node.name}", which no engine gives' for node in part.outputs if not counts(node)],
        size=size,
    )


def _ops(block: Block) -> list[str]:
    return [str(node.target) for node in block.nodes if counts(node)]


def _collectives(block: Block) -> list[torch.fx.Node]:
    return [node for node in block.nodes if is_collective(node) and not is_wait(node)]


def _inputs(compiled: CompiledModule) -> list[dict]:
    """Returns an entry for each leaf of the model's arguments."""
    nodes = compiled.graph.placeholders[len(compiled.weights) :]
    return [{"name": node.name, **one.entry()} for node, one in zip(nodes, compiled.inputs, strict=True)]


def _outputs(compiled: CompiledModule) -> list[dict]:
    """Returns an entry for each leaf of the model's results."""
    return [_output(compiled.graph, leaf) for leaf in compiled.graph.output_leaves()]


def _output(graph: CompiledGraph, leaf: object) -> dict:
    if not isinstance(leaf, torch.fx.Node):
        return {"constant": constant_entry(leaf)}
    size = graph.size_of(leaf)
    if size is None:
        return {"value": leaf.name}
    if isinstance(size, int):
        return {"constant": size}
    sources = {symbol: graph.symbol_sources[symbol] for symbol in symbols_in(size)}
    return {
        "size": size,
        "symbols": {
            symbol: source.entry(graph.placeholders[source.position].name) for symbol, source in sources.items()
        },
    }
