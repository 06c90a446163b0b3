"""Tensors on devices other than the CPU: on accord's GPUs as in "cpu:accord,cuda:accord", and on devices for which
torch has backends of its own, as in "cpu:accord,cuda:nccl"."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from accord.torch import c10d, streams
from accord.torch.dispatcher import with_memory
from accord.torch.tensors import WrongDevice
from accord.torch.work import as_one


class OtherDevices:
    """A torch group for each other device, created when the first tensor on that device is passed."""

    def __init__(self, group: dist.ProcessGroup, store: dist.Store, timeout: timedelta, options: Any = None) -> None:
        self._group = weakref.ref(group)
        self._store = store
        self._timeout = timeout
        self._options = options  # for the backends of other devices
        self._groups: dict[str, dist.ProcessGroup | None] = {}
        self._creation_lock = threading.RLock()
        self._being_created: str | None = None
        self._inherited: dict[str, str] = {}

    def inherit(self, parent: OtherDevices, devices: list[torch.device] | None) -> None:
        """Until torch knows this group, it has the backends of its split `parent`, for all devices or for these."""
        kinds = None if devices is None else {device.type for device in devices}
        self._inherited = {kind: name for kind, name in parent._backends().items() if kinds is None or kind in kinds}

    def _backends(self) -> dict[str, str]:
        return c10d.backends_of(self._group()) or self._inherited

    def group_for(self, device: torch.device) -> dist.ProcessGroup | None:
        """Returns the group for `device`, or None if the program named no backend for it."""
        with self._creation_lock:
            if device.type not in self._groups:
                group = self._group()
                name = self._backends().get(device.type)
                self._being_created = device.type
                try:
                    self._groups[device.type] = name and c10d.make_group(
                        name, device.type, self._store, group.rank(), group.size(), self._timeout, self._options
                    )
                finally:
                    self._being_created = None
            return self._groups[device.type]

    def named(self) -> list[str]:
        """Returns the kinds of device that the program named backends for, including the CPU, but not one whose group
        is being created, because its creator may ask."""
        return [kind for kind in self._backends() if kind != self._being_created]

    def are_own(self, device: torch.device) -> bool:
        """Returns True if the program named accord for `device`: "cuda" in "cpu:accord,cuda:accord"."""
        return device.type == "cuda" and self._backends().get("cuda") == "accord"

    def other_for(self, device: torch.device) -> dist.ProcessGroup | None:
        """Returns the group that runs the calls on `device`, or None if that is accord's own. Raises TypeError if the
        program named no backend for it."""
        if device.type == "cpu" or self.are_own(device):
            return None
        if (other := self.group_for(device)) is None:
            raise TypeError(str(WrongDevice(device, "a block of calls")))
        return other

    def wait_for_own(self) -> None:
        """Waits for this rank's work in the current stream of a GPU that accord serves."""
        if torch.cuda.is_initialized() and self._backends().get("cuda") == "accord":
            streams.current(torch.device("cuda", torch.cuda.current_device())).synchronize()

    def groups(self) -> list[dist.ProcessGroup]:
        return [group for group in self._groups.values() if group is not None]


def on_its_device(method: Callable) -> Callable:
    """Wraps a call of the process group. If its tensors are on a GPU that accord serves, the call is for that GPU; if
    another group serves their device, the call is passed to it. For tensors that hold others, the inner tensors
    count."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> dist.Work:
        try:
            return as_one(with_memory(method, (self, *arguments), keywords))
        except WrongDevice as wrong:
            if self._others.are_own(wrong.device):
                with streams.call_on(wrong.device):
                    return as_one(with_memory(method, (self, *arguments), keywords))
            other = self._others.group_for(wrong.device)
            if other is None:
                raise TypeError(str(wrong)) from None
            return getattr(other, method.__name__)(*arguments, **keywords)

    return call
