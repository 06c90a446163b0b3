"""How a process group is made: by torch, when a program names the backend "accord"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import accord
from accord.torch.errors import as_torch_error
from accord.torch.process_group import ProcessGroup


@dataclass
class Options:
    """What `pg_options=` of init_process_group and new_group takes; the fields are those of accord.Communicator.create."""

    transport: str | None = None
    select: str = ""
    hints: str = ""


def create(options: Any, backend_options: Options | None) -> ProcessGroup:
    """What torch calls to make a group (`options`: its DistributedBackendOptions)."""
    if backend_options is not None and not isinstance(backend_options, Options):
        raise TypeError(f"accord: pg_options is a {type(backend_options).__name__}; pass accord.torch.Options(...)")
    chosen = backend_options or Options()
    global_ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    try:
        comm = accord.Communicator.create(
            options.store,
            options.group_rank,
            options.group_size,
            name=str(options.group_id),
            timeout=options.timeout,
            transport=chosen.transport,
            select=chosen.select,
            hints=chosen.hints,
        )
    except accord.Error as error:
        raise as_torch_error(error, global_ranks) from None
    return ProcessGroup(comm, options.store, global_ranks, options.timeout, backend_options)


def communicator(group: dist.ProcessGroup | None = None) -> accord.Communicator:
    """The communicator behind `group` (the default one if None), for what torch.distributed has no call for."""
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, ProcessGroup):
        raise TypeError(f'accord.torch.communicator: {found!r} is no process group of the backend "accord"')
    return found.communicator
