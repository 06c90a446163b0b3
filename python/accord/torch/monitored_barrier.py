"""A barrier over the store that reports which ranks did not arrive; the group remains usable afterwards. The
communicator only reports which ranks are gone.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

import accord
from accord.torch.errors import as_torch_error
from accord.torch.watched_store import FAILURE_NOTICE_SECONDS

_PASSED = "passed"
_POLL_SECONDS = 0.002


def announce(store: dist.Store) -> None:
    """Rank 0 calls this before a group is created, so that barriers of an earlier group in the store do not count."""
    store.set("monitored_barrier/group", secrets.token_hex(8))


class MonitoredBarrier:
    """The monitored barriers of one group. Cost of each: a few messages to the store per rank.

    Each rank counts its own arrivals, and rank 0 consumes them one by one. A rank that gives up withdraws its
    arrival, so that it is not taken for a later barrier.
    """

    def __init__(
        self, store: dist.Store, comm: accord.Communicator, global_ranks: Sequence[int], is_announced: bool = True
    ) -> None:
        """is_announced: announce() was called with that store; otherwise rank 0 does so at the first barrier."""
        self._root = store
        self._is_announced = is_announced
        self._comm = comm
        self._rank = comm.rank
        self._size = comm.size
        self._global_ranks = global_ranks
        # Rank 0: number of arrivals consumed or withdrawn, by rank; others: own arrivals.
        self._arrivals = [0] * comm.size
        self._store: dist.Store | None = None

    def __call__(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Returns once all ranks have called it.

        Rank 0 raises RuntimeError, which names the first rank that did not arrive within `timeout`, or all of them
        with `wait_all_ranks`; the other ranks report rank 0's result. If ranks have died or closed the group, the
        error is PeerLost, and no rank waits for them.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        if self._rank == 0:
            self._gather(self._open_store(), timeout, deadline, wait_all_ranks)
            return
        try:
            verdict = self._arrive(timeout, deadline)
        except RuntimeError as error:  # of the store, which rank 0 may host
            verdict = f"the store cannot be reached ({error})"
            _poll_until(self._comm.gone, time.monotonic() + FAILURE_NOTICE_SECONDS)
        if verdict != _PASSED:
            raise self._failure(
                f"[Rank {self._rank}]: Rank {self._rank} successfully reached monitoredBarrier, but received errors while "
                f"waiting for send/recv from rank 0: {verdict}",
                self._comm.gone()[:1],
            )

    def _open_store(self) -> dist.Store:
        if self._store is None:
            if self._rank == 0 and not self._is_announced:
                announce(self._root)
            group = self._root.get("monitored_barrier/group").decode()
            self._store = dist.PrefixStore(f"monitored_barrier/{group}", self._root)
        return self._store

    def _failure(self, text: str, lost: Sequence[int]) -> RuntimeError:
        if not lost:
            return RuntimeError(text)
        error = accord.PeerLost(f"{text}; {_names(lost)} died or closed the group")
        error.ranks = tuple(lost)
        return as_torch_error(error, self._global_ranks)

    def _arrive(self, timeout: timedelta, deadline: float) -> str:
        """Announces this rank's arrival and returns rank 0's result."""
        store = self._open_store()
        self._arrivals[self._rank] += 1
        arrival = f"{self._rank}/{self._arrivals[self._rank]}"
        store.set(arrival, "here")
        answered = self._await_verdict(store, arrival, deadline)
        # Once a rank is gone, no barrier can pass: nothing needs to be withdrawn, and rank 0 may still be waiting for
        # others.
        if not answered and not self._comm.gone() and store.compare_set(arrival, "here", "gone") == b"taken":
            # Rank 0 waits for others, and answers by the end of its own timeout.
            answered = self._await_verdict(store, arrival, deadline + timeout.total_seconds())
        if not answered:
            return "it has not answered" + ("" if self._comm.gone() else " in time")
        verdict = store.get(f"{arrival}/verdict").decode()
        store.delete_key(f"{arrival}/verdict")
        store.delete_key(arrival)
        return verdict

    def _await_verdict(self, store: dist.Store, arrival: str, deadline: float) -> bool:
        """Returns False if there is no verdict by the deadline, or soon after a rank is gone."""
        gone_since = math.inf

        def over() -> bool:
            nonlocal gone_since
            now = time.monotonic()
            if gone_since == math.inf and self._comm.gone():
                gone_since = now
            return now >= min(deadline, gone_since + FAILURE_NOTICE_SECONDS)

        return _poll_until(lambda: store.check([f"{arrival}/verdict"]), over)

    def _gather(self, store: dist.Store, timeout: timedelta, deadline: float, wait_all_ranks: bool) -> None:
        milliseconds = round(timeout / timedelta(milliseconds=1))
        if milliseconds <= 0:
            raise RuntimeError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms")
        arrivals: dict[int, str] = {}
        missing: list[int] = []
        lost: list[int] = []
        for rank in range(1, self._size):
            # Ranks after the first missing one are also notified of the result if they have already arrived.
            counts = wait_all_ranks or not missing
            watched = [rank] if wait_all_ranks else range(rank, self._size)
            arrival = self._consume_arrival(store, rank, watched, deadline if counts else 0)
            if arrival is not None:
                arrivals[rank] = arrival
            elif counts:
                gone = self._lost(store, watched)[:1]  # others may have left because of it
                missing += gone or [rank]
                lost += gone
        in_time = "" if missing == lost else f" in {milliseconds} ms"
        names = _names(missing, plural=wait_all_ranks)  # same text as gloo's, which programs look for
        verdict = f"{names} failed to pass monitoredBarrier{in_time}" if missing else _PASSED
        for arrival in arrivals.values():
            store.set(f"{arrival}/verdict", verdict)
        self._await_readers(store, arrivals)
        if missing:
            raise self._failure(f"[Rank 0]: {verdict}", lost)

    def _consume_arrival(self, store: dist.Store, rank: int, watched: Sequence[int], deadline: float) -> str | None:
        """Consumes a rank's next arrival that has not been withdrawn. Returns None if there is none by the deadline,
        or if one of `watched` is lost.
        """
        while True:
            arrival = self._next_arrival(rank)
            if not _poll_until(
                lambda key=arrival: store.check([key]),
                lambda: time.monotonic() >= deadline or bool(self._lost(store, watched)),
            ):
                return None
            self._arrivals[rank] += 1
            if store.compare_set(arrival, "here", "taken") == b"taken":
                return arrival
            store.delete_key(arrival)

    def _next_arrival(self, rank: int) -> str:
        return f"{rank}/{self._arrivals[rank] + 1}"

    def _lost(self, store: dist.Store, ranks: Sequence[int]) -> list[int]:
        """Returns the ranks that went away before they arrived."""
        return [rank for rank in self._comm.gone() if rank in ranks and not store.check([self._next_arrival(rank)])]

    def _await_readers(self, store: dist.Store, arrivals: dict[int, str]) -> None:
        """Waits a while for the ranks to read their verdicts: afterwards this rank, and with it the store, may end."""
        deadline = time.monotonic() + FAILURE_NOTICE_SECONDS
        for rank, arrival in arrivals.items():
            _poll_until(
                lambda rank=rank, key=arrival: not store.check([key]) or rank in self._comm.gone(),
                deadline,
            )


def _names(ranks: Sequence[int], plural: bool = False) -> str:
    return f"Rank{'s' if plural or len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _poll_until(found: Callable[[], object], over: Callable[[], bool] | float) -> bool:
    """Polls until `found`. Returns False if `over`, a point in time (time.monotonic()) or a condition, comes first.
    (The wait() of torch's stores logs each timeout as an error.)"""
    while not found():
        if over() if callable(over) else time.monotonic() >= over:
            return False
        time.sleep(_POLL_SECONDS)
    return True
