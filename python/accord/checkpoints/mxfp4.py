"""Reads the experts of gpt-oss in MXFP4: floats of 4 bits, with a power of two for each 32 inputs.

`gate_up_proj_blocks` [experts, outputs, inputs / 32, 16] has two codes in a byte, the first in its lower half, and
`gate_up_proj_scales` [experts, outputs, inputs / 32] has exponents plus 127. Outputs are the gate's and the up
projection's in turn. `down_proj` is alike.
"""

from __future__ import annotations

import numpy as np
import torch

from accord.checkpoints.checks import Tensors, check_shape, needed
from accord.checkpoints.reading import plain_numbers
from accord.checkpoints.table_codes import TableCodes
from accord.graph.errors import ExportError
from accord.package.codes import MXFP4_TABLE, mxfp4_scales

BLOCK = 32
BLOCKS = "_blocks"


def read_mxfp4(quantization: dict, tensors: Tensors) -> tuple[dict[str, TableCodes], dict[str, torch.Tensor]]:
    """Returns the codes of each expert, and the other tensors, to which the experts' numbers belong as the model has
    them: [experts, inputs, outputs]."""
    codes: dict[str, TableCodes] = {}
    numbers: dict[str, torch.Tensor] = {}
    used: set[str] = set()
    for name in sorted(tensors):
        whole = name.removesuffix(BLOCKS)
        layer, _, matrix = whole.rpartition(".")
        if whole == name or matrix not in ("gate_up_proj", "down_proj"):
            continue
        experts = _experts(tensors, whole)
        used |= {name, f"{whole}_scales"}
        numbers[whole] = torch.stack([expert.numbers().t() for expert in experts])
        for number, expert in enumerate(experts):
            parts = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
            for part, rows in parts.items() if matrix == "gate_up_proj" else [("down_proj", slice(None))]:
                codes[f"{layer}.{number}.{part}.weight"] = TableCodes(
                    expert.codes[rows], expert.scales[rows], BLOCK, MXFP4_TABLE
                )
    if not codes:
        raise ExportError(f'no experts have tensors whose names end in "{BLOCKS}"')
    rest = {name: one for name, one in tensors.items() if name not in used}
    return codes, plain_numbers(rest, "packed experts") | numbers


def _experts(tensors: Tensors, name: str) -> list[TableCodes]:
    blocks, exponents = needed(tensors, f"{name}{BLOCKS}", 4), needed(tensors, f"{name}_scales", 3)
    for its, one in ((f"{name}{BLOCKS}", blocks), (f"{name}_scales", exponents)):
        if one.dtype != torch.uint8:
            raise ExportError(f'"{its}" is {one.dtype}: expected torch.uint8')
    count, outputs, groups, _ = blocks.shape
    check_shape(f"{name}{BLOCKS}", blocks, [count, outputs, groups, BLOCK // 2])
    check_shape(f"{name}_scales", exponents, [count, outputs, groups])
    if bool((exponents == 255).any()):
        raise ExportError(f'"{name}_scales" has a scale that is no number')
    experts = []
    for data, of_blocks in zip(blocks.numpy(), exponents.numpy(), strict=True):
        codes = np.stack((data & 15, data >> 4), -1).reshape(outputs, groups, BLOCK)
        scales = mxfp4_scales(of_blocks, codes)
        experts.append(TableCodes(codes.reshape(outputs, -1), scales, BLOCK, MXFP4_TABLE))
    return experts
