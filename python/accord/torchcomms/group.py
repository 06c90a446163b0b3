"""A communicator of torchcomms: how it is created and split, how its members and options change, and how it ends. The
calls between are in backend.py.

With enable_reconfigure it begins alone, without a communicator, and has one after reconfigure(). Any other communicator
can be reconfigured, too. What torchcomms asks for in C++ only comes from bindings/torchcomms if that is built.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence, Set
from datetime import timedelta
from typing import Any

import torch
from torchcomms import CommOptions, TorchCommBackend

import accord
from accord.torch import streams
from accord.torch.dispatcher import with_memory
from accord.torch.errors import as_torch_error
from accord.torch.formation import NotFormed, after_failure, base_of
from accord.torch.tensors import WrongDevice, check
from accord.torchcomms import rendezvous
from accord.torchcomms.arguments import Timeout
from accord.torchcomms.work import as_one

_SAME_RANKS = range(sys.maxsize)  # global ranks of a group whose ranks are the only ones that torchcomms knows


def raises_torch_errors(method: Callable) -> Callable:
    """Wraps a method: it runs for the communicator's device and for the tensors that its tensors hold, and raises
    RuntimeError, as torchcomms' other backends do. An error of accord remains an error of accord, too."""

    @functools.wraps(method)
    def call(self: Group, *arguments: Any, **keywords: Any) -> Any:
        try:
            if self._device is None:
                return as_one(with_memory(method, (self, *arguments), keywords))
            with streams.call_on(self._device):
                return as_one(with_memory(method, (self, *arguments), keywords))
        except accord.Error as error:
            raise as_torch_error(error, _SAME_RANKS) from None
        except WrongDevice as wrong:
            raise RuntimeError(
                f"this accord communicator takes tensors on {self._device or 'the CPU'}, not on {wrong.device}"
            ) from None

    return call


class Group(TorchCommBackend):
    """What torchcomms' backend is besides its calls."""

    def __init__(self) -> None:
        super().__init__()
        self._communicator: accord.Communicator | NotFormed | None = None
        self._finalized = False
        self._name = ""
        self._rank = -1
        self._size = -1
        self._timeout: float | None = None
        self._creation_timeout: float | None = None
        self._hints: dict[str, str] = {}
        self._starts_collectives = False
        self._device: torch.device | None = None  # a GPU; None: the CPU
        self._reconfiguring = threading.Lock()
        self._registered: dict[tuple[int, int], accord.DeviceWindow | None] = {}  # by address and bytes

    # Creation and shutdown

    @raises_torch_errors
    def init(self, device: torch.device, name: str, options: CommOptions) -> None:
        if self._communicator is not None or self._finalized:
            raise RuntimeError(f'communicator "{name}" is already {"finalized" if self._finalized else "initialized"}')
        self._name = name
        if device.type == "cuda":
            self._device = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        elif device.type != "cpu":
            raise RuntimeError(
                f'accord cannot create communicator "{name}" for {device}: it supports the CPU and CUDA devices'
            )
        self._configure(options, options.hints)
        if options.enable_reconfigure:
            why = "the communicator is not formed yet; call reconfigure() first"
            self._adopt(NotFormed(self._alone(), -1, 0, why))
        else:
            self._adopt(rendezvous.communicator(name, options))

    def _configure(self, options: CommOptions, hints: dict[str, str]) -> None:
        self._creation_timeout = rendezvous.timeout_of(options.timeout)
        self._hints = dict(hints)
        self._starts_collectives = rendezvous.starts_collectives(hints)

    def _adopt(self, communicator: accord.Communicator | NotFormed) -> None:
        self._communicator = communicator
        self._name, self._rank, self._size = communicator.name, communicator.rank, communicator.size

    def _alone(self) -> accord.Communicator:
        """Returns a communicator of this rank, with whose handle the group can be formed."""
        keywords = rendezvous.creation_keywords(self._hints)
        return accord.Communicator.alone(name=self._name, timeout=self._creation_timeout, **keywords)

    @raises_torch_errors
    def finalize(self) -> None:
        communicator = self.communicator
        self._communicator, self._finalized = None, True
        self._registered.clear()
        communicator.close()

    @property
    def communicator(self) -> accord.Communicator:
        """The communicator itself, for features that torchcomms does not expose to Python: timeouts of single calls,
        batches, windows, abort.

        Raises RuntimeError before init() and after finalize()."""
        if self._communicator is None:
            raise RuntimeError(
                f'communicator "{self._name}" is {"already finalized" if self._finalized else "not initialized"}'
            )
        return self._communicator

    @raises_torch_errors
    def split(self, ranks: list[int], name: str, options: CommOptions) -> Group | None:
        communicator = self.communicator
        if not ranks:
            return None
        split_ranks = communicator.split_ranks
        for rank in ranks:
            if not 0 <= rank < self._size:
                raise RuntimeError(f"split: there is no rank {rank}; the ranks are 0 to {self._size - 1}")
        if len(set(ranks)) != len(ranks):
            raise RuntimeError(f"split: the list {ranks} names a rank twice")
        if self._rank not in ranks:
            raise RuntimeError(f"split: Current rank {self._rank} is not included in the provided ranks list {ranks}")
        part = type(self)()
        part._device = self._device
        part._configure(options, rendezvous.inherited(self._hints, options.hints))
        part._adopt(split_ranks(ranks, name, **rendezvous.keywords_of(options)))
        return part

    # Properties

    def is_failed(self) -> bool:
        """Returns True once the communicator has failed or was aborted."""
        return self._communicator is not None and self._communicator.state == "failed"

    def is_ready(self) -> bool:
        return self._communicator is not None and self._communicator.state == "ready"

    def get_rank(self) -> int:
        return self._rank

    def get_size(self) -> int:
        return self._size

    def get_backend_name(self) -> str:
        return "accord"

    def get_comm_name(self) -> str:
        return self._name

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = rendezvous.timeout_of(timeout)

    @raises_torch_errors
    def set_hints(self, hints: dict[str, str]) -> None:
        """Changes the hint "async". The others count when a communicator is created: their values may only be
        repeated."""
        self._check_hints(hints)
        self._use_hints(hints)

    def _check_hints(self, hints: dict[str, str]) -> None:
        rendezvous.starts_collectives(hints)
        for name, value in sorted(hints.items()):
            if name not in ("async", "persistent_store") and self._hints.get(name) != value:
                accord.Communicator.alone(**rendezvous.creation_keywords({name: value})).close()  # names an unknown one
                raise RuntimeError(f'hint "{name}" cannot change: it counts when a communicator is created or split')

    def _use_hints(self, hints: dict[str, str]) -> None:
        self._hints.update(hints)
        self._starts_collectives = rendezvous.starts_collectives(self._hints)

    # Members

    @raises_torch_errors
    def get_init_handle(self) -> str:
        """Returns the text by which the other ranks name this one in reconfigure(). It is valid for one of them."""
        return self.communicator.handle()

    @raises_torch_errors
    def reconfigure(
        self, uuid: int, handles: Sequence[str] | Set[str], hints: dict[str, str], timeout: Timeout = None
    ) -> None:
        """Forms the communicator of the ranks with these handles: a list numbers the ranks, a set leaves their order to
        accord. All of them call it with the same `uuid`, which no earlier call had. If it fails, the communicator is as
        it was before, and the ranks may try again with new handles. Otherwise calls and windows of the earlier one that
        have not ended fail. abort() of another thread ends it. hints: as for set_hints(). Called only by _native: without
        it, torchcomms keeps the number of the earlier ranks."""
        before = self.communicator
        if not self._reconfiguring.acquire(blocking=False):
            raise accord.WrongState(f'communicator "{self._name}" is being reconfigured already')
        try:
            self._check_hints(hints)
            base = base_of(before)
            why = "the communicator is being reconfigured"
            self._communicator = NotFormed(base, before.rank, before.size, why, is_forming=True)
            try:
                formed = base.reconfigure(str(uuid), handles, timeout=timeout or self._timeout)
            except BaseException as failure:
                if not self._finalized:
                    self._communicator = after_failure(before, failure, self._alone)
                raise
            if self._finalized:
                formed.close()
                raise accord.Closed(f'communicator "{self._name}" was finalized while it was reconfigured')
            self._adopt(formed)
            self._use_hints(hints)
            self._registered = dict.fromkeys(self._registered)
            base.close()
        finally:
            self._reconfiguring.release()

    # Registered tensors

    @raises_torch_errors
    def tensor_register(self, tensor: torch.Tensor) -> None:
        """Registers a GPU tensor's memory with all ranks: collective there, of the same size on each rank. On the CPU,
        where calls use all memory alike, it has no effect."""
        communicator, memory = self.communicator, self._dense(tensor, "tensor_register")
        window = None if memory.is_cpu else communicator.device_window(memory, timeout=self._timeout)
        self._registered[memory.data_ptr(), memory.nbytes] = window

    @raises_torch_errors
    def tensor_deregister(self, tensor: torch.Tensor) -> None:
        memory = self._dense(tensor, "tensor_deregister")
        try:
            del self._registered[memory.data_ptr(), memory.nbytes]
        except KeyError:
            raise RuntimeError(
                f"tensor_deregister: a tensor of shape {tuple(tensor.shape)} on {tensor.device} is not registered"
            ) from None

    @staticmethod
    def _dense(tensor: torch.Tensor, call: str) -> torch.Tensor:
        check(tensor, call)
        if not tensor.is_contiguous():
            raise RuntimeError(f"{call} needs a dense tensor, not one with strides {tensor.stride()}")
        return tensor.detach()
