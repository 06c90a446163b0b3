"""The backend: each of torchcomms' calls becomes one call of an accord.Communicator.

An asynchronous collective is complete when it returns: DDP waits for a notification of its end, which torchcomms can
lose. The hint async=background starts it instead. send and recv are always started. A communicator of a GPU launches
calls on torch's current stream. Calls and arguments that torchcomms passes only to C++ (timeout, tag, batches, the
factor of PREMUL_SUM, windows, persistent and registered tensors) come from bindings/torchcomms if that is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import accord
from accord.torch import streams
from accord.torch.tensors import CopyBack, counts_of, joined_source, joined_target, source, target
from accord.torch.work import checked_start, copy_back
from accord.torchcomms.arguments import Operation, Timeout, operation_of, parts_of
from accord.torchcomms.group import Group, raises_torch_errors
from accord.torchcomms.persistent import PersistentAllGather
from accord.torchcomms.windows import Window
from accord.torchcomms.work import DeviceWork, Work


class Backend(Group):
    """torchcomms' side of one accord.Communicator, which is available as `communicator`."""

    # Shared helpers

    def _run(self, timeout: Timeout, name: str, *arguments: Any, back: Sequence[CopyBack] = (), **factor: Any) -> None:
        getattr(self.communicator, name)(*arguments, timeout=timeout or self._timeout, **self._stream(name), **factor)
        if back:
            copy_back(back)

    def _start(
        self, timeout: Timeout, name: str, *arguments: Any, back: Sequence[CopyBack] = (), **factor: Any
    ) -> Work:
        start = getattr(self.communicator, name + "_async")
        keywords = {"timeout": timeout or self._timeout, **self._stream(name), **factor}
        return self._work(lambda: start(*arguments, **keywords), back)

    def _stream(self, name: str) -> dict[str, Any]:
        """Returns keywords for a call of that name. A barrier synchronizes ranks, not streams."""
        if self._device is None or name == "barrier":
            return {}
        return {"stream": streams.current(self._device)}

    def _work(self, start: Callable[[], accord.Work], back: Sequence[CopyBack]) -> Work:
        work = checked_start(self.communicator, start)
        return (
            Work(work, back, self._size) if self._device is None else DeviceWork(work, back, self._size, self._device)
        )

    def _collective(self, async_op: bool, *arguments: Any, **keywords: Any) -> Work | None:
        return (self._start if async_op and self._starts_collectives else self._run)(*arguments, **keywords)

    def _check_list(self, call: str, tensors: Sequence[torch.Tensor], like: torch.Tensor | None = None) -> None:
        """Rejects a list that does not have one tensor for each rank, each with as many elements as `like`."""
        if len(tensors) != self._size:
            raise RuntimeError(f"{call}: the list has {len(tensors)} tensors; expected {self._size}, one for each rank")
        for tensor in tensors if like is not None else ():
            if tensor.numel() != like.numel():
                raise RuntimeError(
                    f"{call}: a tensor of the list has {tensor.numel()} elements, but the other has {like.numel()}"
                )

    # The calls

    @raises_torch_errors
    def send(
        self, tensor: torch.Tensor, dst: int, async_op: bool, tag: int = 0, timeout: Timeout = None
    ) -> Work | None:
        return (self._start if async_op else self._run)(timeout, "send", source(tensor, "send"), dst, tag)

    @raises_torch_errors
    def recv(
        self, tensor: torch.Tensor, src: int, async_op: bool, tag: int = 0, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        return (self._start if async_op else self._run)(
            timeout, "recv", target(tensor, "recv", back), src, tag, back=back
        )

    @raises_torch_errors
    def batch_op_issue(
        self, ops: list[tuple[bool, torch.Tensor, int]], async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        """Runs messages concurrently, each given as (whether it is sent, its tensor, the peer). Called only by
        _native."""
        if not ops:
            raise RuntimeError("Cannot issue empty batch operation")
        back: list[CopyBack] = []
        batch = self.communicator.batch()
        for is_sent, tensor, peer in ops:
            if is_sent:
                batch.send(source(tensor, "send"), peer)
            else:
                batch.recv(target(tensor, "recv", back), peer)
        keywords = {"timeout": timeout or self._timeout, **self._stream("batch")}
        if async_op:
            return self._work(lambda: batch.start(**keywords), back)
        batch.run(**keywords)
        copy_back(back)
        return None

    # Calls of _native only

    def new_window(self) -> Window:
        """Returns a window without a tensor. Window.tensor_register() is collective."""
        return Window(self.communicator, self._timeout)

    @raises_torch_errors
    def all_gather_p_init(self, output: torch.Tensor, timeout: Timeout = None) -> PersistentAllGather:
        return PersistentAllGather(output, self._size, timeout)

    @raises_torch_errors
    def all_gather_p_exec(
        self, handle: PersistentAllGather, input: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        timeout = timeout or handle.timeout or self._timeout
        prepared = handle.prepared(self.communicator, input, timeout) if self._device is None else None
        if prepared is None:
            return self.all_gather_single(handle.output, input, async_op, timeout)
        if async_op and self._starts_collectives:
            return self._work(prepared.start, ())
        prepared.run()
        return None

    # Collectives

    @raises_torch_errors
    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool, timeout: Timeout = None) -> Work | None:
        back: list[CopyBack] = []
        is_root = root == self._rank
        array = source(tensor, "broadcast") if is_root else target(tensor, "broadcast", back)
        return self._collective(async_op, timeout, "broadcast", array, root, back=back)

    @raises_torch_errors
    def all_reduce(self, tensor: torch.Tensor, op: Operation, async_op: bool, timeout: Timeout = None) -> Work | None:
        back: list[CopyBack] = []
        array = target(tensor, "all_reduce", back, reads=True, reduces=True)
        name, factor = operation_of(op, array)
        return self._collective(async_op, timeout, "all_reduce", array, name, back=back, **factor)

    @raises_torch_errors
    def reduce(
        self, tensor: torch.Tensor, root: int, op: Operation, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        if root == self._rank:
            array = target(tensor, "reduce", back, reads=True, reduces=True)
        else:
            array = source(tensor, "reduce", reduces=True)
        name, factor = operation_of(op, array)
        return self._collective(async_op, timeout, "reduce", array, root, name, back=back, **factor)

    @raises_torch_errors
    def all_gather(
        self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        self._check_list("all_gather", tensor_list, tensor)
        back: list[CopyBack] = []
        array, output = source(tensor, "all_gather"), joined_target(tensor_list, "all_gather", back)
        return self._collective(async_op, timeout, "all_gather", array, output, back=back)

    @raises_torch_errors
    def all_gather_v(
        self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        self._check_list("all_gather_v", tensor_list)
        back: list[CopyBack] = []
        array, output = source(tensor, "all_gather_v"), joined_target(tensor_list, "all_gather_v", back)
        return self._collective(async_op, timeout, "all_gather_v", array, output, counts_of(tensor_list), back=back)

    @raises_torch_errors
    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        array, into = source(input, "all_gather_single"), target(output, "all_gather_single", back)
        return self._collective(async_op, timeout, "all_gather", array, into, back=back)

    @raises_torch_errors
    def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: list[torch.Tensor],
        op: Operation,
        async_op: bool,
        timeout: Timeout = None,
    ) -> Work | None:
        self._check_list("reduce_scatter", input_list, output)
        back: list[CopyBack] = []
        array = joined_source(input_list, "reduce_scatter", reduces=True)
        into = target(output, "reduce_scatter", back, reduces=True)
        name, factor = operation_of(op, array)
        return self._collective(async_op, timeout, "reduce_scatter", array, into, name, back=back, **factor)

    @raises_torch_errors
    def reduce_scatter_v(
        self,
        output: torch.Tensor,
        input_list: list[torch.Tensor],
        op: Operation,
        async_op: bool,
        timeout: Timeout = None,
    ) -> Work | None:
        self._check_list("reduce_scatter_v", input_list)
        back: list[CopyBack] = []
        array = joined_source(input_list, "reduce_scatter_v", reduces=True)
        into = target(output, "reduce_scatter_v", back, reduces=True)
        counts = counts_of(input_list)
        name, factor = operation_of(op, array)
        return self._collective(async_op, timeout, "reduce_scatter_v", array, into, counts, name, back=back, **factor)

    @raises_torch_errors
    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, op: Operation, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        array = source(input, "reduce_scatter_single", reduces=True)
        into = target(output, "reduce_scatter_single", back, reduces=True)
        name, factor = operation_of(op, array)
        return self._collective(async_op, timeout, "reduce_scatter", array, into, name, back=back, **factor)

    @raises_torch_errors
    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        array, into = source(input, "all_to_all_single"), target(output, "all_to_all_single", back)
        return self._collective(async_op, timeout, "all_to_all", array, into, back=back)

    @raises_torch_errors
    def all_to_all_v_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        async_op: bool,
        timeout: Timeout = None,
    ) -> Work | None:
        back: list[CopyBack] = []
        parts = parts_of(input, input_split_sizes, self._size, "input")
        into_parts = parts_of(output, output_split_sizes, self._size, "output")
        # Rows of the output that no rank sends keep their values.
        array = source(input, "all_to_all_v_single").reshape(-1)
        into = target(output, "all_to_all_v_single", back, reads=True).view(-1)
        counts, into_counts = (
            [part * flat.numel() // max(of.numel(), 1) for part in sizes]
            for sizes, flat, of in ((parts, array, input), (into_parts, into, output))
        )
        array, into = array[: sum(counts)], into[: sum(into_counts)]
        return self._collective(async_op, timeout, "all_to_all_v", array, counts, into, into_counts, back=back)

    @raises_torch_errors
    def all_to_all(
        self,
        output_tensor_list: list[torch.Tensor],
        input_tensor_list: list[torch.Tensor],
        async_op: bool,
        timeout: Timeout = None,
    ) -> Work | None:
        self._check_list("all_to_all", output_tensor_list)
        self._check_list("all_to_all", input_tensor_list)
        back: list[CopyBack] = []
        array = joined_source(input_tensor_list, "all_to_all")
        into = joined_target(output_tensor_list, "all_to_all", back)
        counts, into_counts = counts_of(input_tensor_list), counts_of(output_tensor_list)
        return self._collective(async_op, timeout, "all_to_all_v", array, counts, into, into_counts, back=back)

    @raises_torch_errors
    def barrier(self, async_op: bool, timeout: Timeout = None) -> Work | None:
        """On a GPU, the barrier comes after the work in its current stream."""
        if self._device is not None:
            streams.current(self._device).synchronize()
        return self._collective(async_op, timeout, "barrier")

    @raises_torch_errors
    def scatter(
        self,
        output_tensor: torch.Tensor,
        input_tensor_list: list[torch.Tensor],
        root: int,
        async_op: bool,
        timeout: Timeout = None,
    ) -> Work | None:
        back: list[CopyBack] = []
        array = None
        if root == self._rank:
            self._check_list("scatter", input_tensor_list, output_tensor)
            array = joined_source(input_tensor_list, "scatter")
        into = target(output_tensor, "scatter", back)
        return self._collective(async_op, timeout, "scatter", array, into, root, back=back)

    @raises_torch_errors
    def gather(
        self,
        output_tensor_list: list[torch.Tensor],
        input_tensor: torch.Tensor,
        root: int,
        async_op: bool,
        timeout: Timeout = None,
    ) -> Work | None:
        back: list[CopyBack] = []
        into = None
        if root == self._rank:
            self._check_list("gather", output_tensor_list, input_tensor)
            into = joined_target(output_tensor_list, "gather", back)
        return self._collective(async_op, timeout, "gather", source(input_tensor, "gather"), into, root, back=back)
