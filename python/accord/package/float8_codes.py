"""Weights that are already 8-bit floats when they are exported, and stay bit-identical."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

    from accord.package.sharding import TensorSharding

FLOAT8 = "float8_e4m3fn"
FLOAT8_GROUPS = (128, 64, 32, 16)  # numbers of an output's inputs that may share a scale


@dataclass(frozen=True)
class Float8Codes:
    """A matrix [out, in] of float8_e4m3fn, or one per expert [experts, out, in]: an element is the number that its
    code stands for times the scale of its group of inputs."""

    codes: np.ndarray  # [.., out, in] of uint8
    scales: np.ndarray  # [.., out, groups] of float32
    group: int = 0  # inputs that share a scale; 0: all inputs of an output are one group

    type = FLOAT8
    scale_type = "float32"
    minima = super_scales = super_minima = table = None

    def unit(self, sharding: TensorSharding | None, number: int) -> Float8Codes:
        """Returns unit `number`; a shorter last unit is padded with zeros. If a scale is for all inputs of an output,
        units of the same outputs share the scales; otherwise a unit begins and ends at a group and has its groups'
        scales."""
        if sharding is None:
            return self
        begin, end = number * sharding.unit, (number + 1) * sharding.unit
        codes = _cut(self.codes, sharding.dim, begin, end)
        if sharding.dim < self.codes.ndim - 1:
            return Float8Codes(codes, _cut(self.scales, sharding.dim, begin, end), self.group)
        if self.group == 0:
            return Float8Codes(codes, self.scales)
        scales = _cut(self.scales, sharding.dim, begin // self.group, end // self.group)
        return Float8Codes(codes, scales, self.group)

    def in_units_of(self, inputs: int) -> Float8Codes | None:
        """Returns the same codes in groups that end where units of `inputs` inputs do, or None if these groups would
        be smaller than packages support.
        """
        import numpy as np

        group = math.gcd(self.group, inputs)
        if self.group in (0, group):
            return self
        if group not in FLOAT8_GROUPS:
            return None
        scales = np.repeat(self.scales, self.group // group, -1)[..., : -(-self.codes.shape[-1] // group)]
        return Float8Codes(self.codes, scales, group)

    def numbers(self) -> torch.Tensor:
        """Returns the numbers that the codes stand for, [.., out, in] of float32."""
        import torch

        elements = torch.from_numpy(self.codes).view(torch.float8_e4m3fn).float()
        inputs = elements.shape[-1]
        scales = torch.from_numpy(self.scales).repeat_interleave(self.group or inputs, -1)
        return elements * scales[..., :inputs]


@dataclass(frozen=True)
class Float8Experts:
    """The matrices of a layer of experts that are 8-bit floats."""

    matrices: Mapping[str, Float8Codes]  # keyed by gate_proj, up_proj and down_proj


def _cut(array: np.ndarray, dim: int, begin: int, end: int) -> np.ndarray:
    """Returns [begin, end) along `dim`, padded with zeros."""
    import numpy as np

    part = array[(slice(None),) * dim + (slice(begin, end),)]
    fill = [(0, 0)] * array.ndim
    fill[dim] = (0, end - begin - part.shape[dim])
    return np.pad(part, fill)
