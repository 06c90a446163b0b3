"""Tensors that report a GPU as their device but use the memory of the test library's simulated devices, for functions
that run in rank processes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from host_devices import OnDevice


class HostTensor(torch.Tensor):
    """A tensor with the elements of `values`, a CPU tensor over the same memory. Torch operations run on `values`."""

    __dlpack_c_exchange_api__ = None  # torch's API only knows the memory of its own tensors

    @staticmethod
    def __new__(cls, values: torch.Tensor, index: int, array: OnDevice) -> HostTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=f"cuda:{index}"
        )
        made.values, made.array = values, array
        return made

    @classmethod
    def on(cls, loaded: ctypes.CDLL, index: int, values: torch.Tensor) -> HostTensor:
        array = OnDevice(
            loaded, index, values.numpy() if values.dtype is not torch.bfloat16 else values.view(torch.int16).numpy()
        )
        return cls(torch.from_numpy(array.values).view(values.dtype), index, array)

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        plain = [argument.values if isinstance(argument, cls) else argument for argument in arguments]
        if function is torch.ops.aten.detach.default:
            return arguments[0]
        return function(*plain, **(keywords or {}))


def of_numpy(loaded: ctypes.CDLL, index: int, values: np.ndarray) -> HostTensor:
    return HostTensor.on(loaded, index, torch.from_numpy(values))
