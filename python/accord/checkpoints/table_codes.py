"""Linear layers whose codes of four bits stand for the numbers of a table, times the scale of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from accord.package.codes import GROUPS_OF, Quantized, smallest_scale_type


@dataclass(frozen=True)
class TableCodes:
    """A matrix [out, in]: an element is scale * table[code], with a scale for each group of inputs."""

    codes: np.ndarray  # [out, in] of uint8
    scales: np.ndarray  # [out, groups] of float32
    group: int  # inputs that share a scale
    table: tuple[float, ...]  # 16 numbers, each exact in float32

    def numbers(self) -> torch.Tensor:
        """Returns the numbers that the codes stand for, [out, in] of float32."""
        elements = torch.from_numpy(np.array(self.table, np.float32)[self.codes])
        return elements * torch.from_numpy(np.repeat(self.scales, self.group, 1)[:, : self.codes.shape[1]])


def kept_table_codes(layers: Sequence[TableCodes]) -> list[Quantized] | None:
    """Returns the same numbers as packages store them, all in one format, or None if packages cannot store them."""
    group, table = layers[0].group, layers[0].table
    stored = math.gcd(group, GROUPS_OF["table4"][0])
    if stored not in GROUPS_OF["table4"] or any((one.group, one.table) != (group, table) for one in layers):
        return None
    scale_type = smallest_scale_type([one.scales for one in layers])

    def scales(one: TableCodes) -> np.ndarray:
        return np.repeat(one.scales, group // stored, 1)[:, : -(-one.codes.shape[1] // stored)]

    return [Quantized("table4", stored, one.codes, scales(one), None, scale_type, table=one.table) for one in layers]
