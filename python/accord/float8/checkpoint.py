"""Exports a Hugging Face checkpoint whose weights are 8-bit floats to an engine package with the same bytes.

Vendors publish such checkpoints as safetensors files: a linear layer, or each expert's, has a `weight` of
float8_e4m3fn and beside it `weight_scale` (fbgemm_fp8, compressed-tensors, modelopt) or `weight_scale_inv` (fp8), by
which an element is multiplied: one number for the whole weight, one for each output, or one for each block.
transformers itself loads them only on GPUs, or converts them to 16-bit floats. Here a transformers model is created
from the numbers, for export() to trace, and the elements and the scales are copied into the package unchanged.

Scales of inputs (`input_scale`, `activation_scale`, `input_scale_ub`) and of caches (`k_scale`, `v_scale`) are
ignored: if an engine rounds them, it uses a scale per row.
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

from accord.exporter.export import export
from accord.float8.config import block_of
from accord.float8.layers import SCALES, codes_of, take_experts
from accord.graph.errors import ExportError
from accord.graph.explanations import told_of
from accord.graph.latent_heads import latent_heads
from accord.graph.modules import taken_apart
from accord.graph.traced import check_arguments
from accord.package.float8_codes import Float8Codes, Float8Experts
from accord.package.progress import Progress
from accord.package.sharding import Column, Expert, Row
from accord.package.weight_names import by_package_names
from accord.package.weights import Format

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
    """Exports the language model in `folder`, whose weights are 8-bit floats, to the engine package `path`
    (NAME.accord) and returns its path.

    `folder` is a transformers checkpoint: safetensors files, and a config.json whose `quantization_config` has the
    method "fp8", "fbgemm_fp8", "compressed-tensors" or "modelopt" (hf_quant_config.json may also specify the latter).
    Weights of linear layers and experts are float8_e4m3fn with one scale, with one for each output, or with one for
    each block. Its tokenizer.json and chat template, if any, are packaged as well.
    `dtype`: of the engine's computation, and of weights that are not 8-bit floats: "float32", "bfloat16" or
    "float16"; by default the dtype in config.json.
    `weights`: "same" keeps the 8-bit floats and their scales, bit by bit. None converts all weights to `dtype`. Other
    values of export()'s `weights` apply to the numbers that the checkpoint stands for.
    `sharding`, `check`, `progress`: same as for export().

    Cost: the memory of the model in `dtype`, plus that of the 8-bit floats.
    In the package, scales of blocks become scales of groups of inputs: 128 inputs of an output share one, or fewer if
    the inputs are divided among ranks in units that do not end at block boundaries. If the units are not multiples of
    16, such a weight is converted to `dtype`; so is the kv_b_proj of latent attention, which has a matrix per head.
    Raises ExportError, which names the problem: a scale that is missing, has another shape or is not a number,
    experts that lack some of their weights, a tensor that the model lacks or does not know, or an unknown method.
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
    """Returns the model, and the 8-bit floats of each layer by name."""
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
    """Returns transformers' configuration, without the quantization."""
    if not (folder / "config.json").is_file():
        raise ExportError("there is no config.json, so this is not a checkpoint of transformers")
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


def _read(folder: Path) -> dict[str, torch.Tensor]:
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


def _with_weights(folder: Path, config, numbers: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.nn.Module:
    """Returns the model with these weights, loaded by transformers, which knows their older names."""
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
    """Returns the codes under the layer names that export() uses after it has split fused layers, without those of
    layers whose weights it transposes."""
    with taken_apart(model), latent_heads(model):
        shapes = {name: tensor.shape for name, tensor in model.named_parameters()}
    linears, layers = take_experts(codes)
    linears = {name: one for name, one in linears.items() if name.replace("_proj.", "_proj.key.") not in shapes}
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
