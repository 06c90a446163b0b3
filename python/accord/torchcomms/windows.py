"""torchcomms' windows: those of torch.distributed, with torchcomms' options and its collective tensor_deregister()."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

import accord
from accord.torch import windows
from accord.torch.tensors import WrongDevice
from accord.torchcomms.arguments import Timeout


class Window(windows.Window):
    """One tensor of each rank, on the CPU, that the other ranks write and read in place. Used by _native."""

    def __init__(self, comm: accord.Communicator, timeout: float | None) -> None:
        super().__init__(comm, range(sys.maxsize), timeout)

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor that the window keeps a reference to."""
        return self._owned

    def tensor_deregister(self) -> None:
        """Lets go of the memory once all ranks are here, so that none of them still writes it. The tensor keeps it."""
        self._registered()
        try:
            self._run(self._comm.barrier, timeout=self._timeout)
        finally:
            super().tensor_deregister()

    def clone(self) -> Window:
        """Returns another window of the same ranks, with a copy of the tensor if there is one. Collective then."""
        other = Window(self._comm, self._timeout)
        if self._tensor is not None:
            other.tensor_register(self._tensor.clone())
        return other

    def put(self, tensor: torch.Tensor, dst_rank: int, offset: int, async_op: bool, timeout: Timeout = None) -> Any:
        try:
            return super().put(tensor, dst_rank, offset, async_op)
        except WrongDevice as wrong:
            raise self._error(
                accord.InvalidArgument, f"put of a tensor on {wrong.device} to a window on the CPU"
            ) from None

    def signal(self, peer_rank: int, async_op: bool, timeout: Timeout = None) -> Any:
        return super().signal(peer_rank, async_op)

    def wait_signal(self, peer_rank: int, async_op: bool, timeout: Timeout = None) -> Any:
        return super().wait_signal(peer_rank, async_op, types.SimpleNamespace(timeout=timeout))
