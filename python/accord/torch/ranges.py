"""The ranges of accord's calls in torch's profiler: "accord:all_reduce" with the shapes of the tensors it reads, from
start to end.

A range ends in a thread of its own, about 20 us after its call. This lets the profiler distinguish work that runs
concurrently with a program from what the program itself does, as it does with torch's own backends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from accord.torch import c10d
from accord.torch.threads import run_in


class Range:
    """Starts when it is created. As a context manager, it ends with the context."""

    def __init__(self, call: str, reads: Sequence[torch.Tensor]) -> None:
        self._last: torch.futures.Future = torch.futures.Future()
        self._recorded = c10d.record_until(f"accord:{call}", reads, self._last)

    def end(self) -> None:
        """Ends the range soon; wait() waits for that."""
        run_in("accord-ranges", self._last.set_result, None)

    def wait(self) -> None:
        self._recorded.wait()

    def __enter__(self) -> Range:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        self.wait()


def recorded(call: str, reads: Sequence[torch.Tensor], start: Callable):
    """Returns the Work that start() returns, in a range that ends with it."""
    span = Range(call, reads)
    try:
        work = start()
    except BaseException:
        span.end()
        raise
    work.attach_range(span)
    return work
