"""Receives from any source. accord's call for these blocks, so the receives of a tag run in a thread, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import torch

import accord
from accord.torch.work import Work


class Receive:
    """A receive in progress, with the interface of accord.Work, and the rank of the sender."""

    def __init__(self, memory: torch.Tensor, tag: int) -> None:
        self.source = -1
        self.error: BaseException | None = None
        self._memory = memory
        self._tag = tag
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._at_end: list[Callable[[accord.Error | None], object]] = []

    def run(self, comm: accord.Communicator) -> None:
        try:
            self.source = comm.recv_any(self._memory, self._tag)
        except BaseException as error:
            self.error = error
        with self._lock:
            self._ended.set()
            callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback(self.error)

    def test(self) -> bool:
        return self._ended.is_set()

    def on_end(self, callback: Callable[[accord.Error | None], object]) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._at_end.append(callback)
                return
        callback(self.error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        ended = self._ended.wait(None if timeout is None else timeout.total_seconds())
        if self.error is not None:
            raise self.error
        return ended


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

    def start(self, memory: torch.Tensor, tag: int) -> Receive:
        """Starts a receive. Cost: a thread, unless the tag has one."""
        receive = Receive(memory, tag)
        with self._lock:
            if tag in self._waiting:
                self._waiting[tag].append(receive)
            else:
                self._waiting[tag] = deque([receive])
                threading.Thread(target=self._serve, args=(tag,), name="accord-receive", daemon=True).start()
        return receive

    def _serve(self, tag: int) -> None:
        while True:
            with self._lock:
                if not self._waiting[tag]:
                    del self._waiting[tag]
                    return
                receive = self._waiting[tag].popleft()
            receive.run(self._comm)
