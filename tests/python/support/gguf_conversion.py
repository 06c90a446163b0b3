"""Keys and tensors of GGUF files for models of transformers, as llama.cpp's converter writes them.

Names of tensors are those of the package gguf, which the converter uses, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf")

Arch = gguf.MODEL_ARCH
ARCHITECTURES = {  # by transformers' model type
    "llama": Arch.LLAMA,
    "mixtral": Arch.LLAMA,
    "ministral3": Arch.MISTRAL3,
    "smollm3": Arch.SMOLLM3,
    "granite": Arch.GRANITE,
    "granitemoe": Arch.GRANITE_MOE,
    "qwen2": Arch.QWEN2,
    "qwen3": Arch.QWEN3,
    "qwen2_moe": Arch.QWEN2MOE,
    "qwen3_moe": Arch.QWEN3MOE,
    "gemma": Arch.GEMMA,
    "gemma2": Arch.GEMMA2,
    "gemma3_text": Arch.GEMMA3,
    "phi3": Arch.PHI3,
    "olmo2": Arch.OLMO2,
    "olmo3": Arch.OLMO2,
    "starcoder2": Arch.STARCODER2,
    "gpt_oss": Arch.GPT_OSS,
    "deepseek_v2": Arch.DEEPSEEK2,
    "deepseek_v3": Arch.DEEPSEEK2,
}
LIKE_LLAMA = ("llama", "mixtral", "ministral3", "smollm3", "granite", "granitemoe")  # converted by a class of Llama's
WINDOWED = ("gemma2", "gemma3_text", "gpt_oss", "olmo3")
# Keys that the converter writes if the configuration has the field.
FIELDS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "first_k_dense_replace": "leading_dense_block_count",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "v_head_dim": "attention.value_length_mla",
}


def keys_of(config) -> dict[str, object]:
    """Returns the keys without the name of the architecture."""
    kind, given = config.model_type, config.to_dict()
    keys = {key: given[field] for field, key in FIELDS.items() if given.get(field) is not None}
    if given.get("head_dim") is not None:
        keys |= {"attention.key_length": given["head_dim"], "attention.value_length": given["head_dim"]}
    ropes = given["rope_parameters"]
    rope = ropes.get("full_attention", ropes)
    keys["rope.freq_base"] = float(rope["rope_theta"])
    if "sliding_attention" in ropes:
        keys["rope.freq_base_swa"] = float(ropes["sliding_attention"]["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        keys |= {f"rope.scaling.yarn_{name}": float(rope[name]) for name in ("beta_fast", "beta_slow") if name in rope}
    if kind in WINDOWED and given["sliding_window"]:
        keys["attention.sliding_window"] = given["sliding_window"]
    if kind == "olmo3":
        keys["attention.sliding_window_pattern"] = [one == "sliding_attention" for one in given["layer_types"]]
    if kind in LIKE_LLAMA:
        head = given.get("head_dim") or given["hidden_size"] // given["num_attention_heads"]
        keys |= {"vocab_size": given["vocab_size"], "rope.dimension_count": head}
    if kind == "ministral3":
        keys["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
        keys["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
    if kind == "gpt_oss":
        keys["expert_feed_forward_length"] = given["intermediate_size"]
    if kind == "phi3":
        keys |= _keys_of_phi(given, rope)
    if kind.startswith("deepseek"):
        keys |= _keys_of_deepseek(kind, given, rope)
    return keys


def _keys_of_phi(given: dict, rope: dict) -> dict[str, object]:
    longest, original = given["max_position_embeddings"], given["original_max_position_embeddings"]
    head = given["hidden_size"] // given["num_attention_heads"]
    keys = {
        "rope.dimension_count": int(rope.get("partial_rotary_factor", 1.0) * head),
        "rope.scaling.original_context_length": original,
        "attention.sliding_window": given["sliding_window"] or 0,
    }
    if "long_factor" in rope:
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(longest / original) / math.log(original))
    return keys


def _keys_of_deepseek(kind: str, given: dict, rope: dict) -> dict[str, object]:
    turned = given["qk_rope_head_dim"]
    keys = {
        "vocab_size": given["vocab_size"],
        "attention.head_count_kv": 1,
        "attention.key_length": given["kv_lora_rank"] + turned,
        "attention.value_length": given["kv_lora_rank"],
        "attention.key_length_mla": given["qk_nope_head_dim"] + turned,
        "rope.dimension_count": turned,
        "expert_gating_func": 2 if kind == "deepseek_v3" else 1,
    }
    if given["norm_topk_prob"]:
        keys["expert_weights_norm"] = True
    if "mscale_all_dim" in rope:
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return keys


def tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, np.ndarray]]:
    config = model.config
    names = gguf.get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, tensor in _converted(name, weight.detach(), config):
            found = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert found is not None, part
            yield found, tensor.squeeze().contiguous().numpy()
    for length in ("long", "short"):
        factors = config.rope_parameters.get(f"{length}_factor")
        if factors is not None:
            yield f"rope_factors_{length}.weight", np.float32(factors)


def _converted(name: str, weight: torch.Tensor, config) -> Iterator[tuple[str, torch.Tensor]]:
    kind = config.model_type
    experts, _, part = name.partition(".experts.")
    experts = experts.replace("block_sparse_moe", "mlp") + ".experts"
    if kind in LIKE_LLAMA and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        yield name, weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)
    elif kind.startswith("gemma") and name.endswith("norm.weight"):
        yield name, weight + 1
    elif kind == "gpt_oss" and part.startswith("gate_up_proj"):
        weight = weight if part.endswith("bias") else weight.transpose(1, 2)
        ending = "bias" if part.endswith("bias") else "weight"
        yield f"{experts}.gate_proj.{ending}", weight[:, ::2]
        yield f"{experts}.up_proj.{ending}", weight[:, 1::2]
    elif kind == "gpt_oss" and part == "down_proj":
        yield f"{experts}.down_proj.weight", weight.transpose(1, 2)
    elif kind == "gpt_oss" and part == "down_proj_bias":
        yield f"{experts}.down_proj.bias", weight
    elif part == "gate_up_proj":
        gate, up = weight.chunk(2, 1)
        yield f"{experts}.gate_proj.weight", gate
        yield f"{experts}.up_proj.weight", up
    elif part == "down_proj":
        yield f"{experts}.down_proj.weight", weight
    elif name.endswith("kv_b_proj.weight"):
        both = weight.unflatten(0, (config.num_attention_heads, -1))
        keys, values = both.split([config.qk_nope_head_dim, config.v_head_dim], 1)
        yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), values
    elif name.endswith("e_score_correction_bias"):
        yield name.replace("_bias", ".bias"), weight
    elif name.endswith("router.weight") and kind == "granitemoe":
        yield name.replace("router", "router.layer"), weight
    else:
        yield f"{name}.weight" if name.endswith("sinks") else name, weight
