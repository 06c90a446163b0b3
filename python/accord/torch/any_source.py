"""Receives from any source. accord's call for these blocks, so the receives of a tag run in a thread, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

import accord
from accord.torch.background import Background
from accord.torch.work import Work


class Receive(Background):
    """A receive in progress, and the rank of the sender."""

    def __init__(self, memory: torch.Tensor, tag: int) -> None:
        super().__init__()
        self.source = -1
        self._memory = memory
        self._tag = tag

    def run(self, comm: accord.Communicator) -> None:
        def receive() -> None:
            self.source = comm.recv_any(self._memory, self._tag)

        self.do(receive)


class ReceiveWork(Work):
    def _source_rank(self) -> int:
        self.wait()
        return self._work.source


class AnySource:
    """The receives from any source of one group."""

    def __init__(self, comm: accord.Communicator) -> None:
        self._comm = comm
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[Receive]] = {}  # by tag; a tag that is present has a thread

    def start(self, memory: torch.Tensor, tag: int, at_end: Callable[[BaseException | None], object]) -> Receive:
        """Starts a receive, which calls `at_end` with its error. Cost: a thread, unless the tag has one."""
        receive = Receive(memory, tag)
        receive.on_end(at_end)
        with self._lock:
            if tag in self._waiting:
                self._waiting[tag].append(receive)
            else:
                self._waiting[tag] = deque([receive])
                try:
                    threading.Thread(target=self._serve, args=(tag,), name="accord-receive", daemon=True).start()
                except RuntimeError:  # the machine has no thread left
                    del self._waiting[tag]
                    raise
        return receive

    def _serve(self, tag: int) -> None:
        while True:
            with self._lock:
                if not self._waiting[tag]:
                    del self._waiting[tag]
                    return
                receive = self._waiting[tag].popleft()
            receive.run(self._comm)
