"""Futures that end with an operation.

What is chained to a future may communicate and wait for that (DDP's hooks do), which accord's own thread cannot. So futures end one
after the other in a thread for them; those of operations that were started there end in a second one, and so on.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import accord

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
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and nobody waits any more
            _thread(depth + 1).submit(ended.set_result, None)

    work.on_end(end)
    has_ended_before = False
    return ended


@functools.cache
def _thread(depth: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, f"accord-futures-{depth}", lambda: setattr(_here, "depth", depth))


# A forked process has no threads of its parent.
os.register_at_fork(after_in_child=_thread.cache_clear)
