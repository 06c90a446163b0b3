"""Rows in float8_e4m3fn with a scale for each 128 elements, as DeepEP's low-latency dispatch sends them."""

from __future__ import annotations

import torch

SCALE_BLOCK = 128
_MAX_FLOAT8 = 448.0
_MIN_LARGEST = 1e-4  # lower bound of the largest element of a block
_EXPONENTS_OF_WORD = 4


def in_float8(x: torch.Tensor, *, round_scale: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows, and their scales [tokens, ceil(hidden / 128)] float32. A scale maps the largest element of
    its block to the largest float8 value. round_scale: the scales are rounded up to powers of two."""
    hidden = x.shape[1]
    blocks = torch.nn.functional.pad(x.float(), (0, -hidden % SCALE_BLOCK)).unflatten(1, (-1, SCALE_BLOCK))
    scales = blocks.abs().amax(-1).clamp(min=_MIN_LARGEST) / _MAX_FLOAT8
    if round_scale:
        fraction, exponent = torch.frexp(scales)
        powers = torch.ldexp(torch.ones_like(scales), torch.where(fraction == 0.5, exponent - 1, exponent))
        scales = powers.where(scales.isfinite(), scales)
    scaled = (blocks / scales.unsqueeze(-1)).flatten(1)[:, :hidden]
    return scaled.to(torch.float8_e4m3fn).contiguous(), scales


def in_ue8m0(scales: torch.Tensor) -> torch.Tensor:
    """Returns powers of two as their exponents, one byte each (float32's, 127 is 1), four of them in an int32, the
    first one lowest: [..., ceil(blocks / 4)]. Zero stays zero."""
    exponents = (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8)
    padded = torch.nn.functional.pad(exponents, (0, -scales.shape[-1] % _EXPONENTS_OF_WORD))
    return padded.contiguous().view(torch.int32)
