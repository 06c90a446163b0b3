"""Traces, checks and writes packages of two graphs that share weights: a language model's and its encoder's."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from accord.exporter import language_model
from accord.exporter.dimensions import dimension_names
from accord.exporter.smallest import check_smallest
from accord.graph.builder import ExportedGraph, GraphBuilder, memory_key
from accord.graph.decomposition import decompose
from accord.graph.explanations import JUST_IN_TIME, advised
from accord.graph.traced import TracedGraph, traced_program
from accord.package.checkpoint_files import find_references
from accord.package.producer import producer
from accord.package.progress import Progress
from accord.package.weights import plan_packings
from accord.package.writer import LanguageModelFacts, graph_text, write_package


@dataclass(frozen=True)
class TwoGraphsOptions:
    """The options of export() for such packages."""

    sharding: object
    tokenizer: str | os.PathLike | None
    weights: object
    checkpoint: str | os.PathLike | None
    check: bool
    progress: Progress | None


def graph_of(
    steps: torch.nn.Module, inputs: tuple, shapes: tuple, outputs: list[str] | None, check: bool
) -> tuple[ExportedGraph, TracedGraph]:
    """Traces `steps` with these inputs."""
    program = torch.export.export(steps, inputs, dynamic_shapes=shapes)
    decomposed = decompose(program)
    traced = traced_program(decomposed, dimension_names(decomposed, list(shapes)), language_model.PREFIX)
    with advised(JUST_IN_TIME):
        graph = GraphBuilder(traced, outputs, language_model.PREFIX).build()
    if check:
        check_smallest(steps, decomposed, inputs, language_model.ANY_LENGTH)
    return graph, traced


def name_alike(decoder: ExportedGraph, encoder: ExportedGraph) -> None:
    """Gives each tensor of the encoder's graph the name that it has in the decoder's, if it is the same, and a name of
    its own otherwise: torch numbers the constants of each program."""
    known = {memory_key(tensor): name for name, tensor in decoder.tensors.items()}
    for parameter in encoder.document["parameters"]:
        name = parameter["tensor"]
        same = known.get(memory_key(encoder.tensors[name]))
        wanted = same or (f"encoder.{name}" if name in decoder.tensors else name)
        if wanted != name:
            parameter["tensor"] = wanted
            encoder.tensors[wanted] = encoder.tensors.pop(name)
            encoder.uses[wanted] = encoder.uses.pop(name, [])


def write_two_graphs(
    path: str | os.PathLike,
    decoder: ExportedGraph,
    encoder: ExportedGraph,
    plan: object,
    facts: LanguageModelFacts,
    options: TwoGraphsOptions,
) -> Path:
    """Writes the package."""
    whole = _joined(decoder, encoder)
    (packings,) = plan_packings([(whole, plan.tensors)], options.weights)
    (references,) = find_references(options.checkpoint, [(whole.tensors, packings)])
    facts = replace(facts, texts={"encoder.json": graph_text(encoder.document), **facts.texts})
    return write_package(
        path,
        decoder.document,
        whole.tensors,
        plan,
        producer(),
        options.progress,
        facts,
        packings,
        references=references,
    )


def _joined(decoder: ExportedGraph, encoder: ExportedGraph) -> ExportedGraph:
    """Returns the tensors of both graphs with all their uses."""
    document = {part: decoder.document[part] + encoder.document[part] for part in ("parameters", "nodes")}
    tensors = {**encoder.tensors, **decoder.tensors}
    uses = {name: decoder.uses.get(name, []) + encoder.uses.get(name, []) for name in tensors}
    return ExportedGraph(document, tensors, uses)
