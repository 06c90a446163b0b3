"""Exports a PyTorch model to an engine package, in one call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from accord.exporter import encoder_decoder, language_model, vision_language
from accord.exporter.check import check_language_model
from accord.exporter.dimensions import dimension_names, shapes_by_position
from accord.exporter.encoder_decoder_export import export_encoder_decoder
from accord.exporter.families import with_default_sharding
from accord.exporter.found_attention import replace_attention
from accord.exporter.masks import attention_reaches
from accord.exporter.plans import plans_for
from accord.exporter.smallest import RAISE_MINIMUM, check_smallest
from accord.exporter.structure import structure_of
from accord.exporter.two_graphs import TwoGraphsOptions
from accord.exporter.vision_language_export import export_vision_language
from accord.graph.builder import GraphBuilder
from accord.graph.decomposition import decompose
from accord.graph.errors import ExportError
from accord.graph.explanations import JUST_IN_TIME, PYTORCH_PARTITIONS, advised, explained
from accord.graph.latent_heads import latent_heads
from accord.graph.modules import taken_apart
from accord.graph.traced import (
    TracedGraph,
    check_arguments,
    check_dimensions,
    check_model,
    check_patterns,
    traced_program,
)
from accord.jit.modules import CompiledModule
from accord.jit.modules import compile as accord_compile
from accord.jit.saving import save_compiled, save_whole
from accord.package.checkpoint_files import find_references
from accord.package.formats import Format
from accord.package.producer import producer
from accord.package.progress import Progress, terminal_progress
from accord.package.sharding import Style, plan_sharding
from accord.package.weights import plan_packings
from accord.package.writer import write_package


def export(
    model: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor] | None = None,
    *,
    path: str | os.PathLike,
    sharding: Mapping[str, Style | str] | str | None = None,
    dynamic_shapes: Mapping | Sequence | None = None,
    output_names: Sequence[str] | None = None,
    tokenizer: str | os.PathLike | None = None,
    weights: str | Mapping[str, str | Format] | None = None,
    checkpoint: str | os.PathLike | None = None,
    options: Mapping[str, object] | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Exports `model` to the engine package `path` (NAME.accord) and returns its path.

    `example_inputs`: the tensors for forward(), by position; a dynamic dimension should have at least 2 elements.
    Without them, `model` is a causal language model of transformers, and the engine continues sequences: it takes
    input_ids [tokens], positions [tokens] and rows [rows], and returns logits [rows, vocabulary]. Or it is an
    encoder-decoder model (T5, BART, Marian, Whisper): its encoder becomes a second graph of the package, which reads
    the source of each request. Or it reads images (LLaVA, InternVL, SmolVLM): then the second graph makes the rows that
    image tokens of a prompt stand for.
    `sharding`: which linear layers are divided among the ranks of a group, by pattern over module paths (`*` stands
    for any characters, the first match applies): {"encoder.layer.*.attention.self.query": accord.Column(unit=64),
    ...}. A unit stays together on a rank; for attention it is the size of a head. The strings "column" and "row" use
    the largest power of two up to 64 that divides the layer; accord.Expert() divides layers of experts expert by
    expert. "auto" follows the layer names of transformers' model families, and {..., "*": "auto"} does so for the
    layers that no other pattern matches. A plan for parallelize_module (ColwiseParallel(), ...) works, too.
    `dynamic_shapes`: same as for torch.export; each dynamic dimension needs a maximum. Sizes down to the minimum are
    checked: the exported program is run on the narrowed examples and must return what the model returns.
    `output_names`: names for the outputs; the inputs are named after the parameters of forward().
    `tokenizer`: a tokenizer.json, or a folder with one. It is packaged with the model, for a language model together
    with its chat template.
    `weights`: "int8" or "int4" quantizes the weights of all linear layers, experts and convolutions (except
    convolutions with groups of few outputs); with "int4", the head of a language model gets 8 bits. "fp8" converts
    the weights of linear layers and experts to 8-bit floats, which GPUs read and multiply directly; the CPU computes
    with them in the model's dtype. Can also be given by pattern over module paths, as for `sharding`: {"lm_head":
    "same", "*": accord.Int4(group=64)}. "same" keeps the dtype, and so do layers that no pattern matches.
    accord.inspect() reports the error of each tensor.
    `checkpoint`: safetensors files of the model (one, or a folder of them). Weights that are stored there unchanged
    stay there: the package refers to them by path and hash, and the files must not change. Loading packs their
    matrices, in each process. Weights that PyTorch partitions use are copied into the package.
    `options`: with None, the default, an op that engines do not support is an error. With options of accord.compile()
    (min_block_size, torch_executed_ops, require_full_compilation, ...; {} for the defaults), such ops become PyTorch
    partitions of the package, which accord.load() then loads in Python only; accord.inspect() reports which ops and
    why.
    `check`: whether PyTorch runs the exported program before anything is written. The program is compared with the
    model at the smallest sizes of dynamic dimensions, and the model must return the same when it runs again. A
    language model makes six short runs, which detect rows that depend on other rows outside attention, and logits
    that differ from the model's.
    `progress`: called with (bytes written, bytes in all).

    The package contains no rank or world size: shapes are global, and loading decides how many ranks share it. But a
    model that has functional collectives of its own is one rank's part: all ranks of torch.distributed's world export
    their parts together, to one `path`, and exactly as many ranks load it. An existing package at `path` is replaced.
    Raises ExportError, which says where in the model and what to do, and UnsupportedOpError for an op, a dtype or a
    size that engines do not support.
    """
    texts = {}
    if tokenizer is not None and example_inputs is not None:
        if options is not None:
            raise ExportError("a tokenizer goes with a package that is one engine, and takes no options")
        texts["tokenizer.json"] = language_model.tokenizer_file(tokenizer).read_bytes()
    check_model(model, example_inputs)
    check_arguments(
        path=path,
        dynamic_shapes=dynamic_shapes,
        output_names=output_names,
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        options=options,
        progress=progress,
    )
    check_patterns("sharding", sharding)
    check_patterns("weights", weights)
    export_two = None
    if example_inputs is None and encoder_decoder.is_encoder_decoder(model):
        export_two = export_encoder_decoder
    elif example_inputs is None and vision_language.is_vision_language(model):
        export_two = export_vision_language
    if export_two is not None:
        _check_language_model(model, dynamic_shapes, output_names, options)
        chosen = TwoGraphsOptions(sharding, tokenizer, weights, checkpoint, check, progress or terminal_progress())
        return export_two(model, path, chosen)
    run = partial(_run, model, example_inputs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(model, run, of_any_length=example_inputs is None))
        stack.enter_context(torch.no_grad())
        stack.enter_context(taken_apart(model))
        if example_inputs is None:
            stack.enter_context(latent_heads(model))
        choice = with_default_sharding(model, sharding)
        if not choice.families:
            plan_sharding(model, choice.rules)  # report mistakes before the model is traced
        traced, prefix, facts = model, "", None
        if example_inputs is None:
            _check_language_model(model, dynamic_shapes, output_names, options)
            prefix, facts = language_model.PREFIX, language_model.facts(model, tokenizer)
            reaches = attention_reaches(model, facts.max_context)
            traced = stack.enter_context(language_model.steps_of(model, reaches))
            most = language_model.MOST_TOKENS if reaches else max(2, facts.max_context - 1)
            example_inputs, dynamic_shapes = language_model.example_inputs(), language_model.dynamic_shapes(most)
            output_names = ["logits"]
        example_inputs = tuple(example_inputs)
        check_dimensions(traced, example_inputs, dynamic_shapes)
        try:
            program = torch.export.export(traced, example_inputs, dynamic_shapes=dynamic_shapes)
        except Exception as error:
            if facts is not None and getattr(model, "_is_stateful", False):
                raise ExportError(f"{type(model).__name__} {language_model.KEEPS_STATE}") from error
            raise
        if facts is not None and not reaches and not traced.keeps_states:
            replace_attention(program, model, facts.max_context)
        decomposed = decompose(program)
        if options is not None:
            compiled = _compiled_in_parts(program, example_inputs, options)
            if compiled is not None:
                if check:
                    check_smallest(traced, decomposed, example_inputs)
                return save_compiled(
                    compiled,
                    path,
                    producer(),
                    plan_of=lambda graphs: plans_for(model, choice, graphs),
                    weights=weights,
                    checkpoint=checkpoint,
                    progress=progress or terminal_progress(),
                )
        names = dimension_names(decomposed, shapes_by_position(traced, example_inputs, dynamic_shapes))
        outputs = list(output_names) if output_names is not None else None
        traced_graph = traced_program(decomposed, names, prefix)
        if outputs is not None:
            _check_output_names(outputs, traced_graph)
        builder = GraphBuilder(traced_graph, outputs, prefix)
        with advised(JUST_IN_TIME if facts is not None else PYTORCH_PARTITIONS):
            graph = builder.build()
        if builder.groups and choice.rules:
            raise ExportError(
                f"the model has collectives of its own, over {', '.join(builder.groups)}: its weights are one rank's part already, "
                "and cannot be divided by sharding too"
            )
        if facts is not None:
            language_model.check_attention(model, graph.document)
        if check:
            remedy = RAISE_MINIMUM if facts is None else language_model.ANY_LENGTH
            check_smallest(traced, decomposed, example_inputs, remedy)
        progress = progress or terminal_progress()
        structure = structure_of(decomposed, graph.document, lambda node: builder._size(node.meta["val"], node))
        if builder.groups:
            return save_whole(
                structure,
                graph,
                builder.groups,
                path,
                producer(),
                weights=weights,
                checkpoint=checkpoint,
                progress=progress,
            )
        (plan,) = plans_for(model, choice, [graph])
    if facts is not None and check:
        with explained(model, run, of_any_length=True):
            check_language_model(model, traced_graph, facts.max_context)
    (packings,) = plan_packings([(graph, plan.tensors)], weights)
    (references,) = find_references(checkpoint, [(graph.tensors, packings)])
    return write_package(
        path,
        graph.document,
        graph.tensors,
        plan,
        producer(),
        progress,
        facts,
        packings,
        references=references,
        structure=None if facts is not None else structure,
        texts=texts,
    )


def _run(model: torch.nn.Module, example_inputs: Sequence | None) -> object:
    """Runs the model in PyTorch; a language model with the tokens that it is traced with."""
    if example_inputs is not None:
        return model(*example_inputs)
    tokens, *_ = language_model.example_inputs()
    return model(input_ids=tokens[None], use_cache=False)


def _check_language_model(model: torch.nn.Module, dynamic_shapes, output_names, options) -> None:
    kinds = language_model.is_language_model, encoder_decoder.is_encoder_decoder, vision_language.is_vision_language
    if not any(is_kind(model) for is_kind in kinds):
        raise ExportError(f"{type(model).__name__} is not a language model of transformers: give example_inputs")
    if options is not None:
        raise ExportError(
            "a language model that is exported without example_inputs is one engine, and takes no options"
        )
    for name, given in (("dynamic_shapes", dynamic_shapes), ("output_names", output_names)):
        if given is not None:
            raise ExportError(
                f"{name} go with example_inputs; a language model that is exported without them has its own"
            )


def _check_output_names(names: Sequence[str], traced: TracedGraph) -> None:
    if len(names) != len(traced.outputs):
        raise ExportError(f"{len(names)} output names for {len(traced.outputs)} outputs of the model")
    taken = {node.name for node in traced.inputs}
    for name in names:
        if name in taken:
            raise ExportError(f'output name "{name}" is already the name of another output, or of an input')
        taken.add(name)


def _compiled_in_parts(
    program: torch.export.ExportedProgram, example_inputs: tuple, options: Mapping[str, object]
) -> CompiledModule | None:
    """Returns the program compiled with these options, or None if one engine runs all of it."""
    # Compiled only to find the ops that engines support, so nothing is cached.
    compiled = accord_compile(program, example_inputs, {**options, "engine_cache": False})
    return compiled if compiled.report.ops("pytorch") or compiled.graph.computes_numbers() else None
