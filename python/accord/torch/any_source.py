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

    def __init__(self, receive_any: Callable[[torch.Tensor, int], int], memory: torch.Tensor, tag: int) -> None:
        super().__init__()
        self._receive_any = receive_any
        self.source = -1
        self._memory = memory
        self._tag = tag

    def run(self) -> None:
        def receive() -> None:
            self.source = self._receive_any(self._memory, self._tag)

        self.do(receive)


class ReceiveWork(Work):
    def _source_rank(self) -> int:
        self.wait()
        return self._work.source


class AnySource:
    """The receives from any source of one group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[Receive]] = {}  # by tag; a tag that is present has a thread

    def start(self, comm: accord.Communicator, memory: torch.Tensor, tag: int) -> Receive:
        """Starts a receive. Raises the error of a communicator that has failed or is closed, and WrongState if there is
        none at present. Cost: a thread, unless the tag has one."""
        if (error := comm.error) is not None:
            raise error
        receive = Receive(comm.recv_any, memory, tag)  # which NotFormed does not have
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
            receive.run()
