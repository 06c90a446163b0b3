"""Small models as GGUF files, and the logits that they should produce."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from gguf_conversion import ARCHITECTURES, keys_of, tensors_of
from text_model import CONTEXT, TEMPLATE, torch, transformers

import accord

gguf = pytest.importorskip("gguf")

TYPES = ("Q4_1", "Q4_0", "Q8_0", "F16", "BF16", "Q6_K", "F32", "Q4_K", "Q5_K", "Q5_0", "Q5_1")
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_model(vocabulary: int, **options) -> torch.nn.Module:
    torch.manual_seed(2)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, vocab_size=vocabulary, **options)).eval()


def add_tokenizer(writer, tokenizer, kind: str = "gpt2", pre: str = "gpt-2") -> None:
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    special = {token["id"] for token in document["added_tokens"]}
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if id in special else 1 for id in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


# The float16 scales in the blocks of types that the package gguf does not write: byte -> scale.
BLOCK_SCALES = {
    "Q2_K": {80: 6e-4, 82: 1e-3},
    "Q3_K": {108: 2e-4},
    "Q4_K": {0: 8e-5, 2: 6e-4},
    "Q5_K": {0: 4e-5, 2: 6e-4},
    "Q6_K": {208: 2e-5},
    "IQ4_NL": {0: 3e-4},
    "IQ4_XS": {0: 1e-5},
}


def random_blocks(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> np.ndarray:
    """Random blocks for a matrix, with scales that make its elements about as large as those of a model."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    chance = np.random.default_rng(0)
    blocks = chance.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=np.uint8)
    for at, scale in BLOCK_SCALES[kind.name].items():
        scales = (scale * chance.uniform(0.5, 1.5, (*blocks.shape[:-1], 1))).astype(np.float16)
        blocks[..., at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write(
    path: Path,
    model,
    tokenizer,
    types=("F32",),
    architecture="",
    more=(),
    keys=None,
    split=0,
    without=(),
    **tokens,
):
    """Writes a model as a GGUF file. `types`: of matrices, in turn, or by name. `more` tensors, with their types if
    they are quantized; `without` tensors. `keys`: additional keys, or None for a key that is left out. `split`: the
    maximum number of tensors per part."""
    name = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[model.config.model_type]]
    writer = gguf.GGUFWriter(path, architecture or name, split_max_tensors=split)
    add_tokenizer(writer, tokenizer, **tokens)
    matrices = itertools.count()
    for tensor, weight in tensors_of(model):
        stem = tensor.split(".")[-2]
        if stem in without:
            continue
        is_float = weight.ndim == 1 or stem == "ffn_gate_inp" or tensor.endswith(".bias")
        if is_float:
            given = "F32"
        else:
            given = types.get(stem, "F32") if isinstance(types, dict) else types[next(matrices) % len(types)]
        kind = gguf.GGMLQuantizationType[given]
        data = random_blocks(kind, weight.shape) if kind.name in BLOCK_SCALES else gguf.quantize(weight, kind)
        writer.add_tensor(tensor, data, raw_dtype=kind)
    for tensor, data, *kind in more:
        writer.add_tensor(tensor, data, raw_dtype=kind[0] if kind else None)
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
    usual = {f"{name}.{key}": value for key, value in keys_of(model.config).items()}
    for key, value in {**usual, **(keys or {})}.items():
        if value is None:
            continue
        kind = kinds.get(type(value), gguf.GGUFValueType.STRING)
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY if isinstance(value, list) else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits_of_engine(path: Path, ids: np.ndarray, groups=None) -> torch.Tensor:
    with accord.load(path, groups) as engine:
        return torch.from_dlpack(engine.run(ids, np.arange(len(ids)), np.arange(len(ids)))[0]).clone()


def logits_of(model: torch.nn.Module, ids: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0]
