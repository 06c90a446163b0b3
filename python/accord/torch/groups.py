"""Creation of a process group by torch, when a program names the backend "accord"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import accord
from accord._integers import integers
from accord.torch import c10d
from accord.torch.errors import as_torch_error
from accord.torch.monitored_barrier import announce
from accord.torch.process_group import ProcessGroup
from accord.torch.reconfigurable import ReconfigurableProcessGroup
from accord.torch.rendezvous import keep_open
from accord.torch.watched_store import WatchedStore


@dataclass
class Options:
    """The value of `pg_options=` for init_process_group and new_group. The fields are those of
    accord.Communicator.create, and: window_bytes: this rank's share of the memory that accord.torch.empty() and FSDP2
    allocate from. Unused memory costs nothing. of_other_devices: options of the backends that the program named for
    other devices, such as ProcessGroupNCCL.Options. enable_reconfigure: as the argument of init_process_group, which
    torch has from 2.14 on."""

    transport: str | None = None
    select: str = ""
    hints: str = ""
    window_bytes: int = 0
    of_other_devices: Any = None
    enable_reconfigure: bool = False


@dataclass
class Ready:
    """Takes the place of Options: an existing communicator."""

    communicator: accord.Communicator


def from_communicator(
    communicator: accord.Communicator,
    ranks: Sequence[int],
    *,
    name: str | None = None,
    timeout: timedelta = timedelta(minutes=30),
    description: str = "undefined",
) -> ProcessGroup:
    """Creates a process group over an existing communicator. No other rank is involved; the members call it with the
    same arguments.

    ranks: ranks of the default group, in the order of the communicator's ranks, including this one. name: of the
    group in torch, unique in this process; by default the communicator's. timeout: reported to torch; calls use the
    communicator's. The group closes the communicator when it is destroyed.
    """
    ranks = integers(ranks, "accord: the ranks of a group")
    if len(ranks) != communicator.size or ranks[communicator.rank] != dist.get_rank():
        text = f"ranks {ranks} are not those of {communicator!r} on rank {dist.get_rank()} of the default group"
        raise accord.InvalidArgument(text)
    return c10d.register_group(Ready(communicator), ranks, name or communicator.name, timeout, description)


def create(options: Any, backend_options: Options | Ready | None) -> ProcessGroup:
    """Called by torch to create a group (`options`: its DistributedBackendOptions)."""
    if backend_options is not None and not isinstance(backend_options, Options | Ready):
        raise TypeError(f"accord: pg_options is a {type(backend_options).__name__}; pass accord.torch.Options(...)")
    c10d.support_set_timeout(ProcessGroup)
    c10d.end_blocks_left_by_errors(ProcessGroup)
    c10d.batch_messages(ProcessGroup)
    c10d.mark_as_self_recording("accord")
    # Without any ranks it is the default group, or a group with ranks of other jobs that a program creates with
    # torch's internal functions.
    global_ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    # Groups without a rank in common may have the same name: torch counts the groups that a rank has created, and
    # programs may let only the members of a group create it. The name leads to one place in torch's store.
    group_store = dist.PrefixStore(f"first rank {min(global_ranks)}", options.store)
    if options.group_rank == 0:
        keep_open(options.store)
        announce(group_store)
    if isinstance(backend_options, Ready):
        return ProcessGroup(backend_options.communicator, group_store, global_ranks, options.timeout)
    chosen = backend_options or Options()
    if chosen.enable_reconfigure or getattr(options, "enable_reconfigure", False):
        return _reconfigurable(options, chosen, group_store)
    name, world = str(options.group_id), dist.group.WORLD
    is_part = isinstance(world, ProcessGroup) and len(options.global_ranks_in_group) > 0
    watched = world.communicator if is_part else None
    store = WatchedStore(group_store, name, watched, global_ranks)
    try:
        comm = accord.Communicator.create(
            store,
            options.group_rank,
            options.group_size,
            name=name,
            timeout=options.timeout,
            transport=chosen.transport,
            select=chosen.select,
            hints=chosen.hints,
        )
        window = comm.window(chosen.window_bytes) if chosen.window_bytes else None
    except accord.Error as error:
        raise as_torch_error(store.cause_of(error), global_ranks) from None
    group = ProcessGroup(comm, group_store, global_ranks, options.timeout, window, chosen.of_other_devices)
    group.options_given = backend_options
    return group


def _reconfigurable(options: Any, chosen: Options, store: dist.Store) -> ReconfigurableProcessGroup:
    """Creates a group that other ranks take part in only once it is reconfigured."""
    if dist.is_initialized():
        raise accord.Unsupported("accord: only the default group can be created with enable_reconfigure")
    name, rank, size, timeout = str(options.group_id), options.group_rank, options.group_size, options.timeout

    def make_base() -> accord.Communicator:
        return accord.Communicator.alone(
            name=name, timeout=timeout, transport=chosen.transport, select=chosen.select, hints=chosen.hints
        )

    try:
        group = ReconfigurableProcessGroup(make_base, rank, size, store, timeout, chosen.window_bytes)
    except accord.Error as error:
        raise as_torch_error(error, range(size)) from None
    group.options_given = replace(chosen, enable_reconfigure=False)  # for the group of those that shrink() leaves
    return group


def group_of(group: dist.ProcessGroup | None) -> ProcessGroup:
    """Returns `group`, or the default group. Raises TypeError if it is not of this backend."""
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, ProcessGroup):
        raise TypeError(f'accord: {found!r} is not a process group of the backend "accord"')
    return found


def communicator(group: dist.ProcessGroup | None = None) -> accord.Communicator:
    """Returns the communicator behind `group` (the default group if None), for calls that torch.distributed does not
    have.
    """
    return group_of(group).communicator
