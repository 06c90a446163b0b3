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
from accord.exporter.families import with_default_sharding
from accord.exporter.masks import attention_reaches
from accord.exporter.plans import joined_plan, plans_for
from accord.exporter.two_graphs import TwoGraphsOptions, graph_of, name_alike, write_two_graphs
from accord.graph.explanations import explained
from accord.graph.modules import taken_apart
from accord.package.sharding import plan_sharding


def export_encoder_decoder(model: torch.nn.Module, path: str | os.PathLike, options: TwoGraphsOptions) -> Path:
    """Exports the model to `path`."""

    tokens = language_model.example_inputs()[0][None]

    def run() -> object:
        return parts.run_decoder(model, tokens, _states(model)[0])

    facts = replace(language_model.facts(model, options.tokenizer), max_context=parts.longest_answer(model))
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(model, run, of_any_length=True))
        stack.enter_context(torch.no_grad())
        stack.enter_context(taken_apart(model))
        choice = with_default_sharding(model, options.sharding)
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
            decoder, traced = graph_of(steps, parts.example_inputs(model), shapes, ["logits"], options.check)
        with parts.source_steps_of(model) as steps:
            source = (parts.source_example(model),)
            encoder, traced_source = graph_of(steps, source, parts.source_shapes(model), None, options.check)
        language_model.check_attention(model, decoder.document)
        parts.check_cross_attention(model, decoder.document)
        decoder, encoder = parts.reading_keys(decoder), parts.storing_keys(encoder)
        name_alike(decoder, encoder)
        plan = joined_plan(plans_for(model, choice, [decoder, encoder]))
    if options.check:
        with explained(model, run, of_any_length=True), torch.no_grad():
            check_language_model(model, traced, facts.max_context, _states(model))
            check_source(model, traced_source)
    facts = replace(facts, start_tokens=parts.start_tokens(model))
    return write_two_graphs(path, decoder, encoder, plan, facts, options)


def _states(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the encoder's hidden states for two sources."""
    source = parts.source_example(model)
    return parts.encoder_states(model, source), parts.encoder_states(model, source.flip(-1))
