"""The process group "accord": each of torch.distributed's calls becomes one call of an accord.Communicator.

A call that torch waits for at once (`opts.asyncOp` is false) runs on the caller's thread; other calls are started and
progress in the background. Dense tensors are not copied, nor are lists of tensors that are adjacent in memory."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import accord
from accord._integers import integers
from accord.torch import c10d
from accord.torch.any_source import AnySource, ReceiveWork
from accord.torch.arguments import (
    Tensors,
    check_parts,
    form_of,
    list_of,
    options,
    root_of,
    single,
    split_counts,
    split_sizes,
)
from accord.torch.calls import Calls
from accord.torch.devices import OtherDevices, on_its_device
from accord.torch.errors import as_torch_error
from accord.torch.identity import Identity
from accord.torch.monitored_barrier import MonitoredBarrier, announce
from accord.torch.ranges import recorded
from accord.torch.tensors import (
    CopyBack,
    counts_of,
    joined_source,
    joined_target,
    op_of,
    source,
    target,
)


@c10d.never_compiled
class ProcessGroup(Calls, Identity, dist.ProcessGroup):
    """A torch.distributed process group over an accord.Communicator.

    Errors are both accord's (PeerLost, Timeout, Mismatch, ...) and torch.distributed.DistBackendError; `ranks` are
    ranks of the group. Any thread may call any method. The methods and their arguments are torch's."""

    def __init__(
        self,
        comm: accord.Communicator,
        store: dist.Store,
        global_ranks: list[int],
        timeout: timedelta,
        window: accord.Window | None = None,
        of_other_devices: Any = None,
    ) -> None:
        dist.ProcessGroup.__init__(self, comm.rank, comm.size)
        Calls.__init__(self)
        Identity.__init__(self, comm.name, store)
        self.options_given: Any = None  # pg_options, for a group that replaces this one
        self._timeout = timeout
        self._process = os.getpid()
        self._others = OtherDevices(self, store, timeout, of_other_devices)
        self._use(comm, global_ranks, window, MonitoredBarrier(store, comm, global_ranks))

    def _use(
        self,
        comm: accord.Communicator,
        global_ranks: list[int],
        window: accord.Window | None,
        monitored_barrier: MonitoredBarrier,
    ) -> None:
        """Makes later calls those of `comm`."""
        self._comm = comm
        self._has_aborted = self._hooks_have_run = False
        self._sequence_number = 0
        self._global_ranks = global_ranks
        self._window = window
        self._monitored_barrier = monitored_barrier
        self._any_source = AnySource()

    @property
    def communicator(self) -> accord.Communicator:
        return self._comm

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    @property
    def global_ranks(self) -> list[int]:
        return self._global_ranks

    # Collectives.

    @on_its_device
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None) -> dist.Work:
        opts = options(c10d.AllreduceOptions, opts, timeout, reduceOp=op if opts is None else opts)
        tensor = single(tensors, "all_reduce")
        back: list[CopyBack] = []
        name, factor = op_of(opts.reduceOp)
        memory = target(tensor, "all_reduce", back, reads=True, reduces=True)
        return self._run("all_reduce", opts, (tensor,), back, memory, name, **factor)

    @on_its_device
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        opts = options(c10d.AllreduceCoalescedOptions, opts)
        back: list[CopyBack] = []
        name, factor = op_of(opts.reduceOp)
        memory = [target(tensor, "all_reduce", back, reads=True, reduces=True) for tensor in tensors]
        return self._run_all("all_reduce", opts, tensors, back, [(part, name) for part in memory], **factor)

    @on_its_device
    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0) -> dist.Work:
        opts = options(c10d.BroadcastOptions, opts, timeout, rootRank=root_of(opts, root, "broadcast"), rootTensor=0)
        tensor = single(tensors, "broadcast")
        back: list[CopyBack] = []
        is_root = self._comm.rank == opts.rootRank
        memory = source(tensor, "broadcast") if is_root else target(tensor, "broadcast", back)
        return self._run("broadcast", opts, (tensor,), back, memory, opts.rootRank)

    @on_its_device
    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> dist.Work:
        opts = options(c10d.ReduceOptions, opts, timeout, rootRank=root_of(opts, root, "reduce"), reduceOp=op)
        tensor = single(tensors, "reduce")
        back: list[CopyBack] = []
        name, factor = op_of(opts.reduceOp)
        if self._comm.rank == opts.rootRank:
            memory = target(tensor, "reduce", back, reads=True, reduces=True)
        else:
            memory = source(tensor, "reduce", reduces=True)
        return self._run("reduce", opts, (tensor,), back, memory, opts.rootRank, name, **factor)

    @on_its_device
    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> dist.Work:
        opts = options(c10d.AllgatherOptions, opts, opts)
        outputs, tensor = list_of(output_tensors, "all_gather"), single(input_tensors, "all_gather")
        check_parts(outputs, self._comm.size, "all_gather", "outputs")
        back: list[CopyBack] = []
        arguments = source(tensor, "all_gather"), joined_target(outputs, "all_gather", back)
        call, counts = form_of("all_gather", outputs)
        return self._run(call, opts, outputs, back, *arguments, *counts)

    @on_its_device
    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        opts = options(c10d.AllgatherOptions, opts, opts)
        back: list[CopyBack] = []
        memory = target(output, "all_gather", back)
        return self._run("all_gather", opts, (output,), back, source(input, "all_gather"), memory)

    @on_its_device
    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = options(c10d.AllgatherOptions, opts)
        back: list[CopyBack] = []
        calls = [
            (source(tensor, "all_gather"), target(output, "all_gather", back))
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._run_all("all_gather", opts, outputs, back, calls)

    @on_its_device
    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None) -> dist.Work:
        opts = options(c10d.AllgatherOptions, opts)
        check_parts(output_lists, self._comm.size, "all_gather_coalesced", "output lists")
        back: list[CopyBack] = []
        calls = [
            (source(tensor, "all_gather"), joined_target(outputs, "all_gather", back))
            for tensor, outputs in zip(input_list, zip(*output_lists, strict=True), strict=True)
        ]
        return self._run_all("all_gather", opts, [t for outputs in output_lists for t in outputs], back, calls)

    @on_its_device
    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> dist.Work:
        opts = options(c10d.GatherOptions, opts, timeout, rootRank=root_of(opts, root, "gather"))
        tensor = single(input_tensors, "gather")
        memory = source(tensor, "gather")
        if self._comm.rank != opts.rootRank:
            if len(output_tensors) > 0 and len(output_tensors[0]) > 0:
                raise ValueError(f"accord: gather: only rank {opts.rootRank}, the root, passes outputs")
            return self._run("gather", opts, (), [], memory, None, opts.rootRank)
        outputs = list_of(output_tensors, "gather")
        check_parts(outputs, self._comm.size, "gather", "outputs")
        for output in outputs:
            if output.numel() != tensor.numel():
                raise ValueError(
                    f"accord: gather: expected outputs of {tensor.numel()} elements each, got {output.numel()}"
                )
        back: list[CopyBack] = []
        joined = joined_target(outputs, "gather", back)
        return self._run("gather", opts, outputs, back, memory, joined, opts.rootRank)

    @on_its_device
    def gather_single(self, output: torch.Tensor | None, input: torch.Tensor, opts: Any = None) -> dist.Work:
        opts = options(c10d.GatherOptions, opts)
        back: list[CopyBack] = []
        at_root = self._comm.rank == opts.rootRank
        memory = target(output, "gather", back) if at_root else None
        outputs = (output,) if at_root else ()
        return self._run("gather", opts, outputs, back, source(input, "gather"), memory, opts.rootRank)

    @on_its_device
    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None, root: int = 0
    ) -> dist.Work:
        opts = options(c10d.ScatterOptions, opts, timeout, rootRank=root_of(opts, root, "scatter"))
        output = single(output_tensors, "scatter")
        back: list[CopyBack] = []
        memory = target(output, "scatter", back)
        if self._comm.rank != opts.rootRank:
            if len(input_tensors) > 0 and len(input_tensors[0]) > 0:
                raise ValueError(f"accord: scatter: only rank {opts.rootRank}, the root, passes inputs")
            return self._run("scatter", opts, (output,), back, None, memory, opts.rootRank)
        inputs = list_of(input_tensors, "scatter")
        check_parts(inputs, self._comm.size, "scatter", "inputs")
        for tensor in inputs:
            if tensor.numel() != output.numel():
                raise ValueError(
                    f"accord: scatter: expected inputs of {output.numel()} elements each, got {tensor.numel()}"
                )
        joined = joined_source(inputs, "scatter")
        return self._run("scatter", opts, (output,), back, joined, memory, opts.rootRank, reads=inputs)

    @on_its_device
    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        op: Any = None,
    ) -> dist.Work:
        opts = options(c10d.ReduceScatterOptions, opts, timeout, reduceOp=op if opts is None else opts)
        output, inputs = single(output_tensors, "reduce_scatter"), list_of(input_tensors, "reduce_scatter")
        check_parts(inputs, self._comm.size, "reduce_scatter", "inputs")
        back: list[CopyBack] = []
        name, factor = op_of(opts.reduceOp)
        joined = joined_source(inputs, "reduce_scatter", reduces=True)
        memory = target(output, "reduce_scatter", back, reduces=True)
        call, counts = form_of("reduce_scatter", inputs)
        return self._run(call, opts, (output,), back, joined, memory, *counts, name, reads=inputs, **factor)

    @on_its_device
    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        opts = options(c10d.ReduceScatterOptions, opts)
        back: list[CopyBack] = []
        name, factor = op_of(opts.reduceOp)
        memory = target(output, "reduce_scatter", back, reduces=True)
        read = source(input, "reduce_scatter", reduces=True)
        return self._run("reduce_scatter", opts, (output,), back, read, memory, name, **factor)

    @on_its_device
    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = options(c10d.ReduceScatterOptions, opts)
        back: list[CopyBack] = []
        name, factor = op_of(opts.reduceOp)
        calls = [
            (
                source(tensor, "reduce_scatter", reduces=True),
                target(output, "reduce_scatter", back, reduces=True),
                name,
            )
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._run_all("reduce_scatter", opts, outputs, back, calls, **factor)

    @on_its_device
    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
    ) -> dist.Work:
        opts = options(c10d.AllToAllOptions, opts, opts)
        back: list[CopyBack] = []
        arguments = source(input, "all_to_all"), target(output, "all_to_all", back)
        sent_sizes, received_sizes = split_sizes(input_split_sizes, "input"), split_sizes(output_split_sizes, "output")
        if not sent_sizes and not received_sizes:
            return self._run("all_to_all", opts, (output,), back, *arguments)
        sent = split_counts(input, sent_sizes, self._comm.size, "input", arguments[0])
        received = split_counts(output, received_sizes, self._comm.size, "output", arguments[1])
        return self._run("all_to_all_v", opts, (output,), back, arguments[0], sent, arguments[1], received)

    @on_its_device
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> dist.Work:
        opts = options(c10d.AllToAllOptions, opts, opts)
        check_parts(output_tensors, self._comm.size, "all_to_all", "outputs")
        check_parts(input_tensors, self._comm.size, "all_to_all", "inputs")
        back: list[CopyBack] = []
        sent, received = joined_source(input_tensors, "all_to_all"), joined_target(output_tensors, "all_to_all", back)
        counts = counts_of(input_tensors), counts_of(output_tensors)
        arguments = sent, counts[0], received, counts[1]
        return self._run("all_to_all_v", opts, output_tensors, back, *arguments, reads=input_tensors)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        self._others.wait_for_own()
        return self._run("barrier", options(c10d.BarrierOptions, opts, timeout or opts), (), [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self._monitored_barrier(self._timeout if timeout is None else timeout, wait_all_ranks)

    # Newer versions of torch use these names for the same methods. The names above exist in all versions, so other
    # groups have them, too.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    gather_into_tensor = gather_single
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # Messages.

    @on_its_device
    def send(self, tensors: Any, rank: int, tag: int = 0) -> dist.Work:
        tensor = single(tensors, "send")
        return self._start("send", (tensor,), [], source(tensor, "send"), rank, tag)

    @on_its_device
    def recv(self, tensors: Any, rank: int, tag: int = 0) -> dist.Work:
        tensor = single(tensors, "recv")
        back: list[CopyBack] = []
        return self._start("recv", (tensor,), back, target(tensor, "recv", back), rank, tag)

    @on_its_device
    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        tensor = single(tensors, "recv")
        back: list[CopyBack] = []
        memory = target(tensor, "recv", back)
        receive = functools.partial(self._any_source.start, self._comm, memory, tag)
        started = functools.partial(self._work_of, receive, (tensor,), back, None, ReceiveWork)
        return recorded("recvAnySource", (tensor,), started) if c10d.profiler_enabled() else started()

    # Other groups.

    def split_group(
        self,
        new_ranks: Any,
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """Creates a group of the listed ranks of this one, in that order; returns None on the other ranks.
        torch.distributed's functions know the group only if dist.split_group created it, which torch supports for
        groups without an accelerator from 2.15 on. `device_types`: the devices that it is for; None means all devices
        of this group. `opts` are for backends of other devices."""
        new_ranks = integers(new_ranks, "accord: split_group: the ranks")
        self._splits += 1
        if self._comm.rank not in new_ranks:
            return None
        name = group_name or f"{self._comm.name}/{','.join(map(str, new_ranks))}"
        store = dist.PrefixStore(f"{name}/", self._store)
        if self._comm.rank == new_ranks[0]:
            announce(store)
        try:
            comm = self._comm.split_ranks(new_ranks, name, timeout=timeout or self._timeout)
        except accord.Error as error:
            raise as_torch_error(error, self._global_ranks) from None
        global_ranks = [self._global_ranks[rank] for rank in new_ranks]
        group = ProcessGroup(comm, store, global_ranks, timeout or self._timeout)
        group.setGroupDesc(group_desc or "undefined")
        group._others.inherit(self._others, device_types)
        return group

    splitGroup = split_group  # noqa: N815 - C++'s name

    # Shutdown.

    def abort(self) -> None:
        try:
            self._run_abort_hooks()
        finally:
            self._has_aborted = True
            self._comm.abort("torch.distributed aborted the process group")
            for other in self._others.groups():
                other.abort()

    def shutdown(self) -> None:
        if os.getpid() != self._process:
            return  # a forked child only drops its references to its parent's objects
        self._comm.close()
        for other in self._others.groups():
            other.shutdown()
