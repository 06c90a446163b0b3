"""Exports an encoder-decoder model to a package with two graphs, which share its weights."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import torch

from accord.exporter import encoder_decoder as parts
from accord.exporter import language_model
from accord.exporter.check import check_language_model
from accord.exporter.check_source import check_source
from accord.exporter.dimensions import dimension_names
from accord.exporter.families import with_default_sharding
from accord.exporter.masks import attention_reaches
from accord.exporter.plans import joined_plan, plans_for
from accord.exporter.smallest import check_smallest
from accord.graph.builder import ExportedGraph, GraphBuilder, memory_key
from accord.graph.decomposition import decompose
from accord.graph.explanations import JUST_IN_TIME, advised, explained
from accord.graph.modules import taken_apart
from accord.graph.traced import TracedGraph, traced_program
from accord.package.checkpoint_files import find_references
from accord.package.producer import producer
from accord.package.progress import Progress
from accord.package.sharding import plan_sharding
from accord.package.weights import plan_packings
from accord.package.writer import graph_text, write_package


def export_encoder_decoder(
    model: torch.nn.Module,
    path: str | os.PathLike,
    *,
    sharding: object,
    tokenizer: str | os.PathLike | None,
    weights: object,
    checkpoint: str | os.PathLike | None,
    check: bool,
    progress: Progress | None,
) -> Path:
    """Exports the model; the arguments are those of export()."""

    tokens = language_model.example_inputs()[0][None]

    def run() -> object:
        return parts.run_decoder(model, tokens, _states(model)[0])

    facts = replace(language_model.facts(model, tokenizer), max_context=parts.longest_answer(model))
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(model, run, of_any_length=True))
        stack.enter_context(torch.no_grad())
        stack.enter_context(taken_apart(model))
        choice = with_default_sharding(model, sharding)
        if not choice.families:
            plan_sharding(model, choice.rules)  # report mistakes before the model is traced
        states = _states(model)
        reaches = attention_reaches(
            model,
            facts.max_context,
            run=lambda tokens: parts.run_decoder(model, tokens, states[0]),
            is_other=parts.is_crossing,
        )
        shapes = parts.dynamic_shapes(model)
        with parts.decoder_steps_of(model, reaches) as steps:
            decoder, traced = _graph_of(steps, parts.example_inputs(model), shapes, ["logits"], check)
        with parts.source_steps_of(model) as steps:
            source = (parts.source_example(model),)
            encoder, traced_source = _graph_of(steps, source, parts.source_shapes(model), None, check)
        language_model.check_attention(model, decoder.document)
        parts.check_cross_attention(model, decoder.document)
        decoder, encoder = parts.reading_keys(decoder), parts.storing_keys(encoder)
        _name_alike(decoder, encoder)
        plan = joined_plan(plans_for(model, choice, [decoder, encoder]))
    if check:
        with explained(model, run, of_any_length=True), torch.no_grad():
            check_language_model(model, traced, facts.max_context, _states(model))
            check_source(model, traced_source)
    whole = _joined(decoder, encoder)
    (packings,) = plan_packings([(whole, plan.tensors)], weights)
    (references,) = find_references(checkpoint, [(whole.tensors, packings)])
    facts = replace(
        facts,
        texts={"encoder.json": graph_text(encoder.document), **facts.texts},
        start_tokens=parts.start_tokens(model),
    )
    return write_package(
        path, decoder.document, whole.tensors, plan, producer(), progress, facts, packings, references=references
    )


def _states(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the encoder's hidden states for two sources."""
    source = parts.source_example(model)
    return parts.encoder_states(model, source), parts.encoder_states(model, source.flip(-1))


def _graph_of(
    steps: torch.nn.Module, inputs: tuple, shapes: tuple, outputs: list[str] | None, check: bool
) -> tuple[ExportedGraph, TracedGraph]:
    program = torch.export.export(steps, inputs, dynamic_shapes=shapes)
    decomposed = decompose(program)
    traced = traced_program(decomposed, dimension_names(decomposed, list(shapes)), language_model.PREFIX)
    with advised(JUST_IN_TIME):
        graph = GraphBuilder(traced, outputs, language_model.PREFIX).build()
    if check:
        check_smallest(steps, decomposed, inputs, language_model.ANY_LENGTH)
    return graph, traced


def _name_alike(decoder: ExportedGraph, encoder: ExportedGraph) -> None:
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


def _joined(decoder: ExportedGraph, encoder: ExportedGraph) -> ExportedGraph:
    """Returns the tensors of both graphs with all their uses."""
    document = {part: decoder.document[part] + encoder.document[part] for part in ("parameters", "nodes")}
    tensors = {**encoder.tensors, **decoder.tensors}
    uses = {name: decoder.uses.get(name, []) + encoder.uses.get(name, []) for name in tensors}
    return ExportedGraph(document, tensors, uses)
