"""What an asynchronous call gives to torchcomms: an object with wait()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import accord
from accord.torch import streams
from accord.torch.errors import as_torch_error
from accord.torch.tensors import CopyBack
from accord.torch.work import Results


class Work:
    """A call that goes on by itself. Its results reach the caller's tensors whether or not anybody waits."""

    def __init__(self, work: accord.Work, back: Sequence[CopyBack], size: int, by_themselves: bool = True) -> None:
        self._work = work
        self._results = Results(work, back, by_themselves)
        self._ranks = range(size)

    def wait(self) -> None:
        try:
            self._wait()
        except accord.Error as error:
            raise as_torch_error(error, self._ranks) from None
        self._results.arrive()

    def _wait(self) -> None:
        self._work.wait()


class DeviceWork(Work):
    """One on a GPU: wait() lets torch's current stream wait, and not its caller. Results reach tensors that are not dense in that stream, so somebody has to
    wait."""

    def __init__(self, work: accord.Work, back: Sequence[CopyBack], size: int, device: torch.device) -> None:
        super().__init__(work, back, size, by_themselves=False)
        self._device = device

    def _wait(self) -> None:
        self._work.block(streams.current(self._device))


class Works:
    """Several as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def as_one(results: Sequence[Any]) -> Any:
    """One result for a call that ran once, or once for each tensor that its tensors hold."""
    if len(results) == 1:
        return results[0]
    works = [work for work in results if work is not None]
    return Works(works) if works else None
