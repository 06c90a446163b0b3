"""The architectures of GGUF files: how each becomes a model of transformers.

An Architecture is data: the settings of transformers' configuration by the keys of the file, the weights by its
tensors (weights.py), and keys of features that engines do not have, with the values that turn these features off. The
keys have the meaning that llama.cpp gives them when it loads the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from accord.gguf import positions, weights
from accord.gguf.positions import Corrections
from accord.gguf.settings import (
    BIASES,
    CHOICE,
    DEEPSEEK,
    DEEPSEEK_3,
    EXPERTS,
    GEMMA_2,
    GEMMA_3,
    GRANITE,
    SIGMOID,
    SIZES,
    SOFTMAX,
    head_size,
    is_mixture,
    is_sigmoid,
    layer_types,
    or_else,
    uses_windows,
    without,
)
from accord.gguf.values import Setting, Values, always, number, whole
from accord.gguf.weights import Table

# Keys that do not affect results.
HARMLESS = {"attention.layer_norm_epsilon", "rope.scaling.finetuned"}
# Keys of features that engines do not have, with the values that turn the feature off.
NEUTRAL: Mapping[str, tuple] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window_pattern": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_gating_func": (0,),
    "expert_group_count": (0,),
    "expert_group_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_used_count": (0,),
    "expert_weights_norm": (False,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "rescale_every_n_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": (0,),
    "swin_norm": (False,),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    "token_shift_count": (0,),
    "use_parallel_residual": (False,),
}


@dataclass(frozen=True)
class Architecture:
    name: str  # general.architecture
    model: str  # transformers' model type
    settings: Mapping[str, Setting]  # of transformers' configuration
    weights: Table
    corrections: Callable[[Values], Corrections] = positions.corrections
    neutral: Mapping[str, tuple] = field(default_factory=dict)  # other values than in NEUTRAL
    harmless: frozenset[str] = frozenset()  # more keys that do not affect results
    applies: Callable[[Values], bool] = lambda _: True  # whether a file of this name is of this kind


# Keys that these architectures fix, whatever the file says.
ALWAYS_SOFTMAX = {"expert_gating_func": (0, SOFTMAX)}
NORMALIZED = {**ALWAYS_SOFTMAX, "expert_weights_norm": (True,)}
# Positions are not rotated if the key says so.
ROTATED = {"rope.scaling.finetuned": (True,)}
# Files count the one compressed key, from which a layer computes those of all heads.
COMPRESSED = frozenset({"attention.head_count_kv"})

# The first that applies to a file.
ARCHITECTURES = (
    Architecture(
        "llama",
        "mixtral",
        {**SIZES, **CHOICE, "num_local_experts": whole("expert_count")},
        {**weights.MIXTURE, **weights.REORDERED},
        positions.corrections_of_llama,
        NORMALIZED,
        applies=is_mixture,
    ),
    Architecture("llama", "llama", {**SIZES, **BIASES}, weights.LLAMA, positions.corrections_of_llama),
    Architecture(
        "mistral3",
        "ministral3",
        {**SIZES, "rope_parameters": positions.rotary_of_ministral},
        weights.LLAMA,
        positions.corrections_with_factors,
    ),
    Architecture("smollm3", "smollm3", {**SIZES, "no_rope_layer_interval": always(4)}, weights.LLAMA),
    Architecture("granite", "granite", GRANITE, weights.LLAMA, positions.corrections_with_factors, ROTATED),
    Architecture(
        "granitemoe",
        "granitemoe",
        {**GRANITE, **CHOICE, "num_local_experts": whole("expert_count")},
        weights.GRANITE_MIXTURE,
        positions.corrections_with_factors,
        NORMALIZED,
    ),
    Architecture("qwen2", "qwen2", SIZES, weights.PLAIN),
    Architecture("qwen3", "qwen3", {**SIZES, **BIASES}, {**weights.PLAIN, **weights.HEAD_NORMS}),
    Architecture(
        "qwen2moe",
        "qwen2_moe",
        {
            **SIZES,
            **EXPERTS,
            "shared_expert_intermediate_size": whole("expert_shared_feed_forward_length", whole("feed_forward_length")),
        },
        weights.QWEN_2_MIXTURE,
        neutral=ALWAYS_SOFTMAX,
    ),
    Architecture(
        "qwen3moe",
        "qwen3_moe",
        {**SIZES, **BIASES, **EXPERTS, "norm_topk_prob": always(True)},
        {**weights.MIXTURE, **weights.HEAD_NORMS},
        neutral=NORMALIZED,
    ),
    Architecture("gemma", "gemma", SIZES, weights.GEMMA),
    Architecture("gemma2", "gemma2", GEMMA_2, weights.GEMMA_2),
    Architecture("gemma3", "gemma3_text", GEMMA_3, weights.GEMMA_2, positions.no_corrections),
    Architecture(
        "phi3",
        "phi3",
        {
            **SIZES,
            "head_dim": head_size,
            "rope_parameters": positions.rotary_of_a_part,
            "sliding_window": or_else(whole("attention.sliding_window", 0, least=0), None),
        },
        weights.PHI,
        positions.corrections_of_phi,
    ),
    Architecture(
        "olmo2",
        "olmo3",
        {
            **SIZES,
            "layer_types": layer_types(4),
            "sliding_window": whole("attention.sliding_window"),
            "rope_parameters": positions.rotary_of_both_kinds(),
        },
        weights.OLMO_2,
        positions.no_corrections,
        applies=uses_windows,
    ),
    Architecture("olmo2", "olmo2", SIZES, weights.OLMO_2),
    Architecture(
        "starcoder2",
        "starcoder2",
        {**without(SIZES, "rms_norm_eps"), "norm_epsilon": number("attention.layer_norm_epsilon")},
        weights.STARCODER_2,
    ),
    Architecture(
        "gpt-oss",
        "gpt_oss",
        {
            **SIZES,
            **CHOICE,
            "num_local_experts": whole("expert_count"),
            "intermediate_size": whole("expert_feed_forward_length"),
            "layer_types": layer_types(2),
            "sliding_window": whole("attention.sliding_window"),
            "rope_parameters": positions.rotary_of_gpt_oss,
        },
        weights.GPT_OSS,
        harmless=frozenset({"feed_forward_length"}),
    ),
    Architecture(
        "deepseek2",
        "deepseek_v3",
        DEEPSEEK_3,
        weights.DEEPSEEK,
        positions.corrections_of_deepseek,
        {"expert_gating_func": (SIGMOID,)},
        COMPRESSED,
        is_sigmoid,
    ),
    Architecture(
        "deepseek2",
        "deepseek_v2",
        {**DEEPSEEK, "topk_method": always("greedy")},
        weights.DEEPSEEK,
        positions.corrections_of_deepseek,
        {**ALWAYS_SOFTMAX, "expert_group_count": (0, 1), "expert_group_used_count": (0, 1)},
        COMPRESSED,
    ),
)
