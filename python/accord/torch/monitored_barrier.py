"""A barrier that tells which ranks did not come, over the store alone: the group is as it was afterwards."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

import torch.distributed as dist

_PASSED = "passed"
_LOOK_EVERY_SECONDS = 0.002


def announce(store: dist.Store) -> None:
    """Rank 0 calls it before a group is made: barriers of an earlier group in the same store are none of it."""
    store.set("monitored_barrier/group", secrets.token_hex(8))


class MonitoredBarrier:
    """The monitored barriers of one group. Cost of each: a few messages to the store for each rank.

    Each rank counts its own arrivals, and rank 0 takes them one by one; a rank that gives up withdraws its own, so none is taken for a
    later barrier.
    """

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        """REQUIRES: announce() in that store, before."""
        self._root = store
        self._rank = rank
        self._size = size
        self._arrivals = [0] * size  # rank 0: that were taken or withdrawn, of each rank; others: their own
        self._store: dist.Store | None = None

    def __call__(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Returns once all ranks have called it.

        Rank 0 raises RuntimeError naming the first rank that did not come within `timeout`, or with `wait_all_ranks` all of them; the
        others tell what it found.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        if self._store is None:
            group = self._root.get("monitored_barrier/group").decode()
            self._store = dist.PrefixStore(f"monitored_barrier/{group}", self._root)
        if self._rank == 0:
            self._gather(self._store, timeout, deadline, wait_all_ranks)
        else:
            self._arrive(self._store, timeout, deadline)

    def _arrive(self, store: dist.Store, timeout: timedelta, deadline: float) -> None:
        self._arrivals[self._rank] += 1
        arrival = f"{self._rank}/{self._arrivals[self._rank]}"
        verdict = "it has not answered in time"
        store.set(arrival, "here")
        answered = _wait(store, f"{arrival}/verdict", deadline)
        if not answered and store.compare_set(arrival, "here", "gone") == b"taken":
            # Rank 0 waits for others, and answers by the end of its own timeout.
            answered = _wait(store, f"{arrival}/verdict", deadline + timeout.total_seconds())
        if answered:
            verdict = store.get(f"{arrival}/verdict").decode()
            store.delete_key(f"{arrival}/verdict")
            store.delete_key(arrival)
        if verdict != _PASSED:
            raise RuntimeError(
                f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received errors while "
                f"waiting for send/recv from rank 0: {verdict}"
            )

    def _gather(self, store: dist.Store, timeout: timedelta, deadline: float, wait_all_ranks: bool) -> None:
        milliseconds = round(timeout / timedelta(milliseconds=1))
        if milliseconds <= 0:
            raise RuntimeError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms")
        came, missing = [], []
        for rank in range(1, self._size):
            # Who comes behind the first one that is missing is told so too, if it is here already.
            arrival = self._take(store, rank, deadline if wait_all_ranks or not missing else 0)
            if arrival is not None:
                came.append(arrival)
            elif wait_all_ranks or not missing:
                missing.append(rank)
        names = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        verdict = f"{names} failed to pass monitoredBarrier in {milliseconds} ms" if missing else _PASSED
        for arrival in came:
            store.set(f"{arrival}/verdict", verdict)
        if missing:
            raise RuntimeError(f"[Rank 0]: {verdict}")

    def _take(self, store: dist.Store, rank: int, deadline: float) -> str | None:
        """The next arrival of a rank that has not been withdrawn; None if there is none by then."""
        while True:
            arrival = f"{rank}/{self._arrivals[rank] + 1}"
            if not _wait(store, arrival, deadline):
                return None
            self._arrivals[rank] += 1
            if store.compare_set(arrival, "here", "taken") == b"taken":
                return arrival
            store.delete_key(arrival)


def _wait(store: dist.Store, key: str, deadline: float) -> bool:
    """False if `key` is not set by then. (Store.wait() of torch's stores logs each timeout as an error.)"""
    while not store.check([key]):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_SECONDS)
    return True
