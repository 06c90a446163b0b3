"""Process groups whose members change: torch's reconfigure interface for fault tolerance (2.14 and newer)."""

from __future__ import annotations

import threading
import types
from collections.abc import Sequence, Set
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

import accord
from accord.torch import c10d
from accord.torch.background import Background
from accord.torch.errors import as_torch_error
from accord.torch.monitored_barrier import announce
from accord.torch.process_group import ProcessGroup
from accord.torch.work import Work


class ReconfigureOptions(Protocol):
    """torch's ReconfigureOptions."""

    uuid: int | str
    handles: Sequence[str] | Set[str]
    timeout: timedelta | None


class NotFormed:
    """Takes the place of the communicator of a group that has none at present. Calls raise WrongState."""

    def __init__(self, base: accord.Communicator, rank: int, size: int, why: str) -> None:
        """base: the communicator with whose handle the group can be formed again."""
        self.base = base
        self.rank = rank
        self.size = size
        self.name = base.name
        self.state = "failed"
        self.error: accord.Error | None = None
        self._why = why

    def handle(self) -> str:
        return self.base.handle()

    def gone(self) -> list[int]:
        return []

    def abort(self, reason: str) -> None:
        """Does nothing: there is no call that could be ended."""

    def close(self) -> None:
        self.base.close()

    def __getattr__(self, call: str) -> Any:
        raise as_torch_error(accord.WrongState(f'{call} on group "{self.name}": {self._why}'), range(self.size))


@c10d.never_compiled
class ReconfigurableProcessGroup(ProcessGroup):
    """A process group that is formed, as often as the program wants, of the ranks with given handles. It begins without
    a communicator."""

    supports_reconfigure = True

    def __init__(
        self,
        base: accord.Communicator,
        rank: int,
        size: int,
        store: dist.Store,
        timeout: timedelta,
        window_bytes: int,
    ) -> None:
        """rank, size: those that the program passed. They count until the first reconfigure()."""
        why = "the group is not formed yet; call torch.distributed._reconfigure() first"
        self._window_bytes = window_bytes
        self._reconfiguring = threading.Lock()
        super().__init__(NotFormed(base, rank, size, why), store, list(range(size)), timeout)

    # torch calls the first two from Python, the others from C++.

    def rank(self) -> int:
        return self._comm.rank

    def size(self) -> int:
        return self._comm.size

    def getRank(self) -> int:  # noqa: N802
        return self._comm.rank

    def getSize(self) -> int:  # noqa: N802
        return self._comm.size

    def get_reconfigure_handle(self) -> str:
        """Returns the text by which the other ranks name this one in reconfigure(). It is valid for one of them."""
        self._check_single_backend()
        try:
            return self._comm.handle()
        except accord.Error as error:
            raise as_torch_error(error, self._global_ranks) from None

    def reconfigure(self, opts: ReconfigureOptions) -> dist.Work:
        """Forms the group of the ranks with `opts.handles`, in the background: a list numbers the ranks, a set leaves
        their order to accord. All of them call it with the same `opts.uuid`, which no earlier call had. Until it has
        ended, other calls raise WrongState. If it fails, the group is as it was before, and the ranks may try again with
        new handles. Otherwise calls of the earlier group that have not ended fail."""
        self._check_single_backend()
        if not self._reconfiguring.acquire(blocking=False):
            raise as_torch_error(accord.WrongState("the group is being reconfigured already"), self._global_ranks)
        before = self._comm
        base = before.base if isinstance(before, NotFormed) else before
        timeout = self._timeout if opts.timeout is None else opts.timeout
        handles = set(opts.handles) if isinstance(opts.handles, Set) else list(opts.handles)
        self._comm = NotFormed(base, before.rank, before.size, "the group is being reconfigured")
        work = Background()
        thread = threading.Thread(
            target=self._form,
            args=(before, base, str(opts.uuid), handles, timeout, work),
            name="accord-reconfigure",
            daemon=True,
        )
        thread.start()
        return Work(work, (), (), range(max(len(handles), self._comm.size)))

    def _form(
        self,
        before: accord.Communicator | NotFormed,
        base: accord.Communicator,
        uuid: str,
        handles: list[str] | set[str],
        timeout: timedelta,
        work: Background,
    ) -> None:
        try:
            formed = base.reconfigure(uuid, handles, timeout=timeout)
            window = formed.window(self._window_bytes) if self._window_bytes else None
            store = dist.PrefixStore(f"reconfigured {uuid}", self._store)
            if formed.rank == 0:
                announce(store)
        except BaseException as error:
            self._comm = before
            self._reconfiguring.release()
            work.finish(error)
            return
        self._use(formed, list(range(formed.size)), window, store)
        c10d.renumber_ranks(self, formed.size)
        base.close()
        self._reconfiguring.release()
        work.finish()

    def _check_single_backend(self) -> None:
        if len({*c10d.backends_of(self).values(), "accord"}) > 1:
            raise RuntimeError("accord: a group with multiple backends cannot be reconfigured")


def reconfigure_handle(group: dist.ProcessGroup | None = None) -> str:
    """Returns the text by which the other ranks name this one in reconfigure(). `group`: None stands for the default
    group. Like dist._get_reconfigure_handle(), which torch has from 2.14 on."""
    return _reconfigurable(group).get_reconfigure_handle()


def reconfigure(
    uuid: int | str,
    handles: Sequence[str] | Set[str],
    *,
    timeout: float | timedelta | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Forms `group` (None: the default group), which was created with enable_reconfigure, of the ranks with these
    handles; returns when all of them have. Like dist._reconfigure(), which torch has from 2.14 on. timeout: in seconds;
    None stands for the group's."""
    limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
    options = types.SimpleNamespace(uuid=uuid, handles=handles, timeout=limit, hints={})
    _reconfigurable(group).reconfigure(options).wait()


def _reconfigurable(group: dist.ProcessGroup | None) -> ReconfigurableProcessGroup:
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, ReconfigurableProcessGroup):
        raise TypeError(f"accord: {found!r} cannot be reconfigured; create it with enable_reconfigure=True")
    return found
