"""The device that a process group's call is for, and its stream."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class _Call(threading.local):
    device: torch.device | None = None  # None: the CPU


_call = _Call()


def current(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.current_stream(device)


def other(device: torch.device) -> torch.cuda.Stream:
    """Returns a stream that runs beside the current one. Cost: none, torch has a few of them for each device."""
    return torch.cuda.Stream(device)


def made_current(stream: torch.cuda.Stream) -> contextlib.AbstractContextManager:
    """Context in which `stream` is the current one of its device."""
    return torch.cuda.stream(stream)


def keep(tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Keeps the tensor's memory until `stream` has done what is in it now, if the tensor is released before."""
    tensor.record_stream(stream)


def device_of_call() -> torch.device | None:
    """Returns the GPU that this thread's call is for, or None for the CPU."""
    return _call.device


@contextlib.contextmanager
def call_on(device: torch.device) -> Iterator[None]:
    """Context in which this thread's call is for that GPU."""
    _call.device = device
    try:
        yield
    finally:
        _call.device = None
