"""All non-public parts of torch.distributed that accord uses, in one place that shows what a new version of torch may
break.

tests/python/torch/test_versions.py checks them on each supported version.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
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

import accord

__all__ = [
    "OF_THE_DEFAULT_GROUP",
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
    "batch_messages",
    "carried_by",
    "end_blocks_left_by_errors",
    "error_type_of",
    "factor_of",
    "first_rank_of",
    "group_count",
    "is_registered",
    "make_group",
    "name_backends",
    "nccl_pointer",
    "never_compiled",
    "profiler_enabled",
    "record_until",
    "register_group",
    "renumber_ranks",
    "replace_group_creation",
    "replace_initializing",
    "support_set_timeout",
    "timeout_of",
    "torchcomms_enabled",
    "window_attr",
    "without_torchcomms",
]


OF_THE_DEFAULT_GROUP = "default_pg"  #: torch's name of the default group, in the group's description


def profiler_enabled() -> bool:
    """Returns True while a torch.profiler runs. Cost: about 40 ns."""
    return torch.autograd._profiler_enabled()


def never_compiled(kind: type) -> type:
    """Excludes a class's methods from torch.compile: C++ calls them in the middle of compiled programs. No overhead."""
    dynamo = torch._C._dynamo.eval_frame
    alone = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
    for method in vars(kind).values():
        if isinstance(method, types.FunctionType):
            dynamo.set_code_exec_strategy(method.__code__, alone)
    return kind


def record_until(name: str, reads: Sequence[torch.Tensor], last: torch.futures.Future) -> torch.futures.Future:
    """Starts a range in torch's profiler, with the shapes of `reads`, that ends when `last` does. Returns the range's
    own future, which ends after that.
    """
    range_ = torch._C._autograd._record_function_with_args_enter(name, *reads)
    return torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(range_, last)


def factor_of(op: Any) -> float | torch.Tensor:
    """Returns the factor of a PREMUL_SUM."""
    return op.__getstate__()[1]


def nccl_pointer(group: dist.ProcessGroup, device: torch.device) -> int:
    """Returns the ncclComm_t that `group` uses on `device`."""
    backend = group._get_backend(device)
    pointer_of = getattr(backend, "_comm_ptr", None)
    if pointer_of is None:
        raise TypeError(
            f"accord: the group's backend for {device} is {type(backend).__name__}, "
            "which does not expose an NCCL communicator"
        )
    pointer = pointer_of()
    if not pointer:
        raise RuntimeError(f"accord: the group has no NCCL communicator for {device} yet; run a call there first")
    return pointer


def backends_of(group: dist.ProcessGroup) -> dict[str, str]:
    """Returns the backends that the group's creator named for each kind of device: those in "cpu:accord,cuda:nccl"."""
    config = distributed_c10d._world.pg_backend_config.get(group, "")
    return dict(entry.split(":") for entry in config.split(",") if ":" in entry)


def carried_by(backend: str) -> dict[str, str]:
    """Returns the backends that torch would use for each kind of device if a program names `backend`: for "gloo"
    {"cpu": "gloo", "cuda": "gloo", ...}.
    """
    return dict(distributed_c10d.BackendConfig(dist.Backend(backend)).get_device_backend_map())


def register_group(
    create_options: Any, ranks: Sequence[int], name: str, timeout: Any, description: str
) -> dist.ProcessGroup:
    """Creates a group of the backend "accord" without involving other ranks. `ranks`: of the default group, including
    this one.
    """
    with without_torchcomms():
        group, _ = distributed_c10d._new_process_group_helper(
            len(ranks),
            list(ranks).index(dist.get_rank()),
            list(ranks),
            dist.Backend("accord"),
            distributed_c10d._get_default_store(),
            name,
            backend_options=create_options,
            timeout=timeout,
            group_desc=description,
        )
    distributed_c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


# Called with a function, and with the arguments of a call under the function's own parameter names.
Replacement = Callable[[Callable[..., Any], dict[str, Any]], Any]


def _replaced(original: Callable[..., Any], instead: Replacement) -> Callable[..., Any]:
    """Returns a function that can be called in every way that `original` can, and runs `instead`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def replacement(*arguments: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError:
            return original(*arguments, **keywords)  # reports what is wrong with them
        return instead(original, dict(bound.arguments))

    return replacement


def replace_group_creation(make: Replacement) -> None:
    """Makes `make` create every group of torch.distributed, including the default group."""
    distributed_c10d._new_process_group_helper = _replaced(distributed_c10d._new_process_group_helper, make)


def replace_initializing(initialize: Replacement) -> None:
    """Replaces init_process_group with `initialize`, also for modules that later import it from torch.distributed."""
    replacement = _replaced(distributed_c10d.init_process_group, initialize)
    distributed_c10d.init_process_group = dist.init_process_group = replacement


def splits_own_backend_only() -> bool:
    """Returns True if torch (2.15) splits a group only for the same backend; older versions also pass it to NCCL."""
    return "requested_backend" in inspect.signature(distributed_c10d._get_split_source).parameters


@functools.cache
def mark_as_self_recording(backend: str) -> None:
    """Prevents torch (2.15) from attaching its call recorder to groups of `backend`, which records by itself."""
    getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add(backend)


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Returns the timeout of the calls of its backends; 30 minutes if they do not specify one, as in torch."""
    options_of_backends = (getattr(group._get_backend(device), "options", None) for device in group._device_types)
    timeouts = [options._timeout for options in options_of_backends if hasattr(options, "_timeout")]
    return min(timeouts, default=timedelta(minutes=30))


@functools.cache
def support_set_timeout(kind: type[dist.ProcessGroup]) -> None:
    """Makes _set_pg_timeout, with which Megatron and others change the timeout of a group, also work for groups of
    `kind`; torch supports only gloo and nccl.
    """
    original = distributed_c10d._set_pg_timeout

    @functools.wraps(original)
    def replacement(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        chosen = dist.group.WORLD if group is None else group
        if isinstance(chosen, kind):
            chosen.set_timeout(timeout)
        else:
            original(timeout, group)

    distributed_c10d._set_pg_timeout = replacement


@functools.cache
def end_blocks_left_by_errors(kind: type[dist.ProcessGroup]) -> None:
    """Makes a coalescing block over a group of `kind` stop listing calls when an error ends the block. torch would
    continue to list them, and drop them.

    This replaces the generator behind torch's context manager, so it also applies to programs that imported the
    context manager before.
    """
    manager = distributed_c10d._coalescing_manager
    cell = manager.__closure__[manager.__code__.co_freevars.index("func")]
    original = contextlib.contextmanager(cell.cell_contents)

    @functools.wraps(cell.cell_contents)
    def replacement(group: dist.ProcessGroup | None = None, *arguments: Any, **keywords: Any) -> Iterator[Any]:
        has_begun = False
        left = group or dist.group.WORLD
        was_listing = left in distributed_c10d._world.pg_coalesce_state
        try:
            with original(group, *arguments, **keywords) as block:
                has_begun = True
                yield block
        except BaseException:
            if isinstance(left, kind) and (has_begun or not was_listing):
                distributed_c10d._world.pg_coalesce_state.pop(left, None)
                if has_begun:
                    left.drop_listed()
            raise

    cell.cell_contents = replacement


@functools.cache
def batch_messages(kind: type[dist.ProcessGroup]) -> None:
    """Makes batch_isend_irecv over a group of `kind` run messages between GPUs as one call, which torch does only for
    its own class of groups. One by one, two ranks that send to each other first would wait for each other in their
    streams.

    Programs that imported the function by name before the first such group keep torch's own.
    """
    original = distributed_c10d.batch_isend_irecv

    @functools.wraps(original)
    def replacement(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
        distributed_c10d._check_p2p_op_list(p2p_op_list)
        group, device = p2p_op_list[0].group, p2p_op_list[0].tensor.device
        of_one_kind = all(op.tensor.device.type == device.type for op in p2p_op_list)
        if not (isinstance(group, kind) and of_one_kind and group.batches_messages(device)):
            return original(p2p_op_list)
        with distributed_c10d._coalescing_manager(group, device, async_ops=True) as block:
            for op in p2p_op_list:
                peer = {"group_dst" if op.op is dist.isend else "group_src": op.group_peer}
                op.op(op.tensor, group=op.group, tag=op.tag, **peer)
        return block.works

    distributed_c10d.batch_isend_irecv = dist.batch_isend_irecv = replacement
    # torch.compile (2.13) looks the function up here, once that module is imported.
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    remaps = getattr(collectives, "traceable_collective_remaps", {})
    if original in remaps:
        remaps[replacement] = remaps[original]


def error_type_of(error: Exception | None) -> Any:
    """Returns torch's ErrorType for the failure of a communicator."""
    kinds = torch._C._distributed_c10d.ErrorType
    if error is None:
        return kinds.SUCCESS
    if isinstance(error, accord.Timeout):
        return kinds.TIMEOUT
    return kinds.REMOTE_ERROR if isinstance(error, accord.PeerLost | accord.Aborted) else kinds.COMM_ERROR


def window_attr(is_mapped: bool) -> Any:
    """Returns torch's WindowAttr (2.14 and newer; an object with the same field for older versions)."""
    kinds = torch._C._distributed_c10d
    if not hasattr(kinds, "WindowAttr"):
        return types.SimpleNamespace(access_type="UNIFIED" if is_mapped else "SEPARATE")
    attr = kinds.WindowAttr()
    attr.access_type = kinds.WindowAccessType.UNIFIED if is_mapped else kinds.WindowAccessType.SEPARATE
    return attr


def renumber_ranks(group: dist.ProcessGroup, size: int, groups: int) -> None:
    """Makes torch take the ranks of `group`, the default group, for 0 to size - 1, and count `groups` groups that were
    created so far: the number is part of the next ones' names."""
    if is_registered(group):
        distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
        distributed_c10d._world.group_count = groups


def group_count() -> int:
    """Returns how many groups this process has created."""
    return distributed_c10d._world.group_count


def first_rank_of(group: dist.ProcessGroup) -> int:
    """Returns the lowest rank of the default group among the members, or 0 if torch does not know these ranks."""
    return min(distributed_c10d._world.pg_group_ranks.get(group) or (0,))


def is_registered(group: dist.ProcessGroup) -> bool:
    """Returns False for a group that was destroyed."""
    return group in distributed_c10d._world.pg_map


def name_backends(group: dist.ProcessGroup, asked: str, carried: dict[str, str]) -> None:
    """Makes dist.get_backend(group) return `asked`, and records `carried`, the backend of each kind of device."""
    _, store = distributed_c10d._world.pg_map[group]
    distributed_c10d._world.pg_map[group] = (dist.Backend(asked), store)
    distributed_c10d._world.pg_backend_config[group] = ",".join(f"{kind}:{name}" for kind, name in carried.items())


def torchcomms_enabled() -> bool:
    """Returns True if torch.distributed creates its groups from torchcomms communicators."""
    enabled = getattr(distributed_c10d, "_use_torchcomms_enabled", None)
    return enabled is not None and enabled()


@contextlib.contextmanager
def without_torchcomms() -> Iterator[None]:
    """Context in which new groups are torch.distributed's own."""
    if not torchcomms_enabled():
        yield
        return
    config = distributed_c10d.dist_config
    config.use_torchcomms = False
    try:
        yield
    finally:
        config.use_torchcomms = True


def make_group(
    name: str, device: str, store: dist.Store, rank: int, size: int, timeout: Any, options: Any = None
) -> dist.ProcessGroup:
    """Creates a group of torch's own for tensors on `device`, as init_process_group would for that backend."""
    store = dist.PrefixStore(f"{device}/", store)
    group = dist.ProcessGroup(store, rank, size)
    kind = distributed_c10d.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)
    if name == "nccl":
        options = dist.ProcessGroupNCCL.Options() if options is None else options
        options._timeout = timeout
        backend = dist.ProcessGroupNCCL(store, rank, size, options)
    elif name == "gloo":
        backend = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    else:
        plugin = distributed_c10d.Backend._plugins[name.upper()]
        if plugin.extended_api:
            made = distributed_c10d._DistributedBackendOptions()
            made.store, made.group_rank, made.group_size = store, rank, size
            made.timeout, made.group_id = timeout, "other"
            backend = plugin.creator_fn(made, options)
        else:
            backend = plugin.creator_fn(store, rank, size, timeout)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    return group
