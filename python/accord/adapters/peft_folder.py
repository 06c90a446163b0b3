"""Reads an adapter (LoRA) as the library PEFT saves it: a folder with adapter_config.json and
adapter_model.safetensors. The sources are PEFT's LoraConfig and its names of tensors.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from accord.graph.errors import ExportError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PLAIN_STARTS = ("gaussian", "eva", "orthogonal")  # of training, which leave the model's weights as they are
# Tensors of variants that are more than a product of two matrices.
_VARIANTS = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_A": "an adapted embedding",
    "lora_embedding_B": "an adapted embedding",
    "lora_bias": "a bias of its own",
}


@dataclass(frozen=True)
class LayerAdapter:
    """The change of a linear layer: up @ down @ x is added to its output for input x."""

    down: torch.Tensor  # [rank, in]
    up: torch.Tensor  # [out, rank], float32; the adapter's scale is part of it


def read_adapter(folder: str | Path) -> dict[str, LayerAdapter]:
    """Returns the adapter's layers by the module paths of the base model. Raises ExportError, which names the file, the
    setting or the tensor, for anything but plain LoRA, and for what is damaged or missing."""
    folder = Path(folder)
    settings = _read_settings(folder / _CONFIG)
    try:
        tensors = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{folder / _WEIGHTS}: {error}") from error
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        module, side = _place_of(folder, name)
        if tensor.dim() != 2 or not tensor.is_floating_point():
            raise ExportError(
                f'{folder}: "{name}" is {tensor.dtype} {list(tensor.shape)}, which is no matrix of numbers'
            )
        if not tensor.isfinite().all():
            raise ExportError(f'{folder}: "{name}" has numbers that are not finite')
        pairs.setdefault(module, {})[side] = tensor
    if not pairs:
        raise ExportError(f"{folder / _WEIGHTS} has no tensors")
    return {module: _layer(folder, module, pair, settings) for module, pair in pairs.items()}


def _read_settings(file: Path) -> dict:
    try:
        settings = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ExportError(f"{file}: {error}") from error
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else settings
        raise ExportError(f"{file}: peft_type is {kind!r}; engines run adapters of the type LORA")
    refused = {
        "use_dora": "DoRA",
        "lora_bias": "adapters with a bias of their own",
        "modules_to_save": "layers that are replaced as a whole",
        "trainable_token_indices": "trained embeddings of tokens",
        "layer_replication": "layers that are repeated",
        "target_parameters": "adapted parameters that are not weights of linear layers",
        "alora_invocation_tokens": "adapters that begin at certain tokens",
    }
    for name, kind in refused.items():
        if settings.get(name):
            raise ExportError(f"{file}: {name} is {settings[name]!r}; engines do not run {kind}")
    start = settings.get("init_lora_weights", True)
    if isinstance(start, str) and start not in _PLAIN_STARTS:
        raise ExportError(
            f"{file}: init_lora_weights is {start!r}, with which training changes the model's own weights, too; save the "
            "adapter with path_initial_model_for_weight_conversion"
        )
    if settings.get("bias", "none") != "none":
        raise ExportError(f"{file}: bias is {settings['bias']!r}; engines do not run adapters that change biases")
    return settings


def _place_of(folder: Path, name: str) -> tuple[str, str]:
    """Returns the module that a tensor belongs to, and "lora_A" or "lora_B"."""
    for part, kind in _VARIANTS.items():
        if part in name.split("."):
            raise ExportError(f'{folder}: "{name}" is of {kind}; engines run plain LoRA')
    if name.endswith((".base_layer.weight", "embed_tokens.weight", "lm_head.weight")):
        raise ExportError(
            f'{folder}: "{name}" replaces a weight of the model, which its package has already; save the adapter with '
            "save_embedding_layers=False"
        )
    match = re.fullmatch(r"(.+)\.(lora_[AB])(?:\.[^.]+)?\.weight", name.removeprefix(_PREFIX))
    if match is None:
        raise ExportError(f'{folder}: "{name}" is no matrix of an adapter (lora_A or lora_B)')
    return match[1], match[2]


def _layer(folder: Path, module: str, pair: dict[str, torch.Tensor], settings: dict) -> LayerAdapter:
    down, up = pair.get("lora_A"), pair.get("lora_B")
    if down is None or up is None:
        raise ExportError(f'{folder}: "{module}" has only one of lora_A and lora_B')
    rank = len(down)
    if up.shape[1] != rank:
        raise ExportError(
            f'{folder}: lora_A and lora_B of "{module}" are {list(down.shape)} and {list(up.shape)}, which do not fit'
        )
    alpha = _setting_of(module, settings.get("alpha_pattern") or {}, settings.get("lora_alpha", 8))
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ExportError(f"{folder / _CONFIG}: lora_alpha is {alpha!r}; expected a number")
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    return LayerAdapter(down.float(), up.float() * scale)


def _setting_of(module: str, patterns: dict, default: object) -> object:
    """Returns the value of the first pattern that the end of the module's path matches, as in PEFT."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error as error:
            raise ExportError(f"alpha_pattern: {pattern!r} is no regular expression: {error}") from error
    return default
