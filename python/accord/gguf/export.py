"""Exports a GGUF file, the format of llama.cpp, to an engine package: python -m accord.gguf model.gguf model.accord

A GGUF file contains a model's sizes, its weights (in any precision), its tokenizer and its chat template. A
transformers model is created with these sizes, gets the weights under transformers' names, and is exported; the bits
of quantized matrices do not change. architectures.py describes how keys become a configuration, and tensors weights.

Needs the PyPI package gguf, which reads the file, in addition to what export() needs.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from accord.exporter.export import export
from accord.gguf.codes import CODES
from accord.gguf.file import read_file
from accord.gguf.keys import read_keys
from accord.gguf.positions import LONGROPE, Corrections
from accord.gguf.tensors import Tensors
from accord.gguf.tokenizer import tokenizer_config, tokenizer_json
from accord.gguf.weights import Weight, keys_then_values, only
from accord.graph.errors import ExportError
from accord.graph.modules import parts_of
from accord.graph.traced import check_arguments
from accord.package.codes import Quantized, with_smallest_scales
from accord.package.expert_codes import QuantizedExperts, QuantizedStack, rows_of
from accord.package.formats import Int4, Int8
from accord.package.progress import Progress
from accord.package.sharding import Column, Row

DTYPES = ("float32", "bfloat16", "float16")


def export_gguf(
    file: str | os.PathLike,
    *,
    path: str | os.PathLike,
    dtype: str = "float32",
    weights: str | Mapping[str, str | Int8 | Int4] | None = "same",
    sharding: Mapping[str, Column | Row | str] | str | None = "auto",
    check: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Exports the language model in the GGUF `file` to the engine package `path` (NAME.accord) and returns its path.
    For a split file, `file` is any part; the other parts are beside it.

    docs/language-models.md lists the architectures and tokenizers. Weights may be of any type that the package gguf
    reads (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q6_K, MXFP4, ...). The tokenizer and the chat template are packaged, too.
    `dtype`: of the engine's computation, and of weights that are not kept unchanged: "float32", which represents all
    of these types exactly, "bfloat16" or "float16".
    `weights`: "same" keeps the numbers of quantized matrices exactly, in 4 to 8 bits (K-quants, Q4_0, Q8_0, IQ4_XS,
    ...; docs/language-models.md has the list). None converts all weights to `dtype`. Other values of export()'s
    `weights` apply to the numbers in the file.
    `sharding`, `check`, `progress`: same as for export().

    Raises ExportError, which names whatever engines do not support (another architecture, a key, a tensor, a
    tokenizer), and whatever is damaged or missing.
    """
    check_arguments(file=file, path=path, progress=progress)
    if dtype not in DTYPES:
        near = difflib.get_close_matches(str(dtype), DTYPES, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else f": use one of {', '.join(DTYPES)}"
        raise ExportError(f'engines compute in no dtype "{dtype}"{hint}')
    facts, tensors = read_file(file)
    try:
        model, quantized = _model(tensors, facts, getattr(torch, dtype))
        texts = _tokenizer_texts(facts)
        with tempfile.TemporaryDirectory() as folder:
            for name, document in texts.items():
                (Path(folder) / name).write_text(json.dumps(document), encoding="utf-8")
            weights = quantized if weights == "same" else weights
            return export(
                model, path=path, sharding=sharding, tokenizer=folder, weights=weights, check=check, progress=progress
            )
    except KeyError as error:
        raise ExportError(f"{os.fspath(file)} lacks {error}") from error
    except ExportError as error:
        raise ExportError(f"{os.fspath(file)}: {error}") from error


def _tokenizer_texts(facts: Mapping) -> dict[str, dict]:
    try:
        return {"tokenizer.json": tokenizer_json(facts), "tokenizer_config.json": tokenizer_config(facts)}
    except (IndexError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(f"the keys of its tokenizer contradict each other: {error}") from error


def _model(
    tensors: Mapping, facts: Mapping, dtype: torch.dtype
) -> tuple[transformers.PreTrainedModel, dict[str, Quantized | QuantizedStack | QuantizedExperts]]:
    """Returns the model, and the codes of each layer whose matrix can keep its codes."""
    keys = read_keys(facts, tensors)
    config, tensors = keys.config, Tensors(tensors)
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    weights, quantized, experts = {}, {}, {}
    for name, expected in empty.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        way, module = tensors.way_to_make(keys.architecture.weights, name), name.rpartition(".")[0]
        order = _order(len(expected), getattr(config, way.heads)) if way.heads else ...
        weights[name] = tensors.make(way, list(expected.shape))[order].to(dtype)
        is_product = isinstance(empty.get_submodule(module), (torch.nn.Linear, torch.nn.Embedding))
        if is_product and way.join is only and (codes := _codes(tensors.all[way.tensors[0]], order)) is not None:
            quantized |= _by_layers(module, *with_smallest_scales([codes]), config)
        if way.join is keys_then_values:
            quantized |= _codes_of_heads(module, way, tensors)
        if way.matrices:
            experts.setdefault(module, {}).update(_codes_of_experts(way, tensors))
    quantized |= {module: QuantizedExperts(matrices) for module, matrices in experts.items() if matrices}
    model = type(empty).from_pretrained(None, config=config, state_dict=weights, dtype=dtype)
    _correct(model, keys.corrections, tensors)
    if unknown := tensors.unknown():
        raise ExportError(
            f'it has tensors that models of the architecture "{keys.architecture.name}" do not have: '
            f"{', '.join(unknown[:5])}"
        )
    return model.eval(), quantized


def _correct(model: transformers.PreTrainedModel, corrections: Corrections, tensors: Tensors) -> None:
    rotary = model.model.rotary_emb
    if corrections.factors in LONGROPE:
        tensors.known.update(LONGROPE)  # the other one has no effect
    if corrections.factors is not None:
        factors, frequencies = tensors.take(corrections.factors), rotary.inv_freq
        if factors.shape != frequencies.shape:
            raise ExportError(
                f'its tensor "{corrections.factors}" has {factors.numel()} factors for {frequencies.numel()} frequencies'
            )
        frequencies /= factors
    if corrections.rotary_scale != 1.0:
        rotary.attention_scaling *= corrections.rotary_scale
    if corrections.attention_scale is not None:
        for decoder in model.model.layers:
            decoder.self_attn.scaling = corrections.attention_scale


def _order(rows: int, heads: int) -> np.ndarray:
    """Returns the positions of the rows of queries or keys in the file."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _codes(tensor: gguf.ReaderTensor, order) -> Quantized | None:
    """Returns the codes, scales and minima of groups of elements, or None if engines lack the tensor's type."""
    decode = CODES.get(tensor.tensor_type.name)
    if decode is None:
        return None
    rows = tensor.data.shape[0]
    return decode(tensor.data.reshape(rows, -1, gguf.GGML_QUANT_SIZES[tensor.tensor_type][1])[order])


def _codes_of_experts(way: Weight, tensors: Tensors) -> dict[str, QuantizedStack]:
    """Returns the codes by matrix: of a gate only if it has the type of what it gates, as kernels need it."""
    given = [tensors.all[name] for name in way.tensors]
    if len({tensor.tensor_type for tensor in given}) > 1:
        return {}
    if given[0].tensor_type.name not in CODES:
        return {}
    codes = with_smallest_scales([_codes(tensor._replace(data=one), ...) for tensor in given for one in tensor.data])
    count = len(given[0].data)
    return {
        matrix: QuantizedStack(tuple(codes[number * count : (number + 1) * count]))
        for number, matrix in enumerate(way.matrices)
    }


def _codes_of_heads(module: str, way: Weight, tensors: Tensors) -> dict[str, QuantizedStack]:
    """Returns the codes of the layers that export() makes of a kv_b_proj, whose keys' and values' matrices are tensors
    of their own in the file."""
    stacks = {}
    for part, name in zip(("key", "value"), way.tensors, strict=True):
        codes = [_codes(tensors.all[name]._replace(data=matrix), ...) for matrix in tensors.all[name].data]
        if None not in codes:
            stacks[f"{module}.{part}"] = QuantizedStack(tuple(with_smallest_scales(codes)))
    return stacks


def _by_layers(
    module: str, codes: Quantized, config: transformers.PreTrainedConfig
) -> dict[str, Quantized | QuantizedStack]:
    """Returns the codes of the layers into which export() splits a fused one."""
    if module.endswith(".kv_b_proj"):
        # The keys' matrices are transposed, so that their codes have other groups.
        key, value = config.qk_nope_head_dim, config.v_head_dim
        begins = range(key, len(codes.codes), key + value)
        return {f"{module}.value": QuantizedStack(tuple(rows_of(codes, at, at + value) for at in begins))}
    parts = parts_of(module.rpartition(".")[2], len(codes.codes), config)
    if parts is None:
        return {module: codes}
    ends = list(itertools.accumulate(parts.values()))
    return {
        f"{module}.{part}": rows_of(codes, end - size, end)
        for (part, size), end in zip(parts.items(), ends, strict=True)
    }
