"""Continues a training job after ranks have failed."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
import torch.distributed as dist

import accord
from accord.torch.errors import as_torch_error
from accord.torch.groups import communicator

_NAME_BYTES = 256  # more than a host name can have


def shrink(timeout: float | timedelta | None = None) -> list[int]:
    """Creates a new default group of the remaining ranks, and returns the ranks that they had.

    Each remaining rank calls it once: after a failure, or to continue without a rank that has closed. All groups are
    destroyed, as by dist.destroy_process_group(). The new group has the same backend, options and timeout, and a
    store of its own on the new rank 0. It needs neither the old store nor the environment; RANK and WORLD_SIZE keep
    their old values.

    timeout: how long to wait for ranks that are alive but do not call it (seconds; by default the group's timeout);
    they are left out. Fails with the errors of accord.Communicator.shrink.
    """
    comm, old = communicator(), dist.group.WORLD
    known_as = list(range(comm.size))  # the old ranks, of the group whose call fails
    try:
        with comm.shrink(timeout=timeout) as left:
            ranks = torch.empty(left.size, dtype=torch.int64)
            left.all_gather(torch.tensor([comm.rank]), ranks)
            known_as = ranks.tolist()
            store = _store_at_the_first(left, old.timeout)
            rank, size = left.rank, left.size
    except accord.Error as error:
        raise as_torch_error(error, known_as) from None
    backend, options, limit = dist.get_backend(old), old.options_given, old.timeout
    dist.destroy_process_group()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit, pg_options=options)
    return ranks.tolist()


def _store_at_the_first(comm: accord.Communicator, timeout: timedelta) -> dist.TCPStore:
    """Returns a store that rank 0 serves at a free port, and the hosts of all ranks."""
    name = torch.zeros(_NAME_BYTES, dtype=torch.uint8)
    encoded = socket.gethostname().encode()
    name[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    names = torch.empty(comm.size, _NAME_BYTES, dtype=torch.uint8)
    comm.all_gather(name, names)
    one_host = bool((names == names[0]).all())
    host = "127.0.0.1" if one_host else bytes(names[0].tolist()).rstrip(b"\0").decode()
    port = torch.zeros(1, dtype=torch.int64)
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        port[0] = store.port
    comm.broadcast(port, 0)
    return store or dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
