"""Threads in which futures end, one after the other."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_in(name: str, call: Callable, *arguments: Any) -> None:
    """Runs the call soon, in the thread of that name, created on first use. Does nothing while the interpreter shuts
    down.
    """
    with contextlib.suppress(RuntimeError):
        _thread(name).submit(call, *arguments)


@functools.cache
def _thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, name)


# A forked process does not have its parent's threads.
os.register_at_fork(after_in_child=_thread.cache_clear)
