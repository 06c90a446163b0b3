"""Interprets the keys of a GGUF file: each key is applied, known to have no effect, or rejected by name.

The meaning of each key is the one that llama.cpp gives it when it loads the architecture "llama". A key of that
architecture that is not in these tables is also rejected: otherwise a feature of the model would be silently ignored.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import transformers

from accord.graph.errors import ExportError

ARCHITECTURE = "llama"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
STOPS = ("eos", "eot", "eom")  # end of text, of turn, of message
# Keys that determine the model's configuration.
APPLIED = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
# Keys that do not affect results.
HARMLESS = {"rope.scaling.finetuned", "attention.layer_norm_epsilon"}
# Keys of features that engines do not have, with the values that turn the feature off.
NEUTRAL = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.sliding_window_pattern": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_group_count": (0,),
    "expert_group_used_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_gating_func": (0,),
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
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": (0,),
    "swin_norm": (False,),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    "token_shift_count": (0,),
    "use_parallel_residual": (False,),
}
GENERAL_TYPE = "model"  # other types are adapters, image projectors, and measurements for quantization


@dataclass(frozen=True)
class Keys:
    """The meaning of the keys: a transformers configuration, and settings that it cannot express."""

    config: transformers.LlamaConfig
    attention_scale: float | None  # factor of the scores; None: 1 / sqrt(head size)
    rotary_scale: float  # factor of rotated queries and keys, in addition to the configuration's own


def read_keys(facts: Mapping, tensors: Mapping) -> Keys:
    """Reads the keys. `facts`: key -> value; `tensors`: name -> tensor, whose `shape` has the first dimension last."""
    architecture = facts["general.architecture"]
    if architecture != ARCHITECTURE:
        raise ExportError(f'its architecture is "{architecture}"; known is "{ARCHITECTURE}"')
    if (kind := facts.get("general.type", GENERAL_TYPE)) != GENERAL_TYPE:
        raise ExportError(f'it is of the type "{kind}", no model')
    _check_known(facts)
    take = _Values(facts)
    vocabulary = int(tensors[EMBEDDING].shape[-1])
    if (named := take.whole("vocab_size", vocabulary)) != vocabulary:
        raise ExportError(f'"{ARCHITECTURE}.vocab_size" is {named}, but its table of tokens has {vocabulary} rows')
    hidden, context = take.whole("embedding_length"), take.whole("context_length")
    heads = take.whole("attention.head_count")
    head = take.whole("attention.key_length", hidden // heads)
    for name in ("rope.dimension_count", "attention.value_length"):
        if (size := take.whole(name, head)) != head:
            raise ExportError(
                f'"{ARCHITECTURE}.{name}" is {size}, but its heads have {head} elements, which engines use all'
            )
    window = take.whole("attention.sliding_window", 0, least=0)
    if 0 < window < context:
        raise ExportError(
            f'"{ARCHITECTURE}.attention.sliding_window" is {window}: llama.cpp does not apply it to this architecture, so '
            "what is meant is not known; export the model with accord.export, or remove the key"
        )
    stops = [facts[f"tokenizer.ggml.{kind}_token_id"] for kind in STOPS if f"tokenizer.ggml.{kind}_token_id" in facts]
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=take.whole("feed_forward_length"),
        num_hidden_layers=take.whole("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=take.whole("attention.head_count_kv", heads),
        head_dim=head,
        vocab_size=vocabulary,
        max_position_embeddings=context,
        rms_norm_eps=take.number("attention.layer_norm_rms_epsilon"),
        rope_parameters={**_rotary(take, context), "rope_theta": take.number("rope.freq_base", 10000.0)},
        tie_word_embeddings=HEAD not in tensors,
        bos_token_id=facts.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=sorted(set(stops)) or None,
    )
    return Keys(config, take.number("attention.scale", 0.0) or None, take.number("rope.scaling.attn_factor", 1.0))


def _check_known(facts: Mapping) -> None:
    for key, value in facts.items():
        name = key.removeprefix(f"{ARCHITECTURE}.")
        if name == key or name in APPLIED or name in HARMLESS:
            continue
        if name not in NEUTRAL:
            near = difflib.get_close_matches(name, [*APPLIED, *NEUTRAL, *HARMLESS], n=1, cutoff=0.8)
            hint = f'; the nearest known one is "{ARCHITECTURE}.{near[0]}"' if near else ""
            raise ExportError(f'its key "{key}" ({_short(value)}) is not known{hint}')
        if value not in NEUTRAL[name] and value != [NEUTRAL[name][0]] * (len(value) if isinstance(value, list) else 0):
            what = "it is a mixture of experts: " if name.startswith("expert") else ""
            raise ExportError(f'{what}"{key}" is {_short(value)}, which an engine of this architecture cannot do')


def _rotary(take: _Values, context: int) -> dict:
    """Returns the scaling of positions. A factor without a type is linear, and so is the factor under its old name."""
    kind = take.facts.get(f"{ARCHITECTURE}.rope.scaling.type", "linear")
    factor = take.number("rope.scaling.factor", 0.0) or take.number("rope.scale_linear", 0.0) or 1.0
    beyond, of_yarn = (take.number(f"rope.scaling.yarn_{name}_factor", 1.0) for name in ("ext", "attn"))
    if kind == "yarn":
        if beyond != 1.0:
            raise ExportError(f'"{ARCHITECTURE}.rope.scaling.yarn_ext_factor" is {beyond:g}; known is 1')
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": take.whole("rope.scaling.original_context_length", 0, least=0)
            or context,
            "attention_factor": of_yarn * (1.0 + 0.1 * math.log(max(factor, 1.0))),
            "beta_fast": take.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": take.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    if kind not in ("none", "linear"):
        raise ExportError(f'its positions are scaled by "{kind}"; known are "none", "linear" and "yarn"')
    for name, value in (("ext", beyond), ("attn", of_yarn)):
        if value not in (0.0, 1.0):
            raise ExportError(
                f'"{ARCHITECTURE}.rope.scaling.yarn_{name}_factor" is {value:g}, but '
                f'"{ARCHITECTURE}.rope.scaling.type" is "{kind}"'
            )
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default"}
    return {"rope_type": "linear", "factor": factor}


@dataclass(frozen=True)
class _Values:
    facts: Mapping

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
            raise ExportError(f'"{ARCHITECTURE}.{name}" is {_short(value)}, no whole number from {least} up')
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise ExportError(f'"{ARCHITECTURE}.{name}" is {_short(value)}, no number from 0 up')
        return float(value)

    def _value(self, name: str, default):
        """Returns a value. A list contains one value per layer, which must all be equal."""
        key = f"{ARCHITECTURE}.{name}"
        value = self.facts[key] if default is None else self.facts.get(key, default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ExportError(
                    f'"{key}" differs by layer ({_short(value)}); engines of this architecture have equal layers'
                )
            return value[0]
        return value


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
