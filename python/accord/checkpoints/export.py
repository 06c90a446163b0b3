"""Exports a Hugging Face checkpoint whose weights are quantized to an engine package with the same codes and scales.

transformers itself loads most of these only with packages and devices that the method needs, or converts them to
16-bit floats. Here a plain transformers model is created from the numbers that the codes stand for, for export() to
trace, and the codes and scales are copied into the package. A method is a function that returns the codes of the
weights and the tensors that are not quantized.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from accord.checkpoints.bitsandbytes import read_bitsandbytes
from accord.checkpoints.compressed import read_compressed
from accord.checkpoints.float8_layers import read_float8
from accord.checkpoints.layers import by_layers, dequantized
from accord.checkpoints.mxfp4 import read_mxfp4
from accord.checkpoints.packed_integers import read_awq, read_gptq
from accord.checkpoints.reading import (
    computed_dtype,
    known,
    model_with_weights,
    read_config,
    read_tensors,
    take_quantization,
)
from accord.exporter.export import export
from accord.graph.explanations import told_of
from accord.graph.traced import check_arguments
from accord.package.formats import Format
from accord.package.progress import Progress
from accord.package.sharding import Column, Expert, Row

# By `quant_method`.
READERS = {
    "fp8": read_float8,
    "fbgemm_fp8": read_float8,
    "modelopt": read_float8,
    "compressed-tensors": read_compressed,
    "gptq": read_gptq,
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "mxfp4": read_mxfp4,
}


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
    """Exports the language model in `folder`, whose weights are quantized, to the engine package `path`
    (NAME.accord) and returns its path.

    `folder` is a transformers checkpoint: safetensors files, and a config.json whose `quantization_config` has the
    method "gptq", "awq", "compressed-tensors", "bitsandbytes", "mxfp4", "fp8", "fbgemm_fp8" or "modelopt"
    (hf_quant_config.json may also specify the latter). docs/language-models.md lists the forms of each. The packages
    that write these methods are not needed. Its tokenizer.json and chat template, if any, are packaged as well.
    `dtype`: of the engine's computation, and of weights that are not quantized: "float32", "bfloat16" or "float16"; by
    default the dtype in config.json.
    `weights`: "same" keeps the numbers of quantized weights exactly, as codes and scales. None converts all weights to
    `dtype`. Other values of export()'s `weights` apply to the numbers that the checkpoint stands for.
    `sharding`, `check`, `progress`: same as for export().

    Cost: the memory of the model in `dtype`, plus that of the codes.
    If the inputs of a weight are divided among ranks in units that do not end where groups do, smaller groups have the
    same scales; if the units are not multiples of 32 (16 for 8-bit floats), such a weight is converted to `dtype`. So
    are the kv_b_proj of latent attention, which has a matrix per head, and, with a warning, weights whose groups are
    not neighbors (GPTQ's "desc_act").
    Raises ExportError, which names the problem: a tensor or setting that is not supported, a scale that is missing, has
    another shape or is not a number, experts that lack some of their weights, a tensor that the model lacks or does
    not know, or an unknown method.
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


def _model(folder: Path, dtype: str | None) -> tuple[torch.nn.Module, dict]:
    """Returns the model, and the codes of each layer by name."""
    config = read_config(folder)
    quantization = take_quantization(folder, config)
    read = READERS[known("its weights are quantized by", quantization.get("quant_method"), READERS)]
    wide = computed_dtype(config, dtype)
    codes, numbers = read(quantization, read_tensors(folder))
    model = model_with_weights(folder, config, numbers, dequantized(codes, numbers, wide), wide)
    return model, by_layers(model, codes)
