"""The place of a communicator in a group whose members change while it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import accord
from accord.torch.errors import as_torch_error


class NotFormed:
    """Takes the place of the communicator of a group that has none at present. Calls raise WrongState."""

    def __init__(self, base: accord.Communicator, rank: int, size: int, why: str, is_forming: bool = False) -> None:
        """base: the communicator with whose handle the group can be formed again, or is at present."""
        self.base = base
        self.rank = rank
        self.size = size
        self.name = base.name
        self.state = "not formed"
        self.error: accord.Error | None = None
        self._why = why
        self._is_forming = is_forming

    def handle(self) -> str:
        return self.base.handle()

    def gone(self) -> list[int]:
        return []

    def abort(self, reason: str) -> None:
        """Ends a reconfiguration in progress, on all ranks."""
        if self._is_forming:
            self.base.close()

    def close(self) -> None:
        self.base.close()

    def __getattr__(self, call: str) -> Any:
        raise as_torch_error(accord.WrongState(f'{call} on group "{self.name}": {self._why}'), ())


def base_of(comm: accord.Communicator | NotFormed) -> accord.Communicator:
    """Returns the communicator with whose handle the group can be formed again."""
    return comm.base if isinstance(comm, NotFormed) else comm


def after_failure(
    before: accord.Communicator | NotFormed,
    failure: BaseException,
    make_base: Callable[[], accord.Communicator] | None,
) -> accord.Communicator | NotFormed:
    """Returns what a group has after a reconfiguration failed: what it had before it, or a new base if abort() closed
    that.

    failure: the reconfiguration's, which may be Closed before close() has ended. make_base: creates a communicator of
    this rank alone; None: the group has ended, and needs no base."""
    is_closed = isinstance(failure, accord.Closed) or base_of(before).state == "closed"
    if not is_closed or make_base is None:
        return before
    return NotFormed(make_base(), before.rank, before.size, "the reconfiguration was aborted")
