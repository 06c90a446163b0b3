"""Weights that are 8-bit floats when they are exported, and stay those bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

    from accord.export_sharding import TensorSharding

FLOAT8 = "float8_e4m3fn"


@dataclass(frozen=True)
class Float8Codes:
    """A matrix [out, in] of float8_e4m3fn, or one of each expert [experts, out, in]: an element is the number that its code stands for times
    the scale of its output."""

    codes: np.ndarray  # [.., out, in] of uint8
    scales: np.ndarray  # [.., out, 1] of float32

    type = FLOAT8
    group = 0  # all inputs share a scale
    minima = None

    def unit(self, sharding: TensorSharding | None, number: int) -> Float8Codes:
        """Its unit of that number; zeros fill up the last one where it is shorter. Units of the same outputs have the same
        scales."""
        if sharding is None:
            return self
        begin, end = number * sharding.unit, (number + 1) * sharding.unit
        codes = _cut(self.codes, sharding.dim, begin, end)
        if sharding.dim < self.codes.ndim - 1:
            return Float8Codes(codes, _cut(self.scales, sharding.dim, begin, end))
        return Float8Codes(codes, self.scales)

    def numbers(self) -> torch.Tensor:
        """What it stands for, [.., out, in] of float32."""
        import torch

        elements = torch.from_numpy(self.codes).view(torch.float8_e4m3fn).float()
        return elements * torch.from_numpy(self.scales)


@dataclass(frozen=True)
class Float8Experts:
    """Those matrices of a layer of experts that are 8-bit floats."""

    matrices: Mapping[str, Float8Codes]  # by gate_proj, up_proj and down_proj


def _cut(array: np.ndarray, dim: int, begin: int, end: int) -> np.ndarray:
    """[begin, end) along `dim`, filled up with zeros."""
    import numpy as np

    part = array[(slice(None),) * dim + (slice(begin, end),)]
    fill = [(0, 0)] * array.ndim
    fill[dim] = (0, end - begin - part.shape[dim])
    return np.pad(part, fill)
