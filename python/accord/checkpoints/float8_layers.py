"""Checks the weights and scales of an 8-bit float checkpoint and converts them to the form that packages use.

A package has scales for outputs, or for groups of an output's inputs. A scale for a block is repeated for each
output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch

from accord.checkpoints.float8_config import block_of
from accord.checkpoints.reading import plain_numbers
from accord.graph.errors import ExportError
from accord.package.float8_codes import FLOAT8_GROUPS, Float8Codes

SCALES = ("weight_scale", "weight_scale_inv")
# Scales of inputs and caches are ignored: engines either do not round these, or use a scale per row.
LEFT_OUT = re.compile(
    r".*\.(input_(scale|scale_ub|zero_point|global_scale)|activation_scale|(output|[qkv])_(scale|zero_point))"
)


def read_float8(
    quantization: dict, tensors: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Float8Codes], dict[str, torch.Tensor]]:
    """Returns the 8-bit floats by the names of their weights, and the other tensors."""
    block = block_of(quantization)
    codes = {
        name: codes_of(name, tensors, block) for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn
    }
    scales = {f"{name.removesuffix('.weight')}.{one}" for name in codes for one in SCALES}
    rest = {
        name: tensor
        for name, tensor in tensors.items()
        if name not in codes and not name.endswith(SCALES) and not LEFT_OUT.fullmatch(name)
    }
    numbers = plain_numbers(rest, "float8_e4m3fn")
    for name in tensors:
        if name.endswith(SCALES) and name not in scales:
            raise ExportError(f'"{name}" has no weight of 8-bit floats beside it')
    return codes, numbers


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
