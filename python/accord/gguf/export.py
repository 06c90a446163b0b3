"""Exports a GGUF file, the format of llama.cpp, to an engine package: python -m accord.gguf model.gguf model.accord

A GGUF file contains a model's sizes, its weights (in any precision), its tokenizer and its chat template. A
transformers model is created with these sizes, gets the weights under transformers' names, and is exported; the bits
of 4-bit and 8-bit matrices do not change. llama.cpp stores the rows of queries and keys in another order, because it
applies rotary positions differently: the original order is restored.

Needs the PyPI package gguf, which reads the file, in addition to what export() needs.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from accord.exporter.export import export
from accord.gguf.file import read_file
from accord.gguf.keys import read_keys
from accord.gguf.tokenizer import tokenizer_config, tokenizer_json
from accord.graph.errors import ExportError
from accord.graph.traced import check_arguments
from accord.package.progress import Progress
from accord.package.sharding import Column, Row
from accord.package.weights import Int4, Int8, Quantized

# transformers' name: GGUF's name; "{}" is the number of a layer.
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.{}.input_layernorm.weight": "blk.{}.attn_norm.weight",
    "model.layers.{}.self_attn.q_proj.weight": "blk.{}.attn_q.weight",
    "model.layers.{}.self_attn.k_proj.weight": "blk.{}.attn_k.weight",
    "model.layers.{}.self_attn.v_proj.weight": "blk.{}.attn_v.weight",
    "model.layers.{}.self_attn.o_proj.weight": "blk.{}.attn_output.weight",
    "model.layers.{}.post_attention_layernorm.weight": "blk.{}.ffn_norm.weight",
    "model.layers.{}.mlp.gate_proj.weight": "blk.{}.ffn_gate.weight",
    "model.layers.{}.mlp.up_proj.weight": "blk.{}.ffn_up.weight",
    "model.layers.{}.mlp.down_proj.weight": "blk.{}.ffn_down.weight",
}
DTYPES = ("float32", "bfloat16", "float16")
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's divisors of its rotary frequencies


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

    Supports files of the architecture "llama" (Llama, Mistral, SmolLM, ...) with weights of any type that the package
    gguf reads (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q6_K, ...). The tokenizer (byte-level BPE or SentencePiece) and the
    chat template are packaged as well.
    `dtype`: of the engine's computation, and of weights that are not kept unchanged: "float32", which represents all
    of these types exactly, "bfloat16" or "float16".
    `weights`: "same" keeps matrices of Q4_0, Q4_1 and Q8_0 unchanged, in 4 or 8 bits. None converts all weights to
    `dtype`. Other values of export()'s `weights` apply to the numbers in the file.
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
) -> tuple[transformers.LlamaForCausalLM, dict[str, Quantized]]:
    """Returns the model, and the codes of each layer whose matrix can keep its codes."""
    keys = read_keys(facts, tensors)
    config = keys.config
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    used = set()

    def take(name: str) -> torch.Tensor:
        used.add(name)
        kind = tensors[name].tensor_type
        try:
            return torch.from_numpy(gguf.dequantize(tensors[name].data, kind).copy())
        except NotImplementedError as error:
            raise ExportError(
                f'its tensor "{name}" is of the type {kind.name}, which the package gguf cannot read'
            ) from error

    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    weights, quantized = {}, {}
    for name, expected in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        (layer,) = re.findall(r"\.(\d+)\.", name) or [""]
        theirs = NAMES[name.replace(f".{layer}.", ".{}.") if layer else name].format(layer)
        module = name.split(".")[-2]
        if (shape := [int(size) for size in reversed(tensors[theirs].shape)]) != list(expected.shape):
            raise ExportError(f'its tensor "{theirs}" is {shape}, but its keys make it {list(expected.shape)}')
        order = _order(int(tensors[theirs].shape[1]), heads[module]) if module in heads else ...
        weights[name] = take(theirs)[order].to(dtype)
        is_product = module != "embed_tokens" or config.tie_word_embeddings
        if is_product and (codes := _codes(tensors[theirs], order)) is not None:
            quantized[name.removesuffix(".weight")] = codes
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if ROPE_FACTORS in tensors:
        factors, frequencies = take(ROPE_FACTORS), model.model.rotary_emb.inv_freq
        if factors.shape != frequencies.shape:
            raise ExportError(
                f'its tensor "{ROPE_FACTORS}" has {factors.numel()} factors for {frequencies.numel()} frequencies'
            )
        frequencies /= factors
    model.model.rotary_emb.attention_scaling *= keys.rotary_scale
    if keys.attention_scale is not None:
        for decoder in model.model.layers:
            decoder.self_attn.scaling = keys.attention_scale
    if unknown := sorted(tensors.keys() - used):
        raise ExportError(f"it has tensors that a Llama has not: {', '.join(unknown[:5])}")
    return model.eval(), quantized


def _order(rows: int, heads: int) -> np.ndarray:
    """Returns the positions of a matrix's rows in the file: in queries and keys, llama.cpp rotates adjacent rows of a
    head together, and transformers rows that are half a head apart."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _codes(tensor: gguf.ReaderTensor, order) -> Quantized | None:
    """Returns the codes, scales and minima in blocks of 32 elements, or None if engines lack the tensor's type."""
    types = gguf.GGMLQuantizationType
    if tensor.tensor_type not in (types.Q8_0, types.Q4_0, types.Q4_1):
        return None
    rows = tensor.data.shape[0]
    blocks = tensor.data.reshape(rows, -1, gguf.GGML_QUANT_SIZES[tensor.tensor_type][1])[order]
    scales = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    if tensor.tensor_type == types.Q8_0:
        codes = blocks[..., 2:] ^ 128  # two's complement to code = q + 128
        return Quantized("int8", 32, codes.reshape(rows, -1), scales)
    minima = None
    if tensor.tensor_type == types.Q4_1:
        minima = blocks[..., 2:4].copy().view(np.float16)[..., 0].astype(np.float32)
    halves = blocks[..., -16:]  # each byte contains elements i and i + 16
    return Quantized("int4", 32, np.concatenate((halves & 15, halves >> 4), -1).reshape(rows, -1), scales, minima)
