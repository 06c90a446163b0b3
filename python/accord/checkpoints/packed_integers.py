"""Reads the weights of GPTQ and AWQ, whose codes are packed in words of 32 bits.

GPTQ's `qweight` has the codes of `bits` bits in words of 32 bits along the inputs, `qzeros` the zeros along the
outputs, and `scales` [groups, outputs]. Its first format stores zero - 1. `g_idx` is the group of each input.

AWQ's `qweight` has the codes along the outputs, like `qzeros`; eight outputs share a word, in another order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from accord.checkpoints.checks import Tensors, check_shape, needed, order_of, refuse, scales_of, words
from accord.checkpoints.integer_codes import IntegerCodes, unpacked_bits
from accord.checkpoints.reading import known, plain_numbers
from accord.graph.errors import ExportError

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in a word of each of eight outputs
Read = tuple[dict[str, IntegerCodes], dict[str, torch.Tensor]]


def read_gptq(quantization: dict, tensors: Tensors) -> Read:
    """Returns the codes by the names of their weights, and the other tensors."""
    bits = known('its "bits" are', quantization.get("bits"), (2, 3, 4, 8))
    stored = quantization.get("checkpoint_format") or quantization.get("format") or "gptq"
    stored = known('its "checkpoint_format" is', stored, ("gptq", "gptq_v2"))
    for pattern, rule in (quantization.get("dynamic") or {}).items():
        if set(rule or ()) & {"bits", "group_size"} and not pattern.startswith("-:"):
            raise ExportError(f'its "dynamic" gives "{pattern}" other bits or groups, which accord does not read')
    refuse(quantization, "adapter")

    def read(layer: str, group: int) -> IntegerCodes:
        qweight, qzeros, scales = (needed(tensors, f"{layer}.{name}", 2) for name in ("qweight", "qzeros", "scales"))
        inputs, outputs = qweight.shape[0] * 32 // bits, qweight.shape[1]
        groups = _group_count(group, inputs)
        check_shape(f"{layer}.qweight", qweight, [inputs * bits // 32, outputs])
        check_shape(f"{layer}.qzeros", qzeros, [groups, outputs * bits // 32])
        check_shape(f"{layer}.scales", scales, [groups, outputs])
        zeros = _zeros(words(f"{layer}.qzeros", qzeros), bits, outputs, less_one=stored == "gptq")
        return IntegerCodes(
            unpacked_bits(words(f"{layer}.qweight", qweight).t(), bits, inputs),
            np.ascontiguousarray(zeros.T.astype(np.int16)),
            scales_of(f"{layer}.scales", scales.t()),
            group if groups > 1 else inputs,
            order_of(tensors, f"{layer}.g_idx", inputs, group if groups > 1 else inputs),
        )

    return _read_layers(quantization, tensors, read)


def read_awq(quantization: dict, tensors: Tensors) -> Read:
    """Returns the codes by the names of their weights, and the other tensors."""
    known('its "bits" are', quantization.get("bits", quantization.get("w_bit")), (4,))
    stored = str(quantization.get("version") or quantization.get("format") or "gemm").lower()
    known('its "version" is', stored, ("gemm",))
    eight = np.array(AWQ_ORDER)

    def in_order(words: torch.Tensor, outputs: int) -> np.ndarray:
        return unpacked_bits(words, 4, outputs).reshape(len(words), -1, 8)[..., eight].reshape(len(words), -1)

    def read(layer: str, group: int) -> IntegerCodes:
        qweight, qzeros, scales = (needed(tensors, f"{layer}.{name}", 2) for name in ("qweight", "qzeros", "scales"))
        inputs, outputs = qweight.shape[0], qweight.shape[1] * 8
        groups = _group_count(group, inputs)
        check_shape(f"{layer}.qzeros", qzeros, [groups, outputs // 8])
        check_shape(f"{layer}.scales", scales, [groups, outputs])
        return IntegerCodes(
            np.ascontiguousarray(in_order(words(f"{layer}.qweight", qweight), outputs).T),
            np.ascontiguousarray(in_order(words(f"{layer}.qzeros", qzeros), outputs).T.astype(np.int16)),
            scales_of(f"{layer}.scales", scales.t()),
            group if groups > 1 else inputs,
        )

    return _read_layers(quantization, tensors, read)


def _read_layers(quantization: dict, tensors: Tensors, read: Callable[[str, int], IntegerCodes]) -> Read:
    group = quantization.get("group_size", quantization.get("q_group_size"))
    if type(group) is not int or group < -1 or group == 0:
        raise ExportError(f'its "group_size" is {group!r}, and neither -1 nor a number of inputs')
    layers = sorted(name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight"))
    if not layers:
        raise ExportError('no tensor ends in ".qweight", so no layer is quantized')
    for pattern in quantization.get("modules_to_not_convert") or ():
        for layer in layers:
            if f".{pattern}." in f".{layer}.":
                raise ExportError(f'"{layer}.qweight" belongs to "{pattern}", which "modules_to_not_convert" lists')
    codes = {f"{layer}.weight": read(layer, group) for layer in layers}
    used = {f"{layer}.{name}" for layer in layers for name in ("qweight", "qzeros", "scales", "g_idx")}
    return codes, plain_numbers({name: one for name, one in tensors.items() if name not in used}, "packed weights")


def _group_count(group: int, inputs: int) -> int:
    return 1 if group == -1 else -(-inputs // group)


def _zeros(stored: torch.Tensor, bits: int, outputs: int, *, less_one: bool) -> np.ndarray:
    """Returns the zeros [groups, outputs] of words that may have them less one."""
    if less_one and bits == 3:  # some are in two words
        return unpacked_bits(stored, bits, outputs) + 1 & 7
    if less_one:  # GPTQModel subtracts from whole words, in which a zero of 0 borrows from its neighbor
        stored = stored + sum(1 << place for place in range(0, 31, bits))
    return unpacked_bits(stored, bits, outputs)
