"""The result of an asynchronous call for torchcomms: an object with wait()."""

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
    """A call that progresses in the background. Its results reach the caller's tensors even if no thread waits."""

    def __init__(self, work: accord.Work, back: Sequence[CopyBack], size: int, without_waiting: bool = True) -> None:
        self._work = work
        self._results = Results(work, back, without_waiting)
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
    """A call on a GPU: wait() makes torch's current stream wait, not its caller. Results for tensors that are not
    dense are copied in that stream, so wait() must be called."""

    def __init__(self, work: accord.Work, back: Sequence[CopyBack], size: int, device: torch.device) -> None:
        super().__init__(work, back, size, without_waiting=False)
        self._device = device

    def _wait(self) -> None:
        self._work.block(streams.current(self._device))


class Works:
    """Several calls as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def as_one(results: Sequence[Any]) -> Any:
    """Returns one result for a call that ran once, or once for each tensor that its tensors hold."""
    if len(results) == 1:
        return results[0]
    works = [work for work in results if work is not None]
    return Works(works) if works else None
