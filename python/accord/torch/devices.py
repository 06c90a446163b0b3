"""Tensors of other devices than the CPU, for which torch has backends of its own: "cuda" in "cpu:accord,cuda:nccl"."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from accord.torch import c10d
from accord.torch.tensors import WrongDevice


class OtherDevices:
    """A group of torch's for each other device, made when the first tensor of it comes."""

    def __init__(self, group: dist.ProcessGroup, store: dist.Store, timeout: timedelta) -> None:
        self._group = weakref.ref(group)
        self._store = store
        self._timeout = timeout
        self._groups: dict[str, dist.ProcessGroup | None] = {}

    def group_for(self, device: torch.device) -> dist.ProcessGroup | None:
        """None if the program named no backend for `device`."""
        if device.type not in self._groups:
            group = self._group()
            name = c10d.backends_of(group).get(device.type)
            self._groups[device.type] = name and c10d.make_group(
                name, device.type, self._store, group.rank(), group.size(), self._timeout
            )
        return self._groups[device.type]

    def groups(self) -> list[dist.ProcessGroup]:
        return [group for group in self._groups.values() if group is not None]


def on_its_device(method: Callable) -> Callable:
    """A call of the process group that goes to the other group where the tensors lie on its device."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> dist.Work:
        try:
            return method(self, *arguments, **keywords)
        except WrongDevice as wrong:
            other = self._others.group_for(wrong.device)
            if other is None:
                raise TypeError(str(wrong)) from None
            return getattr(other, method.__name__)(*arguments, **keywords)

    return call
