"""Futures that end with an operation.

What is chained to a future may communicate and wait for that (DDP's hooks do), which accord's own thread cannot. So futures end one
after the other in a thread for them; those of operations that were started there end in a second one, and so on.
"""

from __future__ import annotations

import threading

import torch

import accord
from accord.torch.threads import run_in

_here = threading.local()


def future_of(work: accord.Work) -> torch.futures.Future:
    """A future without a value that ends after `work`, well or not."""
    ended: torch.futures.Future = torch.futures.Future()
    caller, depth = threading.get_ident(), getattr(_here, "depth", 0)
    has_ended_before = True  # if end() is called here, and not when this thread drives the operation later

    def end(_: accord.Error | None) -> None:
        if has_ended_before and threading.get_ident() == caller:
            ended.set_result(None)
            return
        run_in(f"accord-futures-{depth + 1}", _end_at, depth + 1, ended)

    work.on_end(end)
    has_ended_before = False
    return ended


def _end_at(depth: int, ended: torch.futures.Future) -> None:
    _here.depth = depth
    ended.set_result(None)
