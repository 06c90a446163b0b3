"""What accord uses of torch.distributed that is not public, all of it, so that one look tells what a new torch may break.

tests/python/test_torch_versions.py goes through it on each version that is supported.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BarrierOptions",
    "BroadcastOptions",
    "GatherOptions",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "backends_of",
    "factor_of",
    "make_group",
    "never_compiled",
    "profiler_enabled",
    "record_until",
]


def profiler_enabled() -> bool:
    """True while a torch.profiler runs. Cost: some 40 ns."""
    return torch.autograd._profiler_enabled()


def never_compiled(kind: type) -> type:
    """A class whose methods torch.compile leaves alone: C++ calls them in the middle of compiled programs. Costs them nothing."""
    dynamo = torch._C._dynamo.eval_frame
    alone = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
    for method in vars(kind).values():
        if isinstance(method, types.FunctionType):
            dynamo.set_code_exec_strategy(method.__code__, alone)
    return kind


def record_until(name: str, reads: Sequence[torch.Tensor], last: torch.futures.Future) -> torch.futures.Future:
    """Starts a range in torch's profiler, with the shapes of `reads`, that ends when `last` does. Its own future ends after that."""
    range_ = torch._C._autograd._record_function_with_args_enter(name, *reads)
    return torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(range_, last)


def factor_of(op: Any) -> float | torch.Tensor:
    """What a PREMUL_SUM multiplies by."""
    return op.__getstate__()[1]


def backends_of(group: dist.ProcessGroup) -> dict[str, str]:
    """The backends that the group's creator named for each kind of device: those in "cpu:accord,cuda:nccl"."""
    config = distributed_c10d._world.pg_backend_config.get(group, "")
    return dict(entry.split(":") for entry in config.split(",") if ":" in entry)


def make_group(name: str, device: str, store: dist.Store, rank: int, size: int, timeout: Any) -> dist.ProcessGroup:
    """A group of torch's own for tensors of `device`, as init_process_group would make it for that backend."""
    store = dist.PrefixStore(f"{device}/", store)
    group = dist.ProcessGroup(store, rank, size)
    kind = distributed_c10d.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)
    if name == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        backend = dist.ProcessGroupNCCL(store, rank, size, options)
    elif name == "gloo":
        backend = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    else:
        plugin = distributed_c10d.Backend._plugins[name.upper()]
        if plugin.extended_api:
            options = distributed_c10d._DistributedBackendOptions()
            options.store, options.group_rank, options.group_size = store, rank, size
            options.timeout, options.group_id = timeout, "other"
            backend = plugin.creator_fn(options, None)
        else:
            backend = plugin.creator_fn(store, rank, size, timeout)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    return group
