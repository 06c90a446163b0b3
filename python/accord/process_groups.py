"""Process groups of torch.distributed, of any backend, and accord's own communicators over their ranks.

One communicator is created for each group and shared by all engines and expert groups over it; it closes when the
last of them is gone. The ranks meet in the group's store. At each request, the ranks report there whether they still
have the communicator of the last time: if one rank has released it, all create a new one.
"""

from __future__ import annotations

import secrets
import socket
import weakref
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist

import accord
from accord.torch import c10d

Group = dist.ProcessGroup | accord.Communicator
_LOCAL_BACKENDS_WITHOUT_STORE = ("mpi",)


def process_group(given) -> dist.ProcessGroup:
    """Returns the group that a functional collective names or is given."""
    return dist.distributed_c10d._resolve_process_group(given) if isinstance(given, str) else given


def logical_name(group: dist.ProcessGroup) -> str:
    """Returns an engine's name for a group: the dimension of its device mesh, the group_desc it was created with, or
    "world".
    """
    if group is dist.group.WORLD:
        return "world"
    described = group.group_desc.removeprefix("mesh_")
    return described if described not in ("", "undefined", "default_pg") else f"group_{group.group_name}"


def place_in(group: Group) -> tuple[int, int]:
    """Returns this rank's place (rank, size) in the group."""
    if isinstance(group, accord.Communicator):
        return group.rank, group.size
    return group.rank(), group.size()  # dist.get_rank() needs ranks of the default group, and a group may have others


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Returns the timeout of a group's calls, for accord's backend and others."""
    return getattr(group, "timeout", None) or c10d.timeout_of(group)


class SharedCommunicator:
    """A communicator with several holders; it closes when the last of them releases it."""

    def __init__(self, communicator: accord.Communicator, name: str) -> None:
        """name: unique among all that ever existed."""
        self.communicator = communicator
        self.name = name

    def serves(self, rank: int, size: int) -> bool:
        """Returns True if it works, and is for a group in which this rank has that place."""
        comm = self.communicator
        return comm.state == "ready" and (comm.rank, comm.size) == (rank, size)


_FAILED = "failed: "  # no name has this prefix

_shared: weakref.WeakValueDictionary[str, SharedCommunicator] = weakref.WeakValueDictionary()


def shared_communicator(
    group: Group, failure: Exception | None = None, timeout: timedelta | None = None
) -> SharedCommunicator:
    """Returns accord's communicator over the ranks of the group. Collective over the group; cost: a few messages to
    the group's store, and about 10 ms if it is created. failure: why this rank cannot bind its engine; then all ranks
    of a process group raise Mismatch with it (ranks of a communicator do when the engine is bound). timeout: how long
    to wait for all ranks to arrive, after which accord.Timeout names those that did not; by default the group's,
    which also applies to the communicator's calls."""
    if isinstance(group, accord.Communicator):
        return SharedCommunicator(group, group.name)
    rank, size = place_in(group)
    # Groups with the same name and no rank in common share a place in torch's store (accord/torch/groups.py).
    store, prefix = _meeting_store(group), f"accord/engines/{group.group_name}/{c10d.first_rank_of(group)}"
    held = _shared.get(prefix)
    if held is not None and not held.serves(rank, size):
        held = None
    call = f"{prefix}/{store.add(f'{prefix}/calls/{rank}', 1)}"
    verdict = _agree(store, call, rank, size, held.name if held else None, failure, timeout or timeout_of(group))
    if verdict.startswith(_FAILED):
        raise failure or accord.Mismatch(verdict.removeprefix(_FAILED))
    if held is not None and verdict == held.name:
        return held
    communicator = accord.Communicator.create(
        dist.PrefixStore(call, store), rank, size, name=f"{logical_name(group)} (engines)", timeout=timeout_of(group)
    )
    shared = _shared[prefix] = SharedCommunicator(communicator, verdict)
    return shared


def _agree(
    store: dist.Store,
    call: str,
    rank: int,
    size: int,
    held: str | None,
    failure: Exception | None,
    timeout: timedelta,
) -> str:
    """Returns the name of the communicator that all ranks hold, or else of a new one, or what is wrong. The last rank
    to arrive decides for all: seven messages to the store per rank, for any number of ranks."""
    store.set(f"{call}/at/{rank}", "")
    store.add(f"{call}/held/{held}", 1)
    if failure:
        store.set(f"{call}/failed", f"rank {rank} of the group cannot be bound to it: {failure}")
    if store.add(f"{call}/came", 1) == size:
        if store.check([f"{call}/failed"]):
            verdict = _FAILED + store.get(f"{call}/failed").decode()
        elif held is not None and store.add(f"{call}/held/{held}", 0) == size:
            verdict = held
        else:
            verdict = secrets.token_hex(8)
        store.set(f"{call}/verdict", verdict)
    try:
        store.wait([f"{call}/verdict"], timeout)
    except RuntimeError:
        absent = [other for other in range(size) if not store.check([f"{call}/at/{other}"])]
        if not absent:
            raise
        ranks = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
        late = accord.Timeout(f"making a communicator over the group's ranks: {ranks} did not arrive in time")
        late.ranks = tuple(absent)
        raise late from None
    return store.get(f"{call}/verdict").decode()


_hosted: dict[str, dist.Store] = {}


def _meeting_store(group: dist.ProcessGroup) -> dist.Store:
    """Returns the store of the group. If the backend has none, the first rank hosts one and broadcasts its address."""
    if dist.get_backend(group) not in _LOCAL_BACKENDS_WITHOUT_STORE:
        return dist.distributed_c10d._get_process_group_store(group)
    if group.group_name not in _hosted:
        first = dist.get_rank(group) == 0
        store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False) if first else None
        told = [(socket.gethostname(), store.port)] if store else [None]
        dist.broadcast_object_list(told, group=group, group_src=0)
        _hosted[group.group_name] = store or dist.TCPStore(*told[0], is_master=False, wait_for_workers=False)
    return _hosted[group.group_name]


def place_mismatch(name: str, place: tuple[int, int], group: Group) -> accord.Mismatch | None:
    """Returns an error if this rank's place in the group differs from the one that an engine was built for."""
    rank, size = place_in(group)
    if (rank, size) == place:
        return None
    return accord.Mismatch(
        f'group "{name}": the engine was made for rank {place[0]} of {place[1]}, but this is rank {rank} of {size} in the group '
        "that it is to be bound to; give a group of the same size, with its members in the same order"
    )


def groups_argument(groups: Mapping[str, Group] | Group, names: list[str]) -> Mapping[str, Group]:
    """Returns `groups` for an engine with groups `names`: a mapping, or a single group if the engine has one."""
    if isinstance(groups, Mapping):
        return groups
    if len(names) != 1:
        raise accord.InvalidArgument(
            f"one group was given, but the engine has {len(names)} ({', '.join(names) or 'none'}): give a mapping from their names"
        )
    return {names[0]: groups}
