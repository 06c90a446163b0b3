"""The rotary positions of a GGUF file: their scaling, as llama.cpp applies it, and the factors in its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accord.gguf.values import Values
from accord.graph.errors import ExportError

BASE = 10000.0
FACTORS = "rope_freqs.weight"  # Llama 3's divisors of its rotary frequencies
LONGROPE = LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


@dataclass(frozen=True)
class Corrections:
    """Settings of attention that a transformers configuration cannot express."""

    attention_scale: float | None = None  # factor of the scores; None: the configuration's own
    rotary_scale: float = 1.0  # factor of rotated queries and keys, in addition to the configuration's own
    factors: str | None = None  # the tensor of divisors of the rotary frequencies


def rotary(values: Values, log_multiplier: float = 0.0, **more: object) -> dict:
    """Returns transformers' rope_parameters. A factor without a type is linear, and so is the factor under its old
    name. `log_multiplier`: YaRN multiplies rotated queries and keys by m(1) / m(log_multiplier), where m(x) is
    1 + 0.1 x log(factor). `more`: additional parameters of YaRN."""
    kind = values.value("rope.scaling.type", "linear")
    factor = values.number("rope.scaling.factor", 0.0) or values.number("rope.scale_linear", 0.0) or 1.0
    beyond, of_yarn = (values.number(f"rope.scaling.yarn_{name}_factor", 1.0) for name in ("ext", "attn"))
    fast, slow = values.number("rope.scaling.yarn_beta_fast", 32.0), values.number("rope.scaling.yarn_beta_slow", 1.0)
    theta = {"rope_theta": values.number("rope.freq_base", BASE)}
    original = original_context(values)
    if kind == "yarn":
        if beyond != 1.0:
            raise ExportError(f'"{values.key("rope.scaling.yarn_ext_factor")}" is {beyond:g}; known is 1')
        return {
            "rope_type": "yarn",
            **theta,
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": of_yarn * magnitude(factor, 1.0) / magnitude(factor, log_multiplier),
            "beta_fast": fast,
            "beta_slow": slow,
            **more,
        }
    if kind not in ("none", "linear", "longrope"):
        raise ExportError(f'its positions are scaled by "{kind}"; known are "none", "linear", "yarn" and "longrope"')
    for name, value in (("ext", beyond), ("attn", of_yarn)):
        if value not in (0.0, 1.0):
            raise ExportError(
                f'"{values.key(f"rope.scaling.yarn_{name}_factor")}" is {value:g}, but '
                f'"{values.key("rope.scaling.type")}" is "{kind}"'
            )
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default", **theta}
    return {"rope_type": "linear", **theta, "factor": factor}


def magnitude(factor: float, multiplier: float) -> float:
    return 1.0 + 0.1 * multiplier * math.log(max(factor, 1.0))


def original_context(values: Values) -> int:
    """Returns the length of context for which the model was trained before its positions were scaled."""
    return values.whole("rope.scaling.original_context_length", 0, least=0) or values.whole("context_length")


def rotary_of_a_part(values: Values) -> dict:
    """Phi 3 may rotate only the first elements of a head."""
    head = values.whole("embedding_length") // values.whole("attention.head_count")
    return rotary(values) | {"partial_rotary_factor": values.whole("rope.dimension_count", head) / head}


def rotary_of_both_kinds(base_of_windows: float | None = None):
    """Layers with windows have positions of their own, without scaling. `base_of_windows`: None is the other layers'
    base."""

    def parameters(values: Values) -> dict:
        full = rotary(values)
        base = values.number("rope.freq_base_swa", base_of_windows or full["rope_theta"])
        return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": base}}

    return parameters


def rotary_of_equal_kinds(values: Values, **more: object) -> dict:
    """Layers with windows have the same positions as the others; a key that says otherwise is an error."""
    parameters = rotary(values, **more)
    if (base := values.number("rope.freq_base_swa", parameters["rope_theta"])) != parameters["rope_theta"]:
        raise ExportError(
            f'"{values.key("rope.freq_base_swa")}" is {base:g}, but "{values.key("rope.freq_base")}" is '
            f"{parameters['rope_theta']:g}; transformers has one base for all layers of this architecture"
        )
    return parameters


def rotary_of_gpt_oss(values: Values) -> dict:
    """Its YaRN does not round the numbers of the pairs between which it changes from one frequency to the other."""
    return rotary_of_equal_kinds(values, truncate=False)


def rotary_of_ministral(values: Values) -> dict:
    """Queries beyond the original context may have a temperature."""
    return rotary(values, values.number("rope.scaling.yarn_log_multiplier", 0.0)) | {
        "llama_4_scaling_beta": values.number("attention.temperature_scale", 0.0),
        "original_max_position_embeddings": original_context(values),
    }


def rotary_of_deepseek(values: Values) -> dict:
    """YaRN changes the scale of scores (corrections_of_deepseek) instead of rotated queries and keys."""
    return rotary(values, 1.0 if values.number("rope.scaling.yarn_log_multiplier", 0.0) else 0.0)


def corrections(values: Values) -> Corrections:
    return Corrections(rotary_scale=values.number("rope.scaling.attn_factor", 1.0))


def corrections_with_factors(values: Values) -> Corrections:
    return Corrections(rotary_scale=corrections(values).rotary_scale, factors=_factors(values))


def corrections_of_llama(values: Values) -> Corrections:
    scale = values.number("attention.scale", 0.0) or None
    return Corrections(scale, corrections(values).rotary_scale, _factors(values))


def corrections_of_phi(values: Values) -> Corrections:
    factors = _longrope(values) if LONG_FACTORS in values.tensors else None
    return Corrections(rotary_scale=corrections(values).rotary_scale, factors=factors)


def corrections_of_deepseek(values: Values) -> Corrections:
    """The key of the multiplier contains a tenth of it."""
    multiplier = values.number("rope.scaling.yarn_log_multiplier", 0.0) / 0.1
    scale = None
    if multiplier and (parameters := rotary(values))["rope_type"] == "yarn":
        head = values.whole("attention.key_length_mla", values.whole("attention.key_length"))
        scale = magnitude(parameters["factor"], multiplier) ** 2 / math.sqrt(head)
    return Corrections(scale, corrections(values).rotary_scale)


def no_corrections(values: Values) -> Corrections:
    return Corrections()


def _factors(values: Values) -> str | None:
    if values.value("rope.scaling.type", "linear") == "longrope":
        return _longrope(values)
    return FACTORS if FACTORS in values.tensors else None


def _longrope(values: Values) -> str:
    """Engines have the whole context, for which llama.cpp also chooses the factors."""
    return LONG_FACTORS if values.whole("context_length") > original_context(values) else SHORT_FACTORS
