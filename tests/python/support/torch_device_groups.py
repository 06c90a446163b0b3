"""Process groups whose ranks are threads, each with a simulated device of the test library, for functions that run in
rank processes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from host_devices import HostStream, on_thread_ranks
from torch.distributed import distributed_c10d

from accord.torch import streams
from accord.torch.process_group import ProcessGroup


def on_group_ranks(
    loaded: ctypes.CDLL,
    size: int,
    body: Callable[[ProcessGroup, int, HostStream], None],
    backends: str = "cpu:accord,cuda:accord",
) -> None:
    """Calls body(group, rank, stream) on one thread per rank. `stream` is torch's current stream on that thread."""
    here = threading.local()
    streams_of: dict[int, HostStream] = {}

    def current(device: torch.device) -> HostStream:
        return getattr(here, "stream", None) or streams_of[device.index]

    def run(comm: Any, rank: int) -> None:
        here.stream = streams_of[rank]
        group = ProcessGroup(comm, dist.HashStore(), list(range(size)), timedelta(seconds=30))
        distributed_c10d._world.pg_backend_config[group] = backends
        try:
            body(group, rank, here.stream)
        finally:
            del distributed_c10d._world.pg_backend_config[group]

    before, streams.current = streams.current, current
    try:
        streams_of.update({rank: HostStream(loaded, rank) for rank in range(size)})
        on_thread_ranks(size, run)
    finally:
        streams.current = before
