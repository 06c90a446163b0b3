"""Properties that torch queries of a process group: names, store, devices, the backend for each device, and memory."""

from __future__ import annotations

import types
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import accord
from accord.torch import c10d
from accord.torch.errors import as_torch_error
from accord.torch.tensors import dtype_name
from accord.torch.windows import Window


class Identity:
    """Mixin of a process group."""

    _comm: accord.Communicator
    _global_ranks: list[int]
    _others: Any
    _sequence_number: int
    _timeout: timedelta
    _new_timeout: timedelta | None
    _window: accord.Window | None

    def __init__(self, name: str, store: dist.Store) -> None:
        self._name = name
        self._description = "undefined"
        self._store = store
        self._splits = 0

    # torch asks a group for its backend for a device, and that backend for its capabilities. This group is its own
    # backend.

    supports_coalescing = False
    supports_shrinking = False
    supports_splitting = c10d.splits_own_backend_only()
    supports_time_estimate = _supports_time_estimate = False

    @property
    def options(self) -> types.SimpleNamespace:
        """The fields that torch reads of a backend's options."""
        return types.SimpleNamespace(backend="accord", _timeout=self._timeout)

    def comm_split_count(self) -> int:
        """Returns how often it was split: dist.split_group uses the number to describe groups."""
        return self._splits

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Does nothing: ranks outside a new group take no part in creating it."""

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Does nothing: groups are connected when they are created."""

    @property
    def _device_types(self) -> list[torch.device]:
        """Empty while torch creates the group: otherwise torch would look for a backend in C++ to record its calls."""
        return [torch.device(kind) for kind in self._others.named()]

    def _get_backend(self, device: torch.device) -> dist.ProcessGroup:
        if device.type == "cpu":
            return self
        other = self._others.group_for(device)
        if other is None:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return other._get_backend(device)

    # Other properties that torch queries of a group, with C++'s names, because C++ calls some of them.

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: ranks count their calls alike without it."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence_number

    def get_group_store(self) -> dist.Store:
        return self._store

    def getBackendName(self) -> str:  # noqa: N802
        return "accord"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    # Memory.

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return self._window is not None and device.type == "cpu"

    def allocate_tensor(
        self, size: int | Sequence[int], *, dtype: torch.dtype, device: torch.device | None = None
    ) -> torch.Tensor:
        """Allocates a tensor in the group's window; see accord.torch.empty()."""
        if self._window is None:
            text = "the group was created without a window; pass pg_options=accord.torch.Options(window_bytes=...)"
            raise as_torch_error(accord.WrongState(text), self._global_ranks)
        try:
            return torch.from_dlpack(self._window.empty(size, dtype_name(dtype)))
        except accord.Error as error:
            raise as_torch_error(error, self._global_ranks) from None

    supports_window = True

    def new_window(self, tensor: torch.Tensor | None = None) -> Window:
        """Creates a window, and registers `tensor` if one is given. Collective, as is Window.tensor_register()."""
        window = Window(self._comm, self._global_ranks, self._new_timeout)
        if tensor is not None:
            window.tensor_register(tensor)
        return window
