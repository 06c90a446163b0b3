"""Training that goes on without ranks that have died, and takes in new ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

import accord
from accord._core import ElasticMembers
from accord.torch.groups import Options, communicator
from accord.torch.reconfigurable import default_group, reconfigure, reconfigure_handle

_FAILED = 2  # in place of an answer of others_wait()
_MISMATCHES = 3  # attempts to form a group of processes that disagree
_LOG = logging.getLogger("accord.elastic")


def _checked(form_timeout: float | timedelta) -> float | timedelta:
    seconds = form_timeout.total_seconds() if isinstance(form_timeout, timedelta) else form_timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise accord.InvalidArgument(f"form_timeout is {form_timeout!r}, expected seconds, at least 0")
    return form_timeout


class Stateful(Protocol):
    """A module, an optimizer, a scheduler: anything with the state that a checkpoint holds."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class ElasticGroup:
    """The default process group, formed anew whenever ranks have died or others wait to join.

        with accord.torch.ElasticGroup.from_environment() as elastic:
            elastic.run(make_step, 1000, state=[model, optimizer])

    A program with a loop of its own calls form() at the beginning and after each failure, then synchronize(), and asks
    others_wait() after each step. Other process groups are destroyed by form(): make them again after it, and wrap the
    model in DistributedDataParallel again.
    """

    def __init__(
        self,
        store: dist.Store,
        min_ranks: int = 1,
        max_ranks: int | None = None,
        *,
        name: str = "elastic",
        last_call: float | timedelta = 10.0,
        form_timeout: float | timedelta | None = None,
        timeout: timedelta = timedelta(minutes=5),
        options: Options | None = None,
    ) -> None:
        """Takes part in the elastic group `name` of `store`, which outlives all ranks. No group is formed yet.

        name, last_call, form_timeout: as of accord.ElasticGroup. timeout and options: of the default process group,
        which is created here."""
        members = ElasticMembers.open(store, min_ranks, max_ranks, name=name, last_call=last_call)
        self._begin(members, {"store": store, "rank": 0, "world_size": 1}, form_timeout, timeout, options)

    @classmethod
    def from_environment(
        cls,
        *,
        name: str = "elastic",
        last_call: float | timedelta = 10.0,
        form_timeout: float | timedelta | None = None,
        timeout: timedelta = timedelta(minutes=5),
        options: Options | None = None,
    ) -> Self:
        """The same in the stores of the job, with the numbers of ranks in ACCORD_ELASTIC=MIN:MAX: `accord run --elastic`
        sets it."""
        self = cls.__new__(cls)
        self._begin(ElasticMembers.from_environment(name=name, last_call=last_call), {}, form_timeout, timeout, options)
        return self

    def _begin(
        self,
        members: ElasticMembers,
        rendezvous: dict[str, Any],
        form_timeout: float | timedelta | None,
        timeout: timedelta,
        options: Options | None,
    ) -> None:
        self._form_timeout = _checked(timeout if form_timeout is None else form_timeout)
        chosen = replace(options or Options(), enable_reconfigure=True)
        dist.init_process_group("accord", pg_options=chosen, timeout=timeout, **rendezvous)
        self._members = members
        self._is_finished = False
        self.round = 0  # how many groups all processes have formed, with the current one

    def form(self) -> bool:
        """Forms the default group of the ranks that live, in their order, and of the processes that wait. Returns False
        once the job is finished.

        The calls of ranks that still use the group end with an error, so that they come here as well. Waits as long as
        others work in a group that has no place for this process. Raises Timeout if too few ranks came, Mismatch if
        they have different options."""
        if dist.group.WORLD is None:
            raise accord.Aborted("the elastic group was closed")
        self._leave()
        try:
            return self._form()
        except BaseException:
            self._members.give_up()
            default_group().forget_handle()  # for which a group may wait that was agreed at this moment
            raise

    def _form(self) -> bool:
        mismatches = 0
        while True:
            round_ = self._members.next_round(reconfigure_handle(), self._form_timeout)
            if round_ is None:
                return False
            self.round, uuid, handles = round_
            try:
                reconfigure(uuid, handles, timeout=self._form_timeout)
                return True
            except accord.PeerLost:
                pass
            except accord.Timeout as error:
                self._members.report(list(error.ranks))
            except accord.Mismatch:
                mismatches += 1
                if mismatches == _MISMATCHES:
                    raise

    def _leave(self) -> None:
        communicator().abort("a rank left it to form the next group")
        for group in list(dist.distributed_c10d._world.pg_map):
            if group is not dist.group.WORLD:
                dist.destroy_process_group(group)

    def others_wait(self) -> bool:
        """Returns True if processes wait that have a place in the group, so that all ranks should call form(). Collective.
        Cost: one request of rank 0 to the store, and a broadcast."""
        answer, failure = torch.zeros(1, dtype=torch.uint8), None
        if dist.get_rank() == 0:
            try:
                answer.fill_(self._members.others_wait())
            except accord.Error as error:
                answer.fill_(_FAILED)
                failure = error
        communicator().broadcast(answer, 0)
        if int(answer) == _FAILED:
            raise failure or accord.IoError("others_wait: rank 0 cannot use the store")
        return bool(answer)

    def synchronize(self, state: Sequence[Stateful], steps: int) -> int:
        """Gives every rank the state of the rank that has finished most steps, and returns their number. Collective.

        steps: how many this rank has finished; -1 if it is new. Costs nothing but an exchange of these numbers if they
        are equal on all ranks."""
        comm = communicator()
        values = [part.state_dict() for part in state]
        for value in pytree.tree_leaves(values):
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                raise TypeError(f"accord: the state has a tensor of layout {value.layout}; only dense ones can be sent")
        all_steps = torch.empty(comm.size, dtype=torch.int64)
        comm.all_gather(torch.tensor([steps]), all_steps)
        most = int(all_steps.max())
        if most < 0 or bool((all_steps == most).all()):
            return max(most, 0)
        source = int(all_steps.argmax())
        described = [pytree.tree_map_only(torch.Tensor, _Shape, values)]
        dist.broadcast_object_list(described, source)
        if steps < most:
            values = pytree.tree_map_only(_Shape, _Shape.empty, described[0])
        for value in pytree.tree_leaves(values):
            if isinstance(value, torch.Tensor):
                comm.broadcast(value.detach().contiguous(), source)
        if steps < most:
            for part, loaded in zip(state, values, strict=True):
                part.load_state_dict(loaded)
        return most

    def run(self, make_step: Callable[[], Callable[[int], object]], steps: int, *, state: Sequence[Stateful]) -> bool:
        """Trains: calls step(0) to step(steps - 1), each on all ranks of the group at that time, and repeats a step that
        did not end on all of them. Returns once all steps are done; False if others have done the last one without this
        rank, which then lacks its result.

        make_step: called with each new group, after all ranks have the same state; returns `step`. Here belongs what
        depends on the group: DistributedDataParallel, other process groups. state: what the steps change."""
        if self._is_finished:
            raise accord.WrongState("the job of this elastic group is finished; another one needs another name")
        done, failed_at = -1, None
        while self.form():
            try:
                done = self.synchronize(state, done)
                step = make_step()
                while done < steps:
                    step(done)
                    done += 1
                    if self.others_wait():
                        break
                else:
                    dist.barrier()  # no rank needs the others' state any more
                    self.finish()
                    return True
            except Exception as error:
                cause = error if isinstance(error, accord.Error) else communicator().error
                is_loss = isinstance(cause, accord.PeerLost | accord.Aborted)
                # A rank that hangs is left out of the next group. If the step hangs there as well, it is the program.
                is_hang = isinstance(cause, accord.Timeout) and failed_at != done
                if not is_loss and not is_hang:
                    raise
                failed_at = done if is_hang else None
                _LOG.warning("step %d is repeated with the ranks that are left: %s", max(done, 0), cause)
        return done == steps

    def finish(self) -> None:
        """Tells all processes that the job is done: form() returns False from now on."""
        self._is_finished = True
        self._members.finish()

    def close(self) -> None:
        """Leaves for good, and destroys the process group; the others go on without this process."""
        self._members.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Shape:
    """A tensor of a state without its values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._size, self._dtype, self._device = tensor.size(), tensor.dtype, tensor.device

    def empty(self) -> torch.Tensor:
        return torch.empty(self._size, dtype=self._dtype, device=self._device)
