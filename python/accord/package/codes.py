"""Weights that are already integers with scales when they are exported, and stay bit-identical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from accord.package.sharding import TensorSharding

# Inputs that may share a scale, by type.
GROUPS_OF = {"int4": (128, 64, 32, 16), "int5": (128, 64, 32), "int6": (128, 64, 32, 16), "int8": (128, 64, 32)}
GROUPS_OF["table4"] = GROUPS_OF["int4"]
# The numbers that codes of MXFP4 stand for, as integers: twice the floats of 4 bits.
MXFP4_TABLE = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
SUPER_GROUP = 256  # inputs whose scales are multiples of the same number


@dataclass(frozen=True)
class Quantized:
    """A matrix [out, in]: an element is scale * (code - zero) + minimum, or scale * table[code], with a scale and
    minimum for each group of inputs. Scales and minima of the type int8 are multiples of the super-scale and
    super-minimum of 256 inputs."""

    # int8, int6, int5 or int4: codes of 8, 6, 5 or 4 bits. Zero is half of their number, or 0 with minima.
    # table4: codes of 4 bits for the numbers of `table`.
    type: str
    group: int  # inputs that share a scale: one of GROUPS_OF[type]
    codes: np.ndarray  # [out, in] of uint8
    scales: np.ndarray  # [out, groups] of float32, each exact in scale_type
    minima: np.ndarray | None = None
    scale_type: str = "float16"  # float16, float32 or int8
    super_scales: np.ndarray | None = None  # [out, ceil(in / 256)] of float32, each exact in float16
    super_minima: np.ndarray | None = None
    table: tuple[float, ...] | None = None  # 16 numbers, each exact in float32

    def unit(self, sharding: TensorSharding | None, number: int) -> Quantized:
        """Returns unit `number`, which begins and ends with a group and has whole super-groups or part of one. A last
        unit with fewer outputs is zero-padded."""
        if sharding is None:
            return self
        zero = 0 if self.minima is not None or self.table else 2 ** (int(self.type.removeprefix("int")) - 1)
        return replace(
            self,
            codes=_cut(self.codes, sharding, number, 1, zero),
            scales=_cut(self.scales, sharding, number, self.group),
            minima=_cut(self.minima, sharding, number, self.group),
            super_scales=_cut(self.super_scales, sharding, number, SUPER_GROUP),
            super_minima=_cut(self.super_minima, sharding, number, SUPER_GROUP),
        )

    def in_units_of(self, inputs: int) -> Quantized | None:
        """Returns the same numbers, with scales that end where units of `inputs` inputs do, or None if groups would be
        smaller than packages support. If units would have parts of several super-groups, scales become float32, which
        represents all products of two scales."""
        import numpy as np

        group = math.gcd(self.group, inputs)
        if group not in GROUPS_OF[self.type]:
            return None
        if group != self.group:
            return self._in_groups_of(group).in_units_of(inputs)
        if self.super_scales is None or inputs % SUPER_GROUP == 0 or SUPER_GROUP % inputs == 0:
            return self

        def products(scales: np.ndarray | None, supers: np.ndarray | None) -> np.ndarray | None:
            if scales is None:
                return None
            return scales * np.repeat(supers, SUPER_GROUP // self.group, 1)[:, : scales.shape[1]]

        return replace(
            self,
            scales=products(self.scales, self.super_scales),
            minima=products(self.minima, self.super_minima),
            scale_type="float32",
            super_scales=None,
            super_minima=None,
        )

    def _in_groups_of(self, group: int) -> Quantized:
        """Returns the same numbers in smaller groups, several of which have the same scale."""
        import numpy as np

        def repeated(scales: np.ndarray | None) -> np.ndarray | None:
            if scales is None:
                return None
            return np.repeat(scales, self.group // group, 1)[:, : -(-self.codes.shape[1] // group)]

        return replace(self, group=group, scales=repeated(self.scales), minima=repeated(self.minima))


def mxfp4_scales(exponents: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns the scales of blocks of MXFP4, [.., blocks] of float32, for the numbers of MXFP4_TABLE. `codes`: [..,
    blocks, 32]. A block of zeros may have any scale, and gets 0, which all types of scales have."""
    import numpy as np

    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    return np.where((codes & 7 == 0).all(-1), np.float32(0), scales)


def with_smallest_scales(matrices: Sequence[Quantized]) -> Sequence[Quantized]:
    """Returns the same numbers, with float16 scales in place of float32 ones if those represent all of them exactly."""
    if any(one.scale_type != "float32" for one in matrices):
        return matrices
    arrays = [array for one in matrices for array in (one.scales, one.minima) if array is not None]
    return [replace(one, scale_type=smallest_scale_type(arrays)) for one in matrices]


def smallest_scale_type(arrays: Sequence[np.ndarray]) -> str:
    """Returns the smallest type of scales that represents these numbers exactly."""
    import numpy as np

    with np.errstate(over="ignore"):
        exact = all(np.array_equal(array.astype(np.float16).astype(np.float32), array) for array in arrays)
    return "float16" if exact else "float32"


def _cut(array: np.ndarray | None, sharding: TensorSharding, number: int, each: int, fill: int = 0):
    """Returns the unit's part of an array that has one column per `each` inputs."""
    import numpy as np

    if array is None:
        return None
    begin, end = number * sharding.unit, (number + 1) * sharding.unit
    if sharding.dim == 1:
        return array[:, begin // each : -(-end // each)]
    return np.pad(array[begin:end], ((0, max(0, end - len(array))), (0, 0)), constant_values=fill)
