"""Futures that end with an operation, or on a GPU once the operation is in its stream.

A function chained to a future may communicate and wait for that (DDP's hooks do), which accord's own thread must not.
Futures therefore end one after the other in a thread of their own; futures of operations started there end in a
second thread, and so on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

import accord
from accord.torch.threads import run_in

_here = threading.local()


def future_of(work: accord.Work) -> torch.futures.Future:
    """Returns a future without a value that ends after `work`, whether it succeeds or fails."""
    ended: torch.futures.Future = torch.futures.Future()
    caller, depth = threading.get_ident(), getattr(_here, "depth", 0)
    has_ended_before = True  # if end() is called here, and not later by this thread while it drives the operation

    def end(_: accord.Error | None) -> None:
        if has_ended_before and threading.get_ident() == caller:
            ended.set_result(None)
            return
        run_in(f"accord-futures-{depth + 1}", _end_at, depth + 1, ended)

    work.on_end(end)
    has_ended_before = False
    return ended


def future_on(device: torch.device, tensors: Sequence[torch.Tensor]) -> torch.futures.Future:
    """Returns a future that has ended with `tensors`, which the device's current stream produces. Streams in which a
    program waits for it, or in which functions chained to it run, wait for that stream."""
    ended: torch.futures.Future = torch.futures.Future(devices=[device])
    ended.set_result(list(tensors))
    return ended


def _end_at(depth: int, ended: torch.futures.Future) -> None:
    _here.depth = depth
    ended.set_result(None)
