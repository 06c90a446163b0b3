"""Calls in one of torch's coalescing blocks: they are listed, and run as one when the block ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

import accord
from accord.torch import streams
from accord.torch.c10d import never_compiled
from accord.torch.tensors import CopyBack
from accord.torch.work import NO_TIMEOUT


@dataclass
class Listed:
    """The calls of one block."""

    batch: accord.Batch
    back: list[CopyBack] = field(default_factory=list)
    device: torch.device | None = None  # device of the calls; None: the CPU
    is_open: bool = True  # until the block ends
    work: dist.Work | None = None  # set once the calls have started

    def add(self, tensors: Sequence[torch.Tensor], back: Sequence[CopyBack]) -> ListedWork:
        """Registers a call that has been added to the batch."""
        self.back.extend(back)
        self.device = streams.device_of_call()
        return ListedWork(self, tensors)


@never_compiled
class ListedWork(dist.Work):
    """The Work of one listed call. Inside the block, wait() does nothing, because torch calls it there for every call
    that is not asynchronous."""

    def __init__(self, listed: Listed, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._listed = listed
        self._tensors = list(tensors)

    def _begun(self) -> dist.Work:
        if self._listed.work is None:
            state = "has not ended yet" if self._listed.is_open else "was left by an error, and the call was never made"
            raise RuntimeError(f"accord: this call was listed in a coalescing block, which {state}")
        return self._listed.work

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return self._listed.is_open or self._begun().wait(timeout)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._listed.work is not None and self._listed.work.is_completed()

    def is_success(self) -> bool:
        return self._listed.work is not None and self._listed.work.is_success()

    def exception(self) -> accord.Error | None:
        return None if self._listed.work is None else self._listed.work.exception()

    def result(self) -> list[torch.Tensor]:
        self._begun().wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        return self._begun().get_future().then(lambda _: self._tensors)
