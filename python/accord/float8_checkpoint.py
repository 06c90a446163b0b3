"""From a checkpoint of Hugging Face whose weights are 8-bit floats to an engine package that has the same bytes.

Vendors publish such checkpoints as safetensors files: a linear layer, or one of each expert, has a `weight` of float8_e4m3fn and beside it
`weight_scale` (fbgemm_fp8, compressed-tensors, modelopt) or `weight_scale_inv` (fp8), with which an element is multiplied: one number for the
whole weight, one for each output, or one for each block. transformers itself reads them on GPUs alone, or makes 16-bit floats of them. Here a
model of transformers is made of the numbers, as export() traces it, and the elements and the scales go into the package as they are.

What is said of inputs (`input_scale`, `activation_scale`, `input_scale_ub`) and of caches (`k_scale`, `v_scale`) is left out: engines round them, where they
do, by scales of each row.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from safetensors import safe_open

from accord.engine_weight_names import by_package_names
from accord.export_errors import told_of
from accord.export_modules import taken_apart
from accord.export_sharding import Column, Expert, ExportError, Row
from accord.export_traced import check_arguments
from accord.export_weights import Format
from accord.exporter import export
from accord.float8_codes import Float8Codes, Float8Experts
from accord.float8_config import block_of
from accord.float8_layers import SCALES, codes_of, take_experts
from accord.package import Progress

LEFT_OUT = re.compile(r".*\.(input_scale|activation_scale|input_scale_ub|[qkv]_scale)")
DTYPES = ("float32", "bfloat16", "float16")


def export_checkpoint(
    folder: str | os.PathLike,
    *,
    path: str | os.PathLike,
    dtype: str | None = None,
    weights: str | Mapping[str, str | Format] | None = "same",
    sharding: Mapping[str, Column | Row | Expert | str] | str | None = "auto",
    check: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Exports the language model whose weights are 8-bit floats in `folder` to the engine package `path` (NAME.accord) and gives its path.

    `folder` is a checkpoint of transformers: config.json, whose `quantization_config` has the method "fp8", "fbgemm_fp8",
    "compressed-tensors" or "modelopt" (which hf_quant_config.json may tell as well), and safetensors files. Weights of linear layers and of
    experts are float8_e4m3fn with one scale, with one for each output, or with one for each block. Its tokenizer.json and chat template,
    where there are such, go with the package.
    `dtype`: of what the engine computes, and of weights that are no 8-bit floats: "float32", "bfloat16" or "float16"; by default that of
    config.json.
    `weights`: "same" keeps the 8-bit floats and their scales, bit by bit; None makes `dtype` of all; what else export() takes is made of the
    numbers that the checkpoint stands for.
    `sharding`, `check`, `progress`: as for export().

    Cost: the memory of the model in `dtype`, and of the 8-bit floats beside that.
    Scales of blocks are those of groups of inputs in the package: 128 inputs of an output share one, or fewer where the inputs are divided among
    ranks in units that do not end with blocks; where units are of no multiple of 16, such a weight becomes `dtype`.
    Raises ExportError, which names what is wrong: a scale that is missing, of another shape or no number, experts that lack some of their
    weights, a tensor that the model lacks or does not know, a method that is unknown.
    """
    check_arguments(folder=folder, path=path, progress=progress)
    folder = Path(folder)
    with told_of(folder):
        model, codes = _model(folder, dtype)
        tokenizer = folder if (folder / "tokenizer.json").is_file() else None
        weights = codes if weights == "same" else weights
        return export(
            model, path=path, sharding=sharding, tokenizer=tokenizer, weights=weights, check=check, progress=progress
        )


def _model(folder: Path, dtype: str | None) -> tuple[torch.nn.Module, dict[str, Float8Codes | Float8Experts]]:
    """The model, and the 8-bit floats of each layer by its name."""
    config = _config(folder)
    block = block_of(folder, config)
    wide = _dtype(config, dtype)
    tensors = _read(folder)
    codes = {
        name: codes_of(name, tensors, block) for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn
    }
    scales = {f"{name.removesuffix('.weight')}.{one}" for name in codes for one in SCALES}
    numbers = {}
    for name, tensor in tensors.items():
        if name in codes:
            numbers[name] = codes[name].numbers().to(wide)
        elif name.endswith(SCALES):
            if name not in scales:
                raise ExportError(f'"{name}" has no weight of 8-bit floats beside it')
        elif not LEFT_OUT.fullmatch(name):
            if not tensor.is_floating_point() or tensor.element_size() < 2:
                raise ExportError(f'tensor "{name}" is {tensor.dtype}; known beside float8_e4m3fn are wider floats')
            numbers[name] = tensor
    model = _with_weights(folder, config, numbers, wide)
    return model, _by_layers(model, codes)


def _config(folder: Path):
    """transformers' configuration, without the quantization."""
    if not (folder / "config.json").is_file():
        raise ExportError("there is no config.json: no checkpoint of transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"config.json: {error}") from error
    return config


def _dtype(config, given: str | None) -> torch.dtype:
    stated = str(getattr(config.get_text_config(), "dtype", None) or torch.bfloat16).removeprefix("torch.")
    name = stated if given is None else given
    if name not in DTYPES:
        near = difflib.get_close_matches(str(name), DTYPES, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else f": use one of {', '.join(DTYPES)}"
        raise ExportError(f'engines compute in no dtype "{name}"{hint}')
    return getattr(torch, name)


def _files(folder: Path) -> list[Path]:
    """Those of the index, else the one that transformers reads, else all."""
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


def _read(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in _files(folder):
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                    if name in tensors:
                        raise ExportError(f'{file.name}: "{name}" is in another file, too')
                    tensors[name] = opened.get_tensor(name)
        except (OSError, ValueError, RuntimeError) as error:
            raise ExportError(f"{file.name}: {error}") from error
        except Exception as error:  # safetensors' own kind of error derives from no other
            if type(error).__name__ != "SafetensorError":
                raise
            raise ExportError(f"{file.name}: {error}") from error
    return tensors


def _with_weights(folder: Path, config, numbers: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.nn.Module:
    """The model with these weights, by transformers, which knows their older names."""
    with torch.device("meta"):
        try:
            kind = type(transformers.AutoModelForCausalLM.from_config(config))
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(f"config.json: {error}") from error
    model, report = kind.from_pretrained(
        None,
        config=config,
        state_dict=dict(numbers),
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


def _by_layers(model: torch.nn.Module, codes: Mapping[str, Float8Codes]) -> dict[str, Float8Codes | Float8Experts]:
    """By the names of layers as export() has them, which takes fused ones apart."""
    with taken_apart(model):
        shapes = {name: tensor.shape for name, tensor in model.named_parameters()}
    linears, layers = take_experts(codes)
    found = {f"{layer}.{part}": one for layer, experts in layers.items() for part, one in experts.matrices.items()}
    for group in {one.group for one in linears.values()}:
        some = {name: one for name, one in linears.items() if one.group == group}
        elements = by_package_names({name: torch.from_numpy(one.codes) for name, one in some.items()}, shapes)
        scales = by_package_names({name: torch.from_numpy(one.scales) for name, one in some.items()}, shapes)
        parts = {
            name: Float8Codes(one.contiguous().numpy(), scales[name].contiguous().numpy(), group)
            for name, one in elements.items()
        }
        found |= parts
        layers |= {name.removesuffix(".weight"): one for name, one in parts.items()}
    for name, one in found.items():
        if name not in shapes:
            raise ExportError(f'"{name}" of 8-bit floats has another name in the model, and cannot stay as it is')
        if one.codes.shape != shapes[name]:
            raise ExportError(f'"{name}" of 8-bit floats is {list(one.codes.shape)}, in the model {list(shapes[name])}')
    return layers
