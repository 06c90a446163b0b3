"""The store in which ranks meet to create a group. It notifies waiting ranks if a rank of the default group is gone."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch.distributed as dist

import accord

FAILURE_NOTICE_SECONDS = 0.5  #: until a death is known
_POLL_SECONDS = 0.01


class WatchedStore:
    """`store` for accord.Communicator.create(), which polls for missing keys with check()."""

    def __init__(
        self, store: dist.Store, name: str, world: accord.Communicator | None, global_ranks: Sequence[int]
    ) -> None:
        """name, global_ranks: of the new group. world: the default group's communicator, or None if there is none."""
        self._store = store
        self._name = name
        self._world = world
        self._global_ranks = global_ranks
        self.set, self.get, self.add, self.delete_key = store.set, store.get, store.add, store.delete_key

    def describe(self) -> str:
        return f"torch's {type(self._store).__name__}"

    def check(self, keys: list[str]) -> bool:
        """Returns True if all keys are set. Raises PeerLost if one is not set and a rank of the new group is gone."""
        gone = self._first_gone()  # before polling: keys that a rank set before it went away are present
        if self._store.check(keys):
            return True
        if gone is not None:
            raise self._lost(gone)
        return False

    def cause_of(self, failure: accord.Error) -> accord.Error:
        """Returns the cause of a failure of create(), which may be a failed store that was lost with a rank, or ranks
        that left because of another.
        """
        if isinstance(failure, accord.IoError):
            deadline = time.monotonic() + FAILURE_NOTICE_SECONDS
            while self._first_gone() is None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        gone = self._first_gone() if isinstance(failure, (accord.IoError, accord.PeerLost)) else None
        return failure if gone is None else self._lost(gone)

    def _first_gone(self) -> int | None:
        """Returns the rank of the new group that went away first; others may have left because of it."""
        gone = self._world.gone() if self._world is not None else []
        return next((self._global_ranks.index(rank) for rank in gone if rank in self._global_ranks), None)

    def _lost(self, rank: int) -> accord.PeerLost:
        error = accord.PeerLost(
            f'creating group "{self._name}" in {self.describe()}: rank {self._global_ranks[rank]} of the default group died or closed it'
        )
        error.ranks = (rank,)
        return error
