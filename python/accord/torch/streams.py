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
