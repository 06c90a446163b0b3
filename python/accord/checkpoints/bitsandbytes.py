"""Reads the weights of bitsandbytes.

LLM.int8() stores a `weight` of int8 and beside it `SCB`, the largest magnitude of each output, which the code 127
stands for.

nf4 and fp4 store codes of four bits, two in a byte, the first in its upper half. They stand for the numbers of
`weight.quant_map`. Each `blocksize` elements of the flattened weight share a scale, `weight.absmax`. With double
quantization this is a code, too, for a number of `weight.nested_quant_map`: times the `weight.nested_absmax` of its
block, plus an offset, it gives the scale. The sizes are in JSON, as the bytes of a tensor.
"""

from __future__ import annotations

import json
import math

import numpy as np
import torch

from accord.checkpoints.checks import Tensors, check_shape, needed, scales_of
from accord.checkpoints.integer_codes import IntegerCodes
from accord.checkpoints.reading import known, plain_numbers
from accord.checkpoints.table_codes import TableCodes
from accord.graph.errors import ExportError

OF_ONE_CODE = np.float32(7.874015718698502e-3)  # 1 / 127
STATE = ".weight.quant_state.bitsandbytes__"
OF_STATE = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


def read_bitsandbytes(
    quantization: dict, tensors: Tensors
) -> tuple[dict[str, IntegerCodes | TableCodes], dict[str, torch.Tensor]]:
    """Returns the codes by the names of their weights, and the other tensors."""
    codes: dict[str, IntegerCodes | TableCodes] = {}
    used: set[str] = set()
    for name in sorted(tensors):
        if name.endswith(".SCB"):
            layer = name.removesuffix(".SCB")
            codes[f"{layer}.weight"] = _int8(tensors, layer)
            used |= {f"{layer}.{one}" for one in ("weight", "SCB", "weight_format")}
        elif STATE in name:
            layer, _, kind = name.partition(STATE)
            known(f'the codes of "{layer}.weight" are', kind, ("nf4", "fp4"))
            codes[f"{layer}.weight"] = _four_bits(tensors, f"{layer}.weight", name)
            used |= {name, f"{layer}.weight", *(f"{layer}.weight.{one}" for one in OF_STATE)}
    return codes, plain_numbers({name: one for name, one in tensors.items() if name not in used}, "packed weights")


def _int8(tensors: Tensors, layer: str) -> IntegerCodes:
    weight, largest = needed(tensors, f"{layer}.weight", 2), needed(tensors, f"{layer}.SCB", 1)
    if weight.dtype != torch.int8:
        raise ExportError(f'"{layer}.weight" is {weight.dtype}: expected torch.int8 beside "{layer}.SCB"')
    outputs, inputs = weight.shape
    check_shape(f"{layer}.SCB", largest, [outputs])
    order = tensors.get(f"{layer}.weight_format")
    if order is not None and bool(order.any()):
        raise ExportError(f'"{layer}.weight_format" is {order.tolist()}: only 0, rows in order, is supported')
    return IntegerCodes(
        weight.numpy().view(np.uint8) ^ np.uint8(128),
        np.full((outputs, 1), 128, np.int16),
        scales_of(f"{layer}.SCB", largest[:, None]) * OF_ONE_CODE,
        inputs,
    )


def _four_bits(tensors: Tensors, name: str, state_name: str) -> TableCodes:
    state = _state(tensors, state_name)
    packed, table = needed(tensors, name), scales_of(f"{name}.quant_map", needed(tensors, f"{name}.quant_map", 1))
    check_shape(f"{name}.quant_map", tensors[f"{name}.quant_map"], [16])
    outputs, inputs = state["shape"]
    data = packed.contiguous().reshape(-1).view(torch.uint8).numpy()
    if len(data) != -(-outputs * inputs // 2):
        raise ExportError(f'"{name}" has {len(data)} bytes, not the codes of [{outputs}, {inputs}]')
    codes = np.stack((data >> 4, data & 15), 1).reshape(-1)[: outputs * inputs].reshape(outputs, inputs)
    scales = _scales(tensors, name, state)
    check_shape(f"{name}.absmax", tensors[f"{name}.absmax"], [-(-outputs * inputs // state["blocksize"])])
    # A row may begin inside a block.
    group = math.gcd(state["blocksize"], inputs)
    of_rows = np.repeat(scales, state["blocksize"] // group)[: outputs * inputs // group]
    return TableCodes(codes, of_rows.reshape(outputs, -1), group, tuple(table.tolist()))


def _scales(tensors: Tensors, name: str, state: dict) -> np.ndarray:
    given = needed(tensors, f"{name}.absmax", 1)
    if given.dtype != torch.uint8:
        return scales_of(f"{name}.absmax", given)
    largest = scales_of(f"{name}.nested_absmax", needed(tensors, f"{name}.nested_absmax", 1))
    table = scales_of(f"{name}.nested_quant_map", needed(tensors, f"{name}.nested_quant_map", 1))
    check_shape(f"{name}.nested_quant_map", tensors[f"{name}.nested_quant_map"], [256])
    block, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if type(block) is not int or block < 1 or not isinstance(offset, (int, float)):
        raise ExportError(f'"{name}.absmax" has codes, but its state has no nested_blocksize and nested_offset')
    check_shape(f"{name}.nested_absmax", tensors[f"{name}.nested_absmax"], [-(-len(given) // block)])
    return table[given.numpy()] * np.repeat(largest, block)[: len(given)] + np.float32(offset)


def _state(tensors: Tensors, name: str) -> dict:
    """Returns the sizes of a weight."""
    try:
        state = json.loads(needed(tensors, name, 1).numpy().tobytes())
        sizes = [*state["shape"], state["blocksize"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f'"{name}" is damaged: {error!r}') from error
    if len(sizes) != 3 or not all(type(size) is int and size > 0 for size in sizes):
        raise ExportError(f'"{name}" gives the shape {state["shape"]} and the blocksize {state["blocksize"]}')
    return state
