"""Linear layers whose weights are integers with scales and zero points, and the smallest format of packages with
exactly their numbers.

A weight is scale * (code - zero). Packages have codes around a fixed zero, or codes from 0 up with a minimum for each
group, which is -scale * zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from accord.package.codes import GROUPS_OF, Quantized, smallest_scale_type


@dataclass(frozen=True)
class IntegerCodes:
    """A matrix [out, in] of integers: an element is scale * (code - zero), with a scale and a zero for each group of
    inputs."""

    codes: np.ndarray  # [out, in] of uint8
    zeros: np.ndarray  # [out, groups] of int16
    scales: np.ndarray  # [out, groups] of float32
    group: int  # inputs that share a scale
    group_of_input: np.ndarray | None = None  # [in], where inputs of a group are not neighbors

    def numbers(self) -> torch.Tensor:
        """Returns the numbers that the codes stand for, [out, in] of float32."""
        of_input = self.group_of_input
        if of_input is None:
            of_input = np.arange(self.codes.shape[1]) // self.group
        differences = torch.from_numpy(self.codes).float() - torch.from_numpy(self.zeros[:, of_input])
        return differences * torch.from_numpy(self.scales[:, of_input])

    def differences(self) -> tuple[int, int]:
        """Returns the smallest and the largest code - zero."""
        signed = self._signed()
        return int(signed.min()), int(signed.max())

    def around(self, zero: int) -> np.ndarray:
        """Returns codes of the same numbers whose zero is `zero` everywhere."""
        return (self._signed() + np.int16(zero)).astype(np.uint8)

    def minima(self) -> np.ndarray:
        return -self.scales * self.zeros.astype(np.float32)

    def _signed(self) -> np.ndarray:
        return self.codes.astype(np.int16) - np.repeat(self.zeros, self.group, 1)[:, : self.codes.shape[1]]


@dataclass(frozen=True)
class _Candidate:
    """A format of packages for some layers."""

    type: str
    has_minima: bool
    scale_type: str
    group: int

    @property
    def bits(self) -> float:
        """Bits for a weight."""
        of_scale = (16 if self.scale_type == "float16" else 32) * (2 if self.has_minima else 1)
        return int(self.type.removeprefix("int")) + of_scale / self.group


def kept_codes(layers: Sequence[IntegerCodes]) -> list[Quantized] | None:
    """Returns the same numbers as packages store them, all in one format, or None if packages cannot store them."""
    if any(layer.group_of_input is not None for layer in layers):
        return None
    chosen = min(_candidates(layers), key=lambda one: one.bits, default=None)
    if chosen is None:
        return None
    return [_as_stored(layer, chosen) for layer in layers]


def _candidates(layers: Sequence[IntegerCodes]) -> Iterator[_Candidate]:
    group = layers[0].group
    if any(layer.group != group for layer in layers):
        return
    lows, highs = zip(*(layer.differences() for layer in layers), strict=True)
    largest = max(int(layer.codes.max()) for layer in layers)
    scales = [layer.scales for layer in layers]
    scale_types = {
        False: smallest_scale_type(scales),
        True: smallest_scale_type(scales + [layer.minima() for layer in layers]),
    }
    for type, groups in GROUPS_OF.items():
        if type == "table4":
            continue
        half = 1 << (int(type.removeprefix("int")) - 1)
        # All inputs may share a scale, which then is repeated.
        stored = next((size for size in groups if group % size == 0 or layers[0].scales.shape[1] == 1), None)
        if stored is None:
            continue
        if -half <= min(lows) and max(highs) < half:
            yield _Candidate(type, False, scale_types[False], stored)
        if type != "int6" and largest < 2 * half:
            yield _Candidate(type, True, scale_types[True], stored)


def _as_stored(layer: IntegerCodes, chosen: _Candidate) -> Quantized:
    groups = -(-layer.codes.shape[1] // chosen.group)

    def repeated(array: np.ndarray) -> np.ndarray:
        times = groups if array.shape[1] == 1 else layer.group // chosen.group
        return np.repeat(array, times, 1)[:, :groups]

    plain = Quantized(chosen.type, chosen.group, layer.codes, repeated(layer.scales), None, chosen.scale_type)
    if chosen.has_minima:
        return replace(plain, minima=repeated(layer.minima()))
    return replace(plain, codes=layer.around(1 << (int(chosen.type.removeprefix("int")) - 1)))


def unpacked_bits(words: torch.Tensor, bits: int, count: int) -> np.ndarray:
    """Returns the first `count` numbers of `bits` bits in rows of words [rows, words] of int32: a row's bits follow
    each other from the lowest bit of its first word up. [rows, count] of uint8."""
    data = np.ascontiguousarray(words.numpy()).view(np.uint8)
    if bits == 8:
        return data[:, :count].copy()
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return (data[..., None] >> shifts & np.uint8((1 << bits) - 1)).reshape(len(data), -1)[:, :count].copy()
    bit = np.unpackbits(data, axis=1, bitorder="little")[:, : count * bits].reshape(len(data), count, bits)
    return np.packbits(bit, axis=2, bitorder="little")[..., 0]
