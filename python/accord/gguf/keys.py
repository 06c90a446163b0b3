"""Interprets the keys of a GGUF file: each key is applied, known to have no effect, or rejected by name.

A key of the file's architecture is applied if one of the settings of that Architecture reads it. A key that none reads
and that is not known to have no effect is rejected: otherwise a feature of the model would be silently ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

import transformers

from accord.gguf.architectures import ARCHITECTURES, HARMLESS, NEUTRAL, Architecture
from accord.gguf.positions import Corrections
from accord.gguf.values import Values, short
from accord.graph.errors import ExportError

STOPS = ("eos", "eot", "eom")  # end of text, of turn, of message
GENERAL_TYPE = "model"  # other types are adapters, image projectors, and measurements for quantization


@dataclass(frozen=True)
class Keys:
    """The meaning of the keys."""

    architecture: Architecture
    config: transformers.PreTrainedConfig
    corrections: Corrections


def read_keys(facts: Mapping, tensors: Mapping) -> Keys:
    """Reads the keys. `facts`: key -> value; `tensors`: name -> tensor, whose `shape` has the first dimension last."""
    values = Values(facts, tensors)
    if (kind := facts.get("general.type", GENERAL_TYPE)) != GENERAL_TYPE:
        raise ExportError(f'it is of the type "{kind}", no model')
    architecture = _architecture(values)
    settings = {name: setting(values) for name, setting in architecture.settings.items()}
    corrections = architecture.corrections(values)
    if "attention.sliding_window" not in values.read:
        _check_without_window(values)
    _check_known(values, architecture)
    stops = [facts[f"tokenizer.ggml.{kind}_token_id"] for kind in STOPS if f"tokenizer.ggml.{kind}_token_id" in facts]
    ids = {"bos_token_id": facts.get("tokenizer.ggml.bos_token_id"), "eos_token_id": sorted(set(stops)) or None}
    try:
        config = transformers.CONFIG_MAPPING[architecture.model](**settings, **ids)
    except (ValueError, TypeError) as error:
        raise ExportError(f'its keys make no configuration of "{architecture.model}": {error}') from error
    return Keys(architecture, config, corrections)


def _architecture(values: Values) -> Architecture:
    name = values.architecture
    for architecture in ARCHITECTURES:
        if architecture.name == name and architecture.applies(values):
            return architecture
    known = ", ".join(dict.fromkeys(f'"{architecture.name}"' for architecture in ARCHITECTURES))
    raise ExportError(f'its architecture is "{name}"; known are {known}')


def _check_without_window(values: Values) -> None:
    window = values.whole("attention.sliding_window", 0, least=0)
    if 0 < window < values.whole("context_length"):
        raise ExportError(
            f'"{values.key("attention.sliding_window")}" is {window}: llama.cpp does not apply it to this architecture, so '
            "what is meant is not known; export the model with accord.export, or remove the key"
        )


def _check_known(values: Values, architecture: Architecture) -> None:
    harmless, neutral = HARMLESS | architecture.harmless, {**NEUTRAL, **architecture.neutral}
    for key, value in values.facts.items():
        name = key.removeprefix(f"{architecture.name}.")
        if name == key or name in values.read or (name in harmless and name not in architecture.neutral):
            continue
        if name not in neutral:
            near = difflib.get_close_matches(name, [*values.read, *neutral, *harmless], n=1, cutoff=0.8)
            hint = f'; the nearest known one is "{architecture.name}.{near[0]}"' if near else ""
            raise ExportError(f'its key "{key}" ({short(value)}) is not known{hint}')
        usual = neutral[name]
        if value not in usual and value != [usual[0]] * (len(value) if isinstance(value, list) else 0):
            raise ExportError(f'"{key}" is {short(value)}, which an engine of this architecture cannot do')
