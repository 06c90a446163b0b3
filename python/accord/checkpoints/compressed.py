"""Reads the weights of compressed-tensors: integers packed in words or as int8, and 8-bit floats.

`config_groups` gives the layers that its `targets` match their numbers of bits, and how many inputs share a scale. A
layer has `weight_packed`, the codes along the inputs, and `weight_shape`, or a `weight` of int8; beside it are
`weight_scale` and perhaps `weight_zero_point`, which is packed along the outputs. Packed numbers are stored plus half
of the number of codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch

from accord.checkpoints.checks import Tensors, check_shape, needed, order_of, refuse, scales_of, words
from accord.checkpoints.float8_layers import read_float8
from accord.checkpoints.integer_codes import IntegerCodes, unpacked_bits
from accord.checkpoints.reading import known
from accord.graph.errors import ExportError
from accord.package.float8_codes import Float8Codes

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
STRATEGIES = ("tensor", "channel", "group")
OF_LAYER = ("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")


def read_compressed(
    quantization: dict, tensors: Tensors
) -> tuple[dict[str, IntegerCodes | Float8Codes], dict[str, torch.Tensor]]:
    """Returns the codes by the names of their weights, and the other tensors."""
    refuse(quantization, "sparsity_config", "transform_config")
    schemes = quantization.get("config_groups")
    schemes = list(schemes.values()) if isinstance(schemes, Mapping) else []
    for one in (quantization, *schemes):
        if one.get("format") is not None:
            known('its "format" is', one["format"], FORMATS)
    codes, used = {}, set()
    for name, tensor in tensors.items():
        layer, _, kind = name.rpartition(".")
        if kind == "weight_packed" or (kind == "weight" and tensor.dtype == torch.int8):
            weights = _scheme(name, layer, schemes, quantization.get("ignore") or ())
            codes[f"{layer}.weight"] = _codes(tensors, name, weights)
            used |= {name, *(f"{layer}.{one}" for one in OF_LAYER)}
    floats, rest = read_float8(quantization, {name: one for name, one in tensors.items() if name not in used})
    return codes | floats, rest


def _scheme(name: str, layer: str, schemes: list[Mapping], ignored: list[str]) -> Mapping:
    """Returns how the weights of a layer are quantized."""
    if any(_matches(layer, target) for target in ignored):
        raise ExportError(f'"{name}" is quantized, but its layer is in the list "ignore"')
    targets = [(target, one) for one in schemes for target in one.get("targets") or ()]
    # An exact name comes before an expression, and that before a class.
    for fits in (lambda target: target == layer, lambda target: _matches(layer, target), lambda one: one == "Linear"):
        for target, one in targets:
            if fits(target):
                return one.get("weights") or {}
    raise ExportError(f'"{name}" matches no target in "config_groups"')


def _matches(layer: str, target: str) -> bool:
    if not target.startswith("re:"):
        return target == layer
    try:
        return re.match(target.removeprefix("re:"), layer) is not None
    except re.error as error:
        raise ExportError(f'"config_groups" has the target "{target}": {error}') from error


def _codes(tensors: Tensors, name: str, weights: Mapping) -> IntegerCodes:
    layer, _, kind = name.rpartition(".")
    bits, of_float = weights.get("num_bits", 8), weights.get("type", "int") != "int"
    if of_float or type(bits) is not int or not 1 <= bits <= 8:
        raise ExportError(f'"{name}": {weights.get("type", "int")} weights of {bits!r} bits are not supported')
    given, half = needed(tensors, name, 2), 1 << (bits - 1)
    if kind == "weight_packed":
        outputs, inputs = _shape(tensors, f"{layer}.weight_shape")
        check_shape(name, given, [outputs, -(-inputs * bits // 32)])
        codes = unpacked_bits(words(name, given), bits, inputs)
    else:
        (outputs, inputs), half = given.shape, 128
        codes = given.numpy().view(np.uint8) ^ np.uint8(128)
    group, groups = _group(name, weights, inputs)
    scales = needed(tensors, f"{layer}.weight_scale")
    return IntegerCodes(
        codes,
        _zeros(tensors, layer, weights, (outputs, groups), bits, half, packed=kind == "weight_packed"),
        scales_of(f"{layer}.weight_scale", _of_outputs(f"{layer}.weight_scale", scales, outputs, groups)),
        group,
        order_of(tensors, f"{layer}.weight_g_idx", inputs, group),
    )


def _shape(tensors: Tensors, name: str) -> tuple[int, int]:
    shape = needed(tensors, name, 1).tolist()
    if len(shape) != 2 or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ExportError(f'"{name}" is {shape}, and not the outputs and inputs of a weight')
    return tuple(shape)


def _group(name: str, weights: Mapping, inputs: int) -> tuple[int, int]:
    """Returns the number of inputs that share a scale, and how many groups of these there are."""
    size = weights.get("group_size")
    strategy = weights.get("strategy") or ("tensor" if size is None else "channel" if size == -1 else "group")
    known(f'the "strategy" of "{name}" is', strategy, STRATEGIES)
    if strategy != "group":
        return inputs, 1
    if type(size) is not int or size < 1:
        raise ExportError(f'the "group_size" of "{name}" is {size!r}, and no number of inputs')
    return min(size, inputs), -(-inputs // size)


def _of_outputs(name: str, given: torch.Tensor, outputs: int, groups: int) -> torch.Tensor:
    """Returns [outputs, groups] of values that may be one for all."""
    if given.numel() == 1:
        return given.reshape(1, 1).expand(outputs, groups)
    if groups == 1 and list(given.shape) == [outputs]:
        return given[:, None]
    check_shape(name, given, [outputs, groups])
    return given


def _zeros(
    tensors: Tensors, layer: str, weights: Mapping, shape: tuple[int, int], bits: int, half: int, *, packed: bool
) -> np.ndarray:
    """Returns the zeros [outputs, groups] of codes from 0 up."""
    name = f"{layer}.weight_zero_point"
    if weights.get("symmetric", True):
        return np.full(shape, half, np.int16)
    given = needed(tensors, name)
    if packed and given.dtype == torch.int32 and given.numel() != 1:
        check_shape(name, given, [-(-shape[0] * bits // 32), shape[1]])
        return np.ascontiguousarray(unpacked_bits(given.t(), bits, shape[0]).T.astype(np.int16))
    if given.is_floating_point():
        raise ExportError(f'"{name}" is {given.dtype}, and no integers')
    zeros = _of_outputs(name, given, *shape).numpy().astype(np.int64) + half
    if not ((zeros >= 0) & (zeros < 2 * half)).all():
        raise ExportError(f'"{name}" has zeros from {zeros.min() - half} to {zeros.max() - half}')
    return zeros.astype(np.int16)
