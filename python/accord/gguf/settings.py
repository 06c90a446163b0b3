"""Settings of transformers' configurations by the keys of GGUF files, which architectures combine."""

from __future__ import annotations

import math
from collections.abc import Mapping

from accord.gguf import positions
from accord.gguf.values import Setting, Values, always, has_tensor, number, whole
from accord.graph.errors import ExportError

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func
WINDOWS, FULL = "sliding_attention", "full_attention"  # transformers' types of layers


def vocabulary(values: Values) -> int:
    rows = int(values.tensors[EMBEDDING].shape[-1])
    if (named := values.whole("vocab_size", rows)) != rows:
        raise ExportError(f'"{values.key("vocab_size")}" is {named}, but its table of tokens has {rows} rows')
    return rows


def head_size(values: Values) -> int:
    return values.whole("attention.key_length", values.whole("embedding_length") // heads(values))


def whole_heads(values: Values) -> int:
    """Returns the size of a head, all of which is rotated."""
    head = head_size(values)
    for name in ("rope.dimension_count", "attention.value_length"):
        if (size := values.whole(name, head)) != head:
            raise ExportError(
                f'"{values.key(name)}" is {size}, but its heads have {head} elements, which engines use all'
            )
    return head


def layer_types(period: int, window: int = 0) -> Setting:
    """Every `period`-th layer has no window, unless the file has a list of the layers that have one. `window`: the
    window of a file that names none."""

    def types(values: Values) -> list[str]:
        layers = values.whole("block_count")
        if not values.whole("attention.sliding_window", window, least=0):
            return [FULL] * layers
        pattern = values.values("attention.sliding_window_pattern", period)
        if not isinstance(pattern, list):
            pattern = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers)]
        return [WINDOWS if has_window else FULL for has_window in pattern[:layers]]

    return types


def scale_of_queries(large: int) -> Setting:
    """The model with `large` layers divides scores by other numbers than the root of the size of a head."""

    def scale(values: Values) -> int:
        if values.whole("block_count") == large:
            return values.whole("embedding_length") // heads(values)
        return head_size(values)

    return scale


def is_mixture(values: Values) -> bool:
    return values.whole("expert_count", 0, least=0) > 0


def uses_windows(values: Values) -> bool:
    return values.whole("attention.sliding_window", 0, least=0) > 0


def is_sigmoid(values: Values) -> bool:
    return values.facts.get(values.key("expert_gating_func"), SOFTMAX) == SIGMOID


def inner_of_experts(values: Values) -> int:
    return values.whole("feed_forward_length") // values.whole("expert_used_count")


def heads(values: Values) -> int:
    return values.whole("attention.head_count")


SIZES: Mapping[str, Setting] = {
    "vocab_size": vocabulary,
    "hidden_size": whole("embedding_length"),
    "intermediate_size": whole("feed_forward_length"),
    "num_hidden_layers": whole("block_count"),
    "num_attention_heads": heads,
    "num_key_value_heads": whole("attention.head_count_kv", heads),
    "head_dim": whole_heads,
    "max_position_embeddings": whole("context_length"),
    "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
    "rope_parameters": positions.rotary,
    "tie_word_embeddings": lambda values: HEAD not in values.tensors,
    "pad_token_id": always(None),
}
BIASES = {"attention_bias": has_tensor("blk.0.attn_output.bias"), "mlp_bias": has_tensor("blk.0.ffn_down.bias")}
CHOICE = {"num_experts_per_tok": whole("expert_used_count")}
EXPERTS = {
    **CHOICE,
    "num_experts": whole("expert_count"),
    "moe_intermediate_size": whole("expert_feed_forward_length", inner_of_experts),
}


def key_length(values: Values) -> int:
    """Returns the size of a key before it is compressed, if the file says it apart from that of a compressed one."""
    return values.whole("attention.key_length_mla", values.whole("attention.key_length"))


def without(settings: Mapping[str, Setting], *names: str) -> dict[str, Setting]:
    return {name: setting for name, setting in settings.items() if name not in names}


def or_else(setting: Setting, otherwise: object) -> Setting:
    """Returns a setting for a number of which 0 stands for another value."""
    return lambda values: setting(values) or (otherwise(values) if callable(otherwise) else otherwise)


GEMMA_2 = {
    **SIZES,
    "layer_types": layer_types(2, 4096),
    "sliding_window": whole("attention.sliding_window", 4096),
    "query_pre_attn_scalar": scale_of_queries(46),
    "rope_parameters": positions.rotary_of_equal_kinds,
    "attn_logit_softcapping": or_else(number("attn_logit_softcapping", 50.0), None),
    "final_logit_softcapping": or_else(number("final_logit_softcapping", 30.0), None),
}
GEMMA_3 = {
    **GEMMA_2,
    "layer_types": layer_types(6),
    "sliding_window": whole("attention.sliding_window", 0, least=0),
    "query_pre_attn_scalar": scale_of_queries(62),
    "rope_parameters": positions.rotary_of_both_kinds(positions.BASE),
    "attn_logit_softcapping": always(None),
    "final_logit_softcapping": or_else(number("final_logit_softcapping", 0.0), None),
}
GRANITE = {
    **SIZES,
    **BIASES,
    "attention_multiplier": or_else(number("attention.scale", 0.0), lambda values: 1 / math.sqrt(head_size(values))),
    "embedding_multiplier": or_else(number("embedding_scale", 0.0), 1.0),
    "residual_multiplier": or_else(number("residual_scale", 0.0), 1.0),
    "logits_scaling": or_else(number("logit_scale"), 1.0),
}
DEEPSEEK = {
    **without(SIZES, "head_dim"),
    **CHOICE,
    "num_key_value_heads": heads,
    "rope_parameters": positions.rotary_of_deepseek,
    "n_routed_experts": whole("expert_count"),
    "n_shared_experts": whole("expert_shared_count"),
    "moe_intermediate_size": whole("expert_feed_forward_length"),
    "first_k_dense_replace": whole("leading_dense_block_count", 0, least=0),
    "routed_scaling_factor": or_else(number("expert_weights_scale", 0.0), 1.0),
    "q_lora_rank": or_else(whole("attention.q_lora_rank", 0, least=0), None),
    "kv_lora_rank": whole("attention.kv_lora_rank"),
    "qk_rope_head_dim": whole("rope.dimension_count"),
    "qk_nope_head_dim": lambda values: key_length(values) - values.whole("rope.dimension_count"),
    "v_head_dim": whole("attention.value_length_mla", whole("attention.value_length")),
}
DEEPSEEK_3 = {
    **DEEPSEEK,
    "norm_topk_prob": lambda values: bool(values.value("expert_weights_norm", False)),
    "n_group": or_else(whole("expert_group_count", 0, least=0), 1),
    "topk_group": or_else(whole("expert_group_used_count", 0, least=0), 1),
    "num_mtp_layers": always(0),
}
