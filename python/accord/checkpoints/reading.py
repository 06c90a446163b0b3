"""Reads the folder of a transformers checkpoint, and creates the model of the numbers that its tensors stand for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from accord.graph.errors import ExportError
from accord.package.weight_names import TRANSPOSED

DTYPES = ("float32", "bfloat16", "float16")
MODELOPT = "hf_quant_config.json"  # modelopt may specify here what is missing from config.json


def read_config(folder: Path):
    """Returns transformers' configuration."""
    if not (folder / "config.json").is_file():
        raise ExportError("there is no config.json, so this is not a checkpoint of transformers")
    try:
        return transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"config.json: {error}") from error


def take_quantization(folder: Path, config) -> dict:
    """Returns what the checkpoint says about its quantization. Removes it from the configuration, so that transformers
    creates a plain model."""
    quantization = getattr(config, "quantization_config", None) or _modelopt(folder)
    if not isinstance(quantization, dict):
        raise ExportError(
            "its config.json tells of no quantization: load it by transformers, and give the model to accord.export()"
        )
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return quantization


def _modelopt(folder: Path) -> dict | None:
    file = folder / MODELOPT
    if not file.is_file():
        return None
    try:
        told = json.loads(file.read_text())
        return {"quant_method": str(told["producer"]["name"])} | told["quantization"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ExportError(f"{MODELOPT}: {error!r}") from error


def known(what: str, given, names: Iterable) -> Any:
    """Returns `given`, or raises ExportError if it is none of the known names."""
    if given not in names:
        words = [str(name) for name in names]
        near = difflib.get_close_matches(str(given), words, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; known are {', '.join(words)}"
        raise ExportError(f'{what} "{given}"{hint}')
    return given


def computed_dtype(config, given: str | None) -> torch.dtype:
    """Returns the dtype that an engine computes in: `given`, or else that of the configuration."""
    stated = str(getattr(config.get_text_config(), "dtype", None) or torch.bfloat16).removeprefix("torch.")
    name = stated if given is None else given
    if name not in DTYPES:
        near = difflib.get_close_matches(str(name), DTYPES, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else f": use one of {', '.join(DTYPES)}"
        raise ExportError(f'engines compute in no dtype "{name}"{hint}')
    return getattr(torch, name)


def _files(folder: Path) -> list[Path]:
    """Returns the files named in the index, or else the one that transformers reads, or else all files."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted({Path(name).name for name in json.loads(index.read_text())["weight_map"].values()})
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ExportError(f"{index.name}: {error}") from error
        return [folder / name for name in names]
    one = folder / "model.safetensors"
    files = [one] if one.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise ExportError("there are no safetensors files")
    return files


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of all files by name."""
    tensors: dict[str, torch.Tensor] = {}
    for file in _files(folder):
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dictionary
                    if name in tensors:
                        raise ExportError(f'{file.name}: "{name}" is in another file, too')
                    tensors[name] = opened.get_tensor(name)
        except (OSError, ValueError, RuntimeError) as error:
            raise ExportError(f"{file.name}: {error}") from error
        except Exception as error:  # safetensors' error derives directly from Exception
            if type(error).__name__ != "SafetensorError":
                raise
            raise ExportError(f"{file.name}: {error}") from error
    return tensors


def plain_numbers(tensors: Mapping[str, torch.Tensor], beside: str) -> dict[str, torch.Tensor]:
    """Returns the tensors, which must be floats of at least 16 bits. `beside`: the kind of the quantized ones."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ExportError(f'tensor "{name}" is {tensor.dtype}; known beside {beside} are wider floats')
    return dict(tensors)


def model_with_weights(
    folder: Path,
    config,
    numbers: Mapping[str, torch.Tensor],
    dequantized: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
) -> torch.nn.Module:
    """Returns the model with these weights, loaded by transformers, which knows their older names. `dequantized`:
    matrices [out, in]."""
    with torch.device("meta"):
        try:
            empty = transformers.AutoModelForCausalLM.from_config(config)
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(f"config.json: {error}") from error
    if any(type(module).__name__ == "Conv1D" for module in empty.modules()):  # GPT-2's weights are [in, out]
        dequantized = {name: one.t() if TRANSPOSED.fullmatch(name) else one for name, one in dequantized.items()}
    model, report = type(empty).from_pretrained(
        None,
        config=config,
        state_dict={**numbers, **dequantized},
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    for what, names in (
        ("lacks", report["missing_keys"]),
        ("has, which its model does not know,", report["unexpected_keys"]),
    ):
        if names:
            raise ExportError(f'it {what} "{sorted(names)[0]}"')
    if wrong := report["mismatched_keys"]:
        raise ExportError(f'its "{sorted(wrong)[0][0]}" is of another shape than the model says')
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model.eval()
