"""torchft's process group over accord: what torchft.Manager takes as `pg` (docs/pytorch.md). It needs torchft."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

import accord
from accord.torch.c10d import never_compiled
from accord.torch.errors import as_torch_error
from accord.torch.monitored_barrier import announce
from accord.torch.process_group import ProcessGroup as TorchProcessGroup
from accord.torch.work import NO_TIMEOUT


@never_compiled
class _ManagedWork(dist.Work):
    """An all_reduce of torchft's manager, which looks for a failure in its future: the hook of torchft's
    DistributedDataParallel needs that future also if wait() finds the failure."""

    def __init__(self, work: dist.Work) -> None:
        super().__init__()
        self._work = work

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns False if the call failed."""
        try:
            return self._work.wait(timeout)
        except accord.Error:
            return False

    def get_future(self) -> torch.futures.Future:
        return self._work.get_future()

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> BaseException | None:
        return self._work.exception()


class ProcessGroup(ProcessGroupWrapper):
    """A process group of CPU ranks that torchft configures anew with each quorum.

    The members find each other in torchft's store and then form a group by their handles, so that a member that has
    died in the meantime is named at once. A failed call of one member fails the calls of all, within a second of a
    death. timeout: for configuring and for each call."""

    def __init__(
        self,
        timeout: timedelta = timedelta(seconds=60),
        *,
        transport: str | None = None,
        select: str = "",
        hints: str = "",
    ) -> None:
        super().__init__(timeout)
        self._options = {"transport": transport, "select": select, "hints": hints}

    def getBackendName(self) -> str:  # noqa: N802
        return "torchft-accord"

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> TorchProcessGroup:
        ranks = self._global_ranks or list(range(world_size))
        try:
            alone = accord.Communicator.alone(name="torchft", timeout=self._timeout, **self._options)
            store.set(f"handle/{rank}", alone.handle())
            handles = [store.get(f"handle/{member}").decode() for member in range(world_size)]
            comm = alone.reconfigure("torchft", handles)
            alone.close()
        except accord.Error as error:
            raise as_torch_error(error, range(world_size)) from None
        if rank == 0:
            announce(store)
        return TorchProcessGroup(comm, store, ranks, self._timeout)

    def allreduce(self, tensors: list[torch.Tensor], opts: object) -> dist.Work:
        return _ManagedWork(super().allreduce(tensors, opts))

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        if isinstance(self._pg, TorchProcessGroup):
            self._pg.set_timeout(timeout)

    def errored(self) -> Exception | None:
        """Returns why the group has failed; None while it works."""
        return self._pg.communicator.error if isinstance(self._pg, TorchProcessGroup) else None

    def shutdown(self) -> None:
        if isinstance(self._pg, TorchProcessGroup):
            self._pg.shutdown()
        super().shutdown()
