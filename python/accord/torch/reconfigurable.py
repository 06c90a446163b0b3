"""Process groups whose members change: torch's reconfigure interface for fault tolerance (2.14 and newer)."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Sequence, Set
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

import accord
from accord.torch import c10d
from accord.torch.background import Background
from accord.torch.errors import as_torch_error
from accord.torch.formation import NotFormed, after_failure, base_of
from accord.torch.monitored_barrier import MonitoredBarrier
from accord.torch.process_group import ProcessGroup
from accord.torch.work import Work


class ReconfigureOptions(Protocol):
    """torch's ReconfigureOptions."""

    uuid: int | str
    handles: Sequence[str] | Set[str]
    timeout: timedelta | None


@c10d.never_compiled
class ReconfigurableProcessGroup(ProcessGroup):
    """A process group that is formed, as often as the program wants, of the ranks with given handles. It begins without
    a communicator."""

    supports_reconfigure = True

    def __init__(
        self,
        make_base: Callable[[], accord.Communicator],
        rank: int,
        size: int,
        store: dist.Store,
        timeout: timedelta,
        window_bytes: int,
    ) -> None:
        """make_base: creates a communicator of this rank alone. rank, size: those that the program passed. They count
        until the first reconfigure()."""
        why = "the group is not formed yet; call torch.distributed._reconfigure() or form() of its ElasticGroup first"
        self._make_base = make_base
        self._window_bytes = window_bytes
        self._reconfiguring = threading.Lock()
        self._changing = threading.Lock()  # of _comm and _is_shut_down
        self._is_shut_down = False
        super().__init__(NotFormed(make_base(), rank, size, why), store, list(range(size)), timeout)

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
        ended, other calls raise WrongState. If it fails, the group is as it was before, and the ranks may try again
        with new handles. Otherwise calls of the earlier group that have not ended fail. abort() ends it."""
        self._check_single_backend()
        uuid, timeout = str(opts.uuid), self._timeout if opts.timeout is None else opts.timeout
        handles = set(opts.handles) if isinstance(opts.handles, Set) else list(opts.handles)
        if not self._reconfiguring.acquire(blocking=False):
            raise as_torch_error(accord.WrongState("the group is being reconfigured already"), self._global_ranks)
        before = self._comm
        base = base_of(before)
        work = Background()
        turn = threading.Lock()  # of the thread, or of this one if it cannot start it or is interrupted before

        def form() -> None:
            if not turn.acquire(blocking=False):
                return
            failure: BaseException | None = None
            try:
                self._form(base, uuid, handles, timeout)
            except BaseException as error:
                failure = error.with_traceback(None)  # which would keep a communicator that is not used
                self._comm = after_failure(before, failure, None if self._is_shut_down else self._make_base)
            finally:
                self._reconfiguring.release()
                work.finish(failure)

        try:
            self._comm = NotFormed(base, before.rank, before.size, "the group is being reconfigured", is_forming=True)
            threading.Thread(target=form, name="accord-reconfigure", daemon=True).start()
        except BaseException:  # Ctrl-C may come when the thread runs already
            if turn.acquire(blocking=False):
                self._comm = before
                self._reconfiguring.release()
            raise
        return Work(work, (), (), range(max(len(handles), before.size)))

    def _form(self, base: accord.Communicator, uuid: str, handles: list[str] | set[str], timeout: timedelta) -> None:
        formed = base.reconfigure(uuid, handles, timeout=timeout)
        try:
            window = formed.window(self._window_bytes) if self._window_bytes else None
            groups = torch.tensor([c10d.group_count()])
            formed.all_reduce(groups, "max")
            ranks = list(range(formed.size))
            store = dist.PrefixStore(f"reconfigured {uuid}", self._store)
            barrier = MonitoredBarrier(store, formed, ranks, is_announced=False)
            with self._changing:
                if self._is_shut_down:
                    raise accord.Closed("the process group was destroyed while it was reconfigured")
                self._use(formed, ranks, window, barrier)
                c10d.renumber_ranks(self, formed.size, int(groups))
        except BaseException:
            formed.close()
            raise
        base.close()

    def give_up_forming(self) -> None:
        """Ends a reconfiguration in progress, on all ranks. The group then has no members until the next one."""
        forming = self._comm
        if isinstance(forming, NotFormed):
            forming.abort("the reconfiguration was interrupted")
        with self._reconfiguring:  # its thread has ended
            pass

    def forget_handle(self) -> None:
        """Gives up the group and its handle: ranks that have passed it to reconfigure() get an error at once."""
        with self._changing:
            former, base = self._comm, self._make_base()
            self._comm = NotFormed(base, former.rank, former.size, "the group was given up")
        former.close()

    def shutdown(self) -> None:
        with self._changing:
            self._is_shut_down = True
        super().shutdown()

    def _check_single_backend(self) -> None:
        if len({*c10d.backends_of(self).values(), "accord"}) > 1:
            raise RuntimeError("accord: a group with multiple backends cannot be reconfigured")


def reconfigure_handle() -> str:
    """Returns the text by which the other ranks name this one in reconfigure(). Like dist._get_reconfigure_handle(),
    which torch has from 2.14 on."""
    return default_group().get_reconfigure_handle()


def reconfigure(
    uuid: int | str,
    handles: Sequence[str] | Set[str],
    *,
    timeout: float | timedelta | None = None,
) -> None:
    """Forms the default group, which was created with enable_reconfigure, of the ranks with these handles; returns when
    all of them have. Like dist._reconfigure(), which torch has from 2.14 on. timeout: in seconds; None stands for the
    group's. Ctrl-C ends it on all ranks, and the next reconfigure() needs new handles."""
    limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
    options = types.SimpleNamespace(uuid=uuid, handles=handles, timeout=limit, hints={})
    group = default_group()
    try:
        group.reconfigure(options).wait()
    except KeyboardInterrupt:
        group.give_up_forming()
        raise


def default_group() -> ReconfigurableProcessGroup:
    """Returns the default group. Raises TypeError if it was not created with enable_reconfigure."""
    found = dist.group.WORLD
    if not isinstance(found, ReconfigurableProcessGroup):
        raise TypeError(f"accord: {found!r} cannot be reconfigured; create it with enable_reconfigure=True")
    return found
