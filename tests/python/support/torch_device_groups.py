"""Process groups whose ranks are threads, each with a simulated device of the test library, for functions that run in
rank processes."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from host_devices import HostStream, on_thread_ranks
from torch.distributed import distributed_c10d

from accord.torch import futures, streams
from accord.torch.process_group import ProcessGroup


def on_group_ranks(
    loaded: ctypes.CDLL,
    size: int,
    body: Callable[[ProcessGroup, int, HostStream], None],
    backends: str = "cpu:accord,cuda:accord",
) -> None:
    """Calls body(group, rank, stream) on one thread per rank. `stream` is torch's current stream on that thread.

    torch cannot make futures of devices that it does not have. Those of here are plain ones, with the stream in which
    they ended as `stream`."""
    here = threading.local()
    streams_of: dict[int, HostStream] = {}

    def current(device: torch.device) -> HostStream:
        return getattr(here, "stream", None) or streams_of[device.index]

    def other(device: torch.device) -> HostStream:
        return HostStream(loaded, device.index)

    @contextlib.contextmanager
    def made_current(stream: HostStream) -> Iterator[None]:
        before, here.stream = here.stream, stream
        try:
            yield
        finally:
            here.stream = before

    def keep(tensor: torch.Tensor, stream: HostStream) -> None:
        pass  # the test keeps it

    def future_on(device: torch.device, tensors: Sequence[torch.Tensor]) -> torch.futures.Future:
        ended = torch.futures.Future()
        ended.stream = current(device)
        ended.set_result(list(tensors))
        return ended

    def run(comm: Any, rank: int) -> None:
        here.stream = streams_of[rank]
        group = ProcessGroup(comm, dist.HashStore(), list(range(size)), timedelta(seconds=30))
        distributed_c10d._world.pg_backend_config[group] = backends
        try:
            body(group, rank, here.stream)
        finally:
            del distributed_c10d._world.pg_backend_config[group]

    replaced = [
        (streams, {"current": current, "other": other, "made_current": made_current, "keep": keep}),
        (futures, {"future_on": future_on}),
    ]
    before = [(module, {name: getattr(module, name) for name in names}) for module, names in replaced]
    for module, names in replaced:
        vars(module).update(names)
    try:
        streams_of.update({rank: HostStream(loaded, rank) for rank in range(size)})
        on_thread_ranks(size, run)
    finally:
        for module, names in before:
            vars(module).update(names)
