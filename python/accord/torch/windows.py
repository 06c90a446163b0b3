"""torch's one-sided windows (2.14 and newer): a tensor of each rank that the other ranks write and read in place."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import accord
from accord._integers import integer
from accord.torch import c10d
from accord.torch.background import Background
from accord.torch.errors import as_torch_error
from accord.torch.tensors import source
from accord.torch.work import FinishedWork, Work

_NAME_BYTES = 32  # of a dtype
_FINISHED = FinishedWork()  # one for all calls: it has no state, and a new one takes as long as a signal


class Window:
    """One tensor of each rank. It has the methods of torch's Window, but not its class, which Python cannot extend. The
    ranks of its methods are ranks of the group."""

    def __init__(self, comm: accord.Communicator, global_ranks: Sequence[int], timeout: timedelta | None) -> None:
        """timeout: of waits; None stands for the communicator's."""
        self._comm = comm
        self._global_ranks = global_ranks
        self._timeout = timeout
        self._window: accord.Window | None = None
        self._tensor: torch.Tensor | None = None
        self._owned: torch.Tensor | None = None

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Makes `tensor`, a dense CPU tensor, this rank's part. Collective; all ranks pass tensors of one dtype, but
        may pass different sizes. The tensor's elements move to memory that the other ranks can reach, at the cost of
        one copy. Views of it that exist already stay where they were. owning: keep a reference to the tensor until
        tensor_deregister()."""
        if self._window is not None:
            raise self._error(accord.WrongState, "the window has a tensor already; call tensor_deregister() first")
        make_window = self._comm.window  # fails here if there is no group at present
        given = _unusable(tensor)
        refused = None if given is None else f"a window needs a dense tensor on the CPU, not {given}"
        self._agree(str(tensor.dtype) if refused is None else "", refused)
        window = self._run(make_window, tensor.nbytes)
        local = self._viewed(window.local, tensor)
        with torch.no_grad():
            local.copy_(tensor)
            tensor.data = local
        self._run(self._comm.barrier)  # puts of the other ranks come after the copy
        self._window, self._tensor = window, local
        self._owned = tensor if owning else None

    def _agree(self, dtype: str, refused: str | None) -> None:
        """Raises on all ranks if one of them refuses its tensor, so that none waits for it, or if dtypes differ."""
        mine = torch.zeros(_NAME_BYTES, dtype=torch.uint8)
        name = dtype.encode()
        mine[: len(name)] = torch.tensor(list(name), dtype=torch.uint8)
        names = torch.empty(self._comm.size, _NAME_BYTES, dtype=torch.uint8)
        self._run(self._comm.all_gather, mine, names.view(-1))
        if refused is not None:
            raise self._error(accord.InvalidArgument, refused)
        dtypes = [bytes(name.tolist()).rstrip(b"\0").decode() for name in names]
        for rank, other in enumerate(dtypes):
            if not other:
                raise self._error(accord.InvalidArgument, f"rank {rank} refused its tensor of the window")
        for rank, other in enumerate(dtypes):
            if other != dtype:
                text = f"a window has one dtype: rank {rank} registers {other}, rank {self._comm.rank} {dtype}"
                raise self._error(accord.Mismatch, text)

    def tensor_deregister(self) -> None:
        """Lets go of the memory; the tensor keeps it, and so do the other ranks as long as they have mapped it. Not
        collective: a program that is not done with the window orders it by a barrier."""
        self._window = self._tensor = self._owned = None

    def put(
        self, tensor: torch.Tensor, dst_rank: int, target_offset_nelems: int, async_op: bool, opts: Any = None
    ) -> dist.Work:
        """Copies `tensor` to an offset, in elements, of the tensor of `dst_rank`, which is not involved. A rank that
        waits for a later signal from this one sees it. The copy is made when this returns."""
        window, own = self._registered()
        if tensor.dtype != own.dtype:
            raise self._error(accord.InvalidArgument, f"put of {tensor.dtype} to a window of {own.dtype}")
        offset = integer(target_offset_nelems, "accord: the offset", accord.InvalidArgument)
        self._run(window.put, source(tensor, "put"), dst_rank, offset * own.itemsize)
        return _FINISHED

    def signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> dist.Work:
        """Sends one signal to `peer_rank`. Signals are counted: each ends one wait_signal()."""
        window, _ = self._registered()
        self._run(window.signal, peer_rank)
        return _FINISHED

    def wait_signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> dist.Work:
        """Waits for one signal from `peer_rank`, in the background if `async_op` is true, at the cost of a thread.
        Raises Timeout after `opts.timeout`, or else the group's timeout; the signal can still be waited for."""
        window, _ = self._registered()
        timeout = getattr(opts, "timeout", None)
        limit = self._timeout if timeout is None or timeout < timedelta(0) else timeout
        if not async_op:
            self._run(window.wait, peer_rank, timeout=limit)
            return _FINISHED
        waiting = Background()

        def wait() -> None:
            waiting.do(lambda: window.wait(peer_rank, timeout=limit))

        threading.Thread(target=wait, name="accord-wait-signal", daemon=True).start()
        return Work(waiting, (), (), self._global_ranks)

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """Returns the tensor of `rank` in place: with the shape of this rank's if both have the same size, else with
        one dimension. Raises Unsupported for a rank on another host. It stays readable after that rank's death."""
        window, own = self._registered()
        memory = self._run(window.peer, rank)
        if memory is None:
            text = f"map_remote_tensor: the memory of rank {rank} cannot be mapped here; use put and signal"
            raise self._error(accord.Unsupported, text)
        return self._viewed(memory, own)

    def get_attr(self, peer_rank: int) -> Any:
        """Returns torch's WindowAttr: access to `peer_rank` is UNIFIED if its tensor can be mapped, else SEPARATE."""
        return c10d.window_attr(self.is_mapped(peer_rank))

    def is_mapped(self, rank: int) -> bool:
        """Returns whether map_remote_tensor() has the tensor of `rank`."""
        window, _ = self._registered()
        return self._run(window.peer, rank) is not None

    def _registered(self) -> tuple[accord.Window, torch.Tensor]:
        if self._window is None or self._tensor is None:
            raise self._error(accord.WrongState, "the window has no tensor; call tensor_register() first")
        return self._window, self._tensor

    def _run(self, call: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except accord.Error as error:
            raise as_torch_error(error, self._global_ranks) from None

    def _error(self, kind: type[accord.Error], text: str) -> accord.Error:
        return as_torch_error(kind(text), self._global_ranks)

    @staticmethod
    def _viewed(memory: accord.WindowArray, like: torch.Tensor) -> torch.Tensor:
        elements = torch.from_dlpack(memory)
        elements = elements[: elements.numel() // like.itemsize * like.itemsize].view(like.dtype)
        return elements.view(like.shape) if elements.numel() == like.numel() else elements


def _unusable(tensor: Any) -> str | None:
    """Returns what kind of tensor it is, if no window can have it."""
    if not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__}"
    if tensor.device.type != "cpu":
        return f"one on {tensor.device}"
    if tensor.layout is not torch.strided:
        return f"one of layout {tensor.layout}"
    if tensor.is_quantized or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__} of {tensor.dtype}"
    return None if tensor.is_contiguous() else f"one with strides {tensor.stride()}"
