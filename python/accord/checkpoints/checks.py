"""Checks the tensors of quantized weights. Errors name the tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from accord.graph.errors import ExportError

Tensors = Mapping[str, torch.Tensor]


def refuse(quantization: Mapping, *settings: str) -> None:
    """Raises ExportError if one of the settings is given."""
    for setting in settings:
        if quantization.get(setting):
            raise ExportError(f'its "{setting}" is {quantization[setting]!r}, which accord does not read')


def needed(tensors: Tensors, name: str, dims: int | None = None) -> torch.Tensor:
    """Returns a tensor, which must exist, and have `dims` dimensions if these are given."""
    tensor = tensors.get(name)
    if tensor is None:
        raise ExportError(f'"{name}" is missing beside the other tensors of its layer')
    if dims not in (None, tensor.dim()):
        raise ExportError(f'"{name}" is {list(tensor.shape)}: expected {dims} dimensions')
    return tensor


def check_shape(name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    if list(tensor.shape) != list(shape):
        raise ExportError(f'"{name}" is {list(tensor.shape)}: expected {list(shape)}')


def words(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns words of 32 bits."""
    if tensor.dtype != torch.int32:
        raise ExportError(f'"{name}" is {tensor.dtype}: expected codes in words of torch.int32')
    return tensor


def scales_of(name: str, tensor: torch.Tensor) -> np.ndarray:
    """Returns scales in float32, which must be finite."""
    if not tensor.is_floating_point():
        raise ExportError(f'"{name}" is {tensor.dtype}, and no scale')
    scales = np.ascontiguousarray(tensor.float().numpy())
    if not np.isfinite(scales).all():
        at = int(np.flatnonzero(~np.isfinite(scales))[0])
        raise ExportError(f'"{name}": a scale is {scales.reshape(-1)[at]}, and not finite')
    return scales


def order_of(tensors: Tensors, name: str, inputs: int, group: int) -> np.ndarray | None:
    """Returns the group of each input, or None if groups are of `group` neighbors."""
    given = tensors.get(name)
    if given is None or not given.numel() or bool((given == -1).all()):
        return None
    check_shape(name, given, [inputs])
    order, groups = given.numpy().astype(np.int64), -(-inputs // group)
    if not ((order >= 0) & (order < groups)).all():
        raise ExportError(f'"{name}" has groups from {order.min()} to {order.max()}; there are {groups}')
    return None if np.array_equal(order, np.arange(inputs) // group) else order
