"""Exports a language model that reads images to a package with two graphs, which share its weights."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import torch

from accord.exporter import language_model
from accord.exporter import vision_language as parts
from accord.exporter.check import check_language_model
from accord.exporter.check_source import check_images
from accord.exporter.families import with_default_sharding
from accord.exporter.masks import attention_reaches
from accord.exporter.plans import joined_plan, plans_for
from accord.exporter.two_graphs import TwoGraphsOptions, graph_of, name_alike, write_two_graphs
from accord.graph.explanations import explained
from accord.graph.modules import taken_apart
from accord.package.sharding import plan_sharding


def export_vision_language(model: torch.nn.Module, path: str | os.PathLike, options: TwoGraphsOptions) -> Path:
    """Exports the model to `path`."""
    parts.check_kind(model)
    tokens = language_model.example_inputs()[0][None]

    def run() -> object:
        return model(input_ids=tokens, use_cache=False)

    facts = language_model.facts(model, options.tokenizer)
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(model, run, of_any_length=True))
        stack.enter_context(torch.no_grad())
        stack.enter_context(taken_apart(model))
        choice = with_default_sharding(model, options.sharding)
        if not choice.families:
            plan_sharding(model, choice.rules)  # report mistakes before the model is traced
        reaches = attention_reaches(model, facts.max_context)
        with parts.vision_steps_of(model, reaches) as steps:
            decoder, traced = graph_of(
                steps, parts.vision_example(model), parts.vision_shapes(), ["logits"], options.check
            )
        pixels, shapes = (parts.pixels_example(model),), parts.pixels_shapes(model)
        with parts.image_steps_of(model) as steps:
            encoder, traced_encoder = graph_of(steps, pixels, shapes, None, options.check)
        language_model.check_attention(model, decoder.document)
        name_alike(decoder, encoder)
        plan = joined_plan(plans_for(model, choice, [decoder, encoder]))
    if options.check:
        with explained(model, run, of_any_length=True), torch.no_grad():
            check_language_model(model, traced, facts.max_context, rows=parts.random_rows(model))
            check_images(model, traced_encoder)
    facts = replace(facts, source_token=parts.image_token(model))
    return write_two_graphs(path, decoder, encoder, plan, facts, options)
