"""Detects whether weights have changed since engines were built from them.

torch counts modifications of a tensor, but not writes through `.data`, by NumPy, by a collective (broadcast, recv),
by another process, or to tensors created in inference mode. Some elements of each weight are therefore compared as
well: all elements of a small weight, and SAMPLES elements of a large one, few enough to cost little compared with a
run.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from accord._core import hash_of_pieces

SAMPLES = 64  # elements compared of a larger weight


class WeightState:
    """State of weights whose addresses do not change. Does not keep the weights alive."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._versions = _versions(weights)
        self._pieces = b"".join(map(_pieces, weights))
        self._hash = hash_of_pieces(self._pieces)

    def holds(self, weights: Sequence[torch.Tensor]) -> bool:
        return self._versions == _versions(weights) and self._hash == hash_of_pieces(self._pieces)


def _versions(weights: Sequence[torch.Tensor]) -> list[int]:
    return [-1 if weight.is_inference() else weight._version for weight in weights]


def _pieces(weight: torch.Tensor) -> bytes:
    """Returns address and size of each sample."""
    if weight.device.type != "cpu" or weight.layout != torch.strided or weight.numel() == 0:
        return b""
    begin, size = weight.data_ptr(), weight.itemsize
    if weight.numel() <= SAMPLES and weight.is_contiguous():
        return struct.pack("=QQ", begin, weight.nbytes)
    chosen = torch.linspace(0, weight.numel() - 1, min(SAMPLES, weight.numel()), dtype=torch.float64).long()
    offsets = torch.zeros_like(chosen)
    for length, stride in zip(reversed(weight.shape), reversed(weight.stride()), strict=True):
        offsets += chosen % length * stride
        chosen //= length
    return b"".join(struct.pack("=QQ", begin + offset * size, size) for offset in offsets.tolist())
