"""A barrier that tells which ranks did not come, over the store alone: the group is as it was afterwards."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

_PASSED = "passed"
_LOOK_EVERY_SECONDS = 0.002


class MonitoredBarrier:
    """The monitored barriers of one group. Cost of each: a few messages to the store for each rank.

    Each rank counts its own arrivals, and rank 0 takes them one by one, so that a rank that missed one is not out of step for ever.
    """

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store = dist.PrefixStore("monitored_barrier", store)
        self._rank = rank
        self._size = size
        self._arrivals = [0] * size  # rank 0: that were taken, of each rank; others: their own

    def __call__(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Returns once all ranks have called it.

        Rank 0 raises RuntimeError naming the first rank that did not come within `timeout`, or with `wait_all_ranks` all of them; the
        others tell what it found.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        if self._rank == 0:
            self._gather(timeout, deadline, wait_all_ranks)
        else:
            self._arrive(deadline)

    def _arrive(self, deadline: float) -> None:
        self._arrivals[self._rank] += 1
        arrival = f"{self._rank}/{self._arrivals[self._rank]}"
        self._store.set(arrival, "here")
        came = self._wait(f"{arrival}/verdict", deadline)
        verdict = self._store.get(f"{arrival}/verdict").decode() if came else "it has not answered in time"
        if verdict != _PASSED:
            raise RuntimeError(
                f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received errors while "
                f"waiting for send/recv from rank 0: {verdict}"
            )

    def _gather(self, timeout: timedelta, deadline: float, wait_all_ranks: bool) -> None:
        milliseconds = round(timeout / timedelta(milliseconds=1))
        if milliseconds <= 0:
            raise RuntimeError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms")
        came, missing = [], []
        for rank in range(1, self._size):
            arrival = f"{rank}/{self._arrivals[rank] + 1}"
            if self._wait(arrival, deadline):
                self._arrivals[rank] += 1
                came.append(arrival)
            else:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        names = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, missing))}"
        verdict = f"{names} failed to pass monitoredBarrier in {milliseconds} ms" if missing else _PASSED
        for arrival in came:
            self._store.set(f"{arrival}/verdict", verdict)
        if missing:
            raise RuntimeError(f"[Rank 0]: {verdict}")

    def _wait(self, key: str, deadline: float) -> bool:
        """False if `key` is not set by then. (Store.wait() of torch's stores logs each timeout as an error.)"""
        while not self._store.check([key]):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_EVERY_SECONDS)
        return True
