"""Gives the quantized weights of a checkpoint the layer names that export() uses, and stacks those of experts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from accord.checkpoints.integer_codes import IntegerCodes, kept_codes
from accord.checkpoints.table_codes import TableCodes, kept_table_codes
from accord.graph.errors import ExportError
from accord.graph.latent_heads import latent_heads
from accord.graph.modules import taken_apart
from accord.package.codes import Quantized
from accord.package.expert_codes import QuantizedExperts, QuantizedStack, rows_of
from accord.package.float8_codes import Float8Codes, Float8Experts
from accord.package.weight_names import by_package_names

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}  # Mixtral's names
TOGETHER = (("gate_proj", "up_proj"), ("down_proj",))  # matrices that kernels need in one format

Codes = Float8Codes | IntegerCodes | TableCodes
Kept = Quantized | Float8Codes


def dequantized(
    codes: Mapping[str, Codes], numbers: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Returns the matrices that the codes stand for, except those of experts whose numbers are given together."""
    return {
        name: one.numbers().to(dtype)
        for name, one in codes.items()
        if (match := EXPERT.fullmatch(name)) is None or f"{match[1]}.down_proj" not in numbers
    }


def by_layers(model: torch.nn.Module, codes: Mapping[str, Codes]) -> dict[str, Kept | Float8Experts | QuantizedExperts]:
    """Returns the codes, as packages store them, under the layer names that export() uses after it has split fused
    layers, without those of layers whose weights it transposes. A warning names layers whose codes packages cannot
    store; these have the model's dtype."""
    with taken_apart(model), latent_heads(model):
        shapes = {name: tensor.shape for name, tensor in model.named_parameters()}
    latent = {name.removesuffix("key.weight") for name in shapes if name.endswith(".kv_b_proj.key.weight")}
    widened: list[str] = []
    linears: dict[str, Kept] = {}
    for name, one in codes.items():
        if name.removesuffix("weight") not in latent and not EXPERT.fullmatch(name):
            kept = _kept([one])
            linears |= {name: kept[0]} if kept else {}
            widened += [] if kept else [name]
    found = _split(linears, shapes)
    layers: dict[str, Kept | Float8Experts | QuantizedExperts] = {
        name.removesuffix(".weight"): one for name, one in found.items()
    }
    for layer, matrices in _experts(codes).items():
        kept_matrices = _kept_matrices(layer, matrices)
        widened += [f"{layer}.{matrix}" for matrix in matrices.keys() - kept_matrices.keys()]
        found |= {f"{layer}.{matrix}": one for matrix, one in kept_matrices.items()}
        if kept_matrices:
            of_float8 = isinstance(next(iter(kept_matrices.values())), Float8Codes)
            layers[layer] = (Float8Experts if of_float8 else QuantizedExperts)(kept_matrices)
    for name, one in found.items():
        _check(name, _shape(one), shapes)
    if widened:
        warnings.warn(
            f'packages cannot store the codes of {len(widened)} weights, such as "{sorted(widened)[0]}" (inputs that '
            "share a scale must be neighbors, and a multiple of 16); these get the model's dtype",
            stacklevel=4,
        )
    return layers


def _split(linears: Mapping[str, Kept], shapes: Mapping[str, torch.Size]) -> dict[str, Kept]:
    """Returns the codes with those of fused layers split."""
    rows = {name: torch.arange(len(one.codes))[:, None] for name, one in linears.items()}
    whole_of = {numbers.untyped_storage().data_ptr(): name for name, numbers in rows.items()}
    found = {}
    for name, numbers in by_package_names(rows, shapes).items():
        whole = linears[whole_of[numbers.untyped_storage().data_ptr()]]
        is_part = len(numbers) < len(whole.codes)
        found[name] = rows_of(whole, int(numbers[0]), int(numbers[-1]) + 1) if is_part else whole
    return found


def _experts(codes: Mapping[str, Codes]) -> dict[str, dict[str, list[Codes]]]:
    """Returns the codes of each expert, by layer and matrix."""
    layers: dict[str, dict[str, dict[int, Codes]]] = {}
    for name, one in codes.items():
        if match := EXPERT.fullmatch(name):
            layer, number, part = match.groups()
            matrices = layers.setdefault(layer.replace(".block_sparse_moe.", ".mlp."), {})
            matrices.setdefault(PARTS.get(part, part), {})[int(number)] = one
    return {
        layer: {matrix: _in_order(f"{layer}.{matrix}", numbered) for matrix, numbered in matrices.items()}
        for layer, matrices in layers.items()
    }


def _in_order(name: str, numbered: Mapping[int, Codes]) -> list[Codes]:
    experts = [numbered.get(number) for number in range(max(numbered) + 1)]
    if None in experts:
        raise ExportError(f'"{name}": expert {experts.index(None)} is not quantized, as others are')
    if len({(type(one), one.codes.shape, one.scales.shape, one.group) for one in experts}) > 1:
        raise ExportError(f'"{name}": experts are of different sizes, or have scales of different kinds')
    return experts


def _kept_matrices(layer: str, matrices: Mapping[str, list[Codes]]) -> dict[str, Float8Codes | QuantizedStack]:
    """Returns the stacked codes of the matrices that packages can store."""
    stacked: dict[str, Float8Codes | QuantizedStack] = {}
    for names in TOGETHER:
        present = [name for name in names if name in matrices]
        kept = _kept([one for name in present for one in matrices[name]])
        for number, name in enumerate(present if kept else ()):
            count = len(matrices[name])
            of_matrix = kept[number * count : (number + 1) * count]
            if isinstance(of_matrix[0], Float8Codes):
                both = (np.stack([getattr(one, what) for one in of_matrix]) for what in ("codes", "scales"))
                stacked[name] = Float8Codes(*both, of_matrix[0].group)
            else:
                stacked[name] = QuantizedStack(tuple(of_matrix))
    if len({type(one) for one in stacked.values()}) > 1:
        raise ExportError(f'"{layer}": some matrices of its experts are 8-bit floats, and others integers')
    return stacked


def _kept(codes: Sequence[Codes]) -> Sequence[Kept] | None:
    """Returns the codes of layers as packages store them, in one format, or None if they cannot."""
    kinds = {type(one) for one in codes}
    if kinds == {Float8Codes}:
        return codes
    if kinds == {IntegerCodes}:
        return kept_codes(codes)
    return kept_table_codes(codes) if kinds == {TableCodes} else None


def _shape(one: Kept | QuantizedStack) -> tuple[int, ...]:
    if isinstance(one, QuantizedStack):
        return (len(one.experts), *one.experts[0].codes.shape)
    return one.codes.shape


def _check(name: str, shape: tuple[int, ...], shapes: Mapping[str, torch.Size]) -> None:
    if name not in shapes:
        raise ExportError(f'quantized "{name}" has another name in the model, and cannot stay as it is')
    if shape != shapes[name]:
        raise ExportError(f'quantized "{name}" is {list(shape)}, in the model {list(shapes[name])}')
