"""Converts torchcomms' arguments to accord's: reduce ops, timeouts, split sizes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import prod
from typing import Any

import torch
from torchcomms import RedOpType, ReduceOp

from accord._integers import integers

_OPS = {
    RedOpType.SUM: "sum",
    RedOpType.PRODUCT: "product",
    RedOpType.MIN: "min",
    RedOpType.MAX: "max",
    RedOpType.BAND: "band",
    RedOpType.BOR: "bor",
    RedOpType.BXOR: "bxor",
    RedOpType.AVG: "avg",
}


Operation = ReduceOp | tuple  # a tuple, from _native, is PREMUL_SUM and its factor
Timeout = timedelta | None


def operation_of(op: Operation, array: torch.Tensor) -> tuple[str, dict[str, Any]]:
    """Returns the op's name, and keywords for the factor of PREMUL_SUM, in the dtype of `array`."""
    if isinstance(op, tuple):
        name, factor = op
        return name, {"factor": factor.reshape(-1)[:1].to(array.dtype) if torch.is_tensor(factor) else factor}
    kind = op.type
    if kind not in _OPS:
        raise RuntimeError(
            f"accord does not support {kind} here: torchcomms does not pass its factor to a backend in Python. "
            'Multiply the tensor and use SUM, or call comm.get_backend_impl().communicator.all_reduce(tensor, "premul_sum", factor=...)'
        )
    return _OPS[kind], {}


def parts_of(tensor: torch.Tensor, splits: Sequence[int], size: int, what: str) -> list[int]:
    """Returns the number of elements of each rank's part, from split sizes, which count rows; without any, equal
    parts.
    """
    if tensor.dim() == 0:
        raise RuntimeError(f"all_to_all_v_single: {what} has no dimension that could be split")
    rows = tensor.size(0)
    splits = integers(splits, f"all_to_all_v_single: the split sizes of {what}", RuntimeError)
    if not splits:
        if rows % size:
            raise RuntimeError(
                f"all_to_all_v_single: {what} has {rows} rows, which do not split evenly over {size} ranks"
            )
        splits = [rows // size] * size
    if len(splits) != size:
        raise RuntimeError(
            f"all_to_all_v_single: {what} has {len(splits)} split sizes; expected {size}, one for each rank"
        )
    if sum(splits) > rows:
        raise RuntimeError(
            f"all_to_all_v_single: the split sizes of {what} add up to {sum(splits)} rows, but it has {rows}"
        )
    return [split * prod(tensor.shape[1:]) for split in splits]
