"""Checks the weights and scales of an 8-bit float checkpoint and converts them to the form that packages use.

A package has scales for outputs, or for groups of an output's inputs. A scale for a block is repeated for each
output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import torch

from accord.graph.errors import ExportError
from accord.package.float8_codes import FLOAT8_GROUPS, Float8Codes, Float8Experts

SCALES = ("weight_scale", "weight_scale_inv")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}  # Mixtral's names


def codes_of(name: str, tensors: Mapping[str, torch.Tensor], block: tuple[int, int] | None) -> Float8Codes:
    """Returns a weight and its checked scales. `block`: outputs and inputs of a block, if the checkpoint has any."""
    weight = tensors[name]
    layer, _, kind = name.rpartition(".")
    found = [f"{layer}.{one}" for one in SCALES if f"{layer}.{one}" in tensors]
    if kind != "weight" or weight.dim() != 2:
        raise ExportError(
            f'"{name}" {list(weight.shape)} of 8-bit floats is no weight of a linear layer, or of one expert'
        )
    if len(found) != 1:
        what = "has no scale" if not found else "has two scales"
        raise ExportError(f'"{name}" of 8-bit floats {what} ({" or ".join(f"{layer}.{one}" for one in SCALES)})')
    given = tensors[found[0]]
    if not given.is_floating_point():
        raise ExportError(f'"{found[0]}" is {given.dtype}, and no scale')
    if len(bad := torch.nonzero(~(torch.isfinite(given.float()) & (given.float() >= 0)).reshape(-1))):
        scale = float(given.float().reshape(-1)[bad[0]])
        raise ExportError(f'"{found[0]}": scale {int(bad[0])} is {scale}, below zero or not finite')
    elements = weight.contiguous().view(torch.uint8)
    if bool(((elements & 0x7F) == 0x7F).any()):
        raise ExportError(f'"{name}" {list(weight.shape)} has elements that are no numbers')
    scales, group = _scales(name, weight, found[0], given.float(), block)
    return Float8Codes(elements.numpy(), scales.contiguous().numpy(), group)


def _scales(
    name: str, weight: torch.Tensor, its: str, given: torch.Tensor, block: tuple[int, int] | None
) -> tuple[torch.Tensor, int]:
    """Returns the scales [out, groups], and the number of inputs in a group; 0 means all inputs."""
    outputs, inputs = weight.shape
    if block:
        blocks = [math.ceil(outputs / block[0]), math.ceil(inputs / block[1])]
        if list(given.shape) == blocks:
            scales = given.repeat_interleave(block[0], 0)[:outputs]
            group = math.gcd(block[1], max(FLOAT8_GROUPS))
            scales = scales.repeat_interleave(block[1] // group, 1)[:, : math.ceil(inputs / group)]
            return (scales[:, :1], 0) if blocks[1] == 1 else (scales, group)
        known = f"{blocks} of blocks {list(block)}"
    else:
        known = f"one for each of {outputs} outputs (no size of blocks is told)"
    if given.numel() != 1 and list(given.shape) not in ([outputs], [outputs, 1]):
        raise ExportError(
            f'"{its}" {list(given.shape)} of "{name}" {list(weight.shape)}: expected {known}, or one for all'
        )
    return given.reshape(-1, 1).expand(outputs, 1), 0


def take_experts(codes: Mapping[str, Float8Codes]) -> tuple[dict[str, Float8Codes], dict[str, Float8Experts]]:
    """Returns the codes of linear layers unchanged, and those of experts by layer, stacked for each part."""
    linears = {name: one for name, one in codes.items() if not EXPERT.fullmatch(name)}
    layers: dict[str, dict[str, dict[int, Float8Codes]]] = {}
    for name in codes.keys() - linears.keys():
        layer, number, part = EXPERT.fullmatch(name).groups()
        parts = layers.setdefault(layer.replace(".block_sparse_moe.", ".mlp."), {})
        parts.setdefault(PARTS.get(part, part), {})[int(number)] = codes[name]
    stacked = {
        layer: Float8Experts({part: _stacked(f"{layer}.{part}", numbered) for part, numbered in parts.items()})
        for layer, parts in layers.items()
    }
    return linears, stacked


def _stacked(name: str, numbered: Mapping[int, Float8Codes]) -> Float8Codes:
    experts = [numbered.get(number) for number in range(max(numbered) + 1)]
    if None in experts:
        raise ExportError(f'"{name}": expert {experts.index(None)} is of no 8-bit floats, as others are')
    if len({(one.codes.shape, one.scales.shape, one.group) for one in experts}) > 1:
        raise ExportError(f'"{name}": experts are of different sizes, or have scales of different kinds')
    codes, scales = (np.stack([getattr(one, what) for one in experts]) for what in ("codes", "scales"))
    return Float8Codes(codes, scales, experts[0].group)
