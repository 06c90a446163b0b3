"""Exports a PyTorch model to an engine package, in one call."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from accord.exporter import language_model
from accord.exporter.check import check_language_model
from accord.exporter.families import with_default_sharding
from accord.exporter.found_attention import replace_attention
from accord.exporter.masks import attention_reaches
from accord.exporter.replication import Choice, settled_plans
from accord.exporter.smallest import RAISE_MINIMUM, check_smallest, user_inputs
from accord.exporter.structure import structure_of
from accord.graph.builder import ExportedGraph, GraphBuilder, memory_key
from accord.graph.decomposition import decompose
from accord.graph.errors import ExportError
from accord.graph.explanations import JUST_IN_TIME, PYTORCH_PARTITIONS, advised, explained
from accord.graph.latent_heads import latent_heads
from accord.graph.modules import taken_apart
from accord.graph.symbols import derived_from
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
from accord.package.sharding import (
    DIVIDED,
    Rule,
    ShardingPlan,
    Style,
    TensorSharding,
    apply_rules,
    plan_sharding,
)
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
    input_ids [tokens], positions [tokens] and rows [rows], and returns logits [rows, vocabulary].
    `sharding`: which linear layers are divided among the ranks of a group, by pattern over module paths (`*` stands
    for any characters, the first match applies): {"encoder.layer.*.attention.self.query": accord.Column(unit=64),
    ...}. A unit stays together on a rank; for attention it is the size of a head. The strings "column" and "row" use
    the largest power of two up to 64 that divides the layer; accord.Expert() divides layers of experts expert by
    expert. "auto" follows the layer names of transformers' model families, and {..., "*": "auto"} does so for the
    layers that no other pattern matches. A plan for parallelize_module (ColwiseParallel(), ...) works, too.
    `dynamic_shapes`: same as for torch.export; each dynamic dimension needs a maximum. Sizes down to the minimum are
    checked: the exported program is run on the narrowed examples and must return what the model returns.
    `output_names`: names for the outputs; the inputs are named after the parameters of forward().
    `tokenizer`: a tokenizer.json, or a folder with one. It is packaged with the language model, together with the
    model's chat template.
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
    if tokenizer is not None and example_inputs is not None:
        raise ExportError("a tokenizer goes with a language model, which is exported without example_inputs")
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
            _check_language_model(model, dynamic_shapes, output_names)
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
            compiled = _compiled_in_parts(program, example_inputs, options, facts is not None)
            if compiled is not None:
                if check:
                    check_smallest(traced, decomposed, example_inputs)
                return save_compiled(
                    compiled,
                    path,
                    producer(),
                    plan_of=lambda graphs: _plans(model, choice, graphs),
                    weights=weights,
                    checkpoint=checkpoint,
                    progress=progress or terminal_progress(),
                )
        names = _dimension_names(decomposed, _shapes_by_position(traced, example_inputs, dynamic_shapes))
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
        (plan,) = _plans(model, choice, [graph])
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
    )


def _run(model: torch.nn.Module, example_inputs: Sequence | None) -> object:
    """Runs the model in PyTorch; a language model with the tokens that it is traced with."""
    if example_inputs is not None:
        return model(*example_inputs)
    tokens, *_ = language_model.example_inputs()
    return model(input_ids=tokens[None], use_cache=False)


def _check_language_model(model: torch.nn.Module, dynamic_shapes, output_names) -> None:
    if not language_model.is_language_model(model):
        raise ExportError(f"{type(model).__name__} is not a causal language model of transformers: give example_inputs")
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


def _shapes_by_position(model: torch.nn.Module, example_inputs: tuple, dynamic_shapes) -> list:
    """Returns the dynamic shapes of each leaf of the inputs in order. A mapping gives them by the names of
    forward()'s parameters."""
    arguments = inspect.signature(model.forward).bind(*example_inputs).arguments
    if isinstance(dynamic_shapes, Mapping):
        shapes = [dynamic_shapes.get(name) for name in arguments]
    else:
        shapes = list(dynamic_shapes or [])
        shapes += [None] * (len(arguments) - len(shapes))
    return [
        leaf for value, shape in zip(arguments.values(), shapes, strict=False) for leaf in _leaf_shapes(value, shape)
    ]


def _leaf_shapes(value: object, shape: object) -> list:
    if isinstance(value, Mapping):
        return [leaf for key, one in value.items() for leaf in _leaf_shapes(one, (shape or {}).get(key))]
    if isinstance(value, (tuple, list)):
        return [
            leaf
            for one, of_it in zip(value, shape or [None] * len(value), strict=False)
            for leaf in _leaf_shapes(one, of_it)
        ]
    return [shape]


def _dimension_names(program: torch.export.ExportedProgram, shapes: list) -> dict[str, str]:
    """Returns torch's symbol -> the user's Dim name, or INPUT_dimN for an unnamed dimension. A symbol that occurs
    only in derived sizes (2 * h) gets the name of the dimension that they are derived from."""
    names: dict[str, str] = {}
    derived_names: dict[str, str] = {}
    for index, node in enumerate(user_inputs(program)):
        given = shapes[index] if index < len(shapes) else None
        sizes = node.meta["val"].shape if isinstance(node.meta["val"], torch.Tensor) else ()
        for dim, size in enumerate(sizes):
            derived = derived_from(size)
            if derived is None:
                continue
            symbol, *line = derived
            wanted = None
            if isinstance(given, Mapping):
                wanted = given.get(dim, given.get(dim - len(sizes)))
            elif given:
                wanted = given[dim]
            is_plain = line == [1, 0]
            name = getattr(wanted if is_plain else getattr(wanted, "root", None), "__name__", "")
            name = name if name.isidentifier() else f"{node.name}_dim{dim}"
            (names if is_plain else derived_names).setdefault(symbol, name)
    return derived_names | names


def _compiled_in_parts(
    program: torch.export.ExportedProgram, example_inputs: tuple, options: Mapping[str, object], is_language_model: bool
) -> CompiledModule | None:
    """Returns the program compiled with these options, or None if one engine runs all of it."""
    if is_language_model:
        raise ExportError(
            "a language model that is exported without example_inputs is one engine, and takes no options"
        )
    # Compiled only to find the ops that engines support, so nothing is cached.
    compiled = accord_compile(program, example_inputs, {**options, "engine_cache": False})
    return compiled if compiled.report.ops("pytorch") or compiled.graph.computes_numbers() else None


def _plans(model: torch.nn.Module, choice: Choice, graphs: Sequence[ExportedGraph]) -> list[ShardingPlan]:
    """Assigns to each engine of a program the rules that apply to layers of it."""

    def plans_of(rules: Mapping[str, object], may_be_unused: set[str]) -> list[ShardingPlan]:
        plan = plan_sharding(model, rules)
        checked = [_checked_plan(plan, graph, model) for graph in graphs]
        for rule in plan.rules:
            if rule.pattern not in may_be_unused and all(rule in unused for _, unused in checked):
                raise ExportError(f'sharding pattern "{rule.pattern}" decides no layer that the outputs need')
        return [one for one, _ in checked]

    return settled_plans(model, choice, graphs, plans_of)


def _checked_plan(plan: ShardingPlan, graph: ExportedGraph, model: torch.nn.Module) -> tuple[ShardingPlan, list[Rule]]:
    """Returns the plan with the rules that apply to layers of the graph, and the rules that apply to none. The plan
    refers to tensors as they are stored: a tied weight under its one name, an unused weight not at all. A sharded
    tensor may be used only as a weight or bias of linear layers and as a table of embeddings, each in the module that
    the rules name: the engine applies them to the graph."""
    stored_names = {memory_key(tensor): name for name, tensor in graph.tensors.items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    tensors: dict[str, TensorSharding] = {}
    for name, sharding in plan.tensors.items():
        stored = stored_names.get(memory_key(parameters[name]))
        if stored is None:
            continue
        if tensors.setdefault(stored, sharding) != sharding:
            raise ExportError(f'"{name}" and "{stored}" are one tied weight, but are to be sharded differently')
        uses = graph.uses[stored]
        if name.endswith(".bias") and not any(argument in DIVIDED.get(op, ()) for op, argument, _ in uses):
            del tensors[stored]  # the model adds it by itself: each rank has all of it and uses a part
            continue
        for op, argument, place in uses:
            if argument not in DIVIDED.get(op, ()):
                raise ExportError(f'"{name}" cannot be sharded: {op} at {place} uses it as "{argument}"')
    given, unused = apply_rules(plan.rules, graph.document)
    for name in sorted(tensors.keys() | given.keys()):
        if tensors.get(name) != given.get(name):
            (_, _, place), *_ = graph.uses[name]
            raise ExportError(
                f'"{name}" is used at {place}: a sharding pattern matches either the layer that it belongs to or the module '
                "that uses it, but not both"
            )
    rules = [rule for rule in plan.rules if rule not in unused]
    return ShardingPlan(
        rules, tensors, [name for name in plan.groups if name in {rule.group for rule in rules}]
    ), unused
