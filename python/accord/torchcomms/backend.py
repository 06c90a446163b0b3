"""The backend: each of torchcomms' calls becomes one call of an accord.Communicator.

An asynchronous collective is complete when it returns: DDP waits for a notification of its end, which torchcomms can
lose. The hint async=background starts it instead. send and recv are always started. A communicator of a GPU launches
calls on torch's current stream. Arguments that torchcomms passes only to C++ (timeout, tag, batches, the factor of
PREMUL_SUM) come from bindings/torchcomms if that is built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torchcomms import CommOptions, TorchCommBackend

import accord
from accord.torch import streams
from accord.torch.dispatcher import with_memory
from accord.torch.errors import as_torch_error
from accord.torch.tensors import CopyBack, WrongDevice, counts_of, joined_source, joined_target, source, target
from accord.torch.work import checked_start, copy_back
from accord.torchcomms import rendezvous
from accord.torchcomms.arguments import Operation, Timeout, operation_of, parts_of
from accord.torchcomms.work import DeviceWork, Work, as_one


def _raises_torch_errors(method: Callable) -> Callable:
    """Wraps a method: it runs for the communicator's device and for the tensors that its tensors hold, and raises
    RuntimeError, as torchcomms' other backends do. An error of accord remains an error of accord, too."""

    @functools.wraps(method)
    def call(self: Backend, *arguments: Any, **keywords: Any) -> Any:
        try:
            if self._device is None:
                return as_one(with_memory(method, (self, *arguments), keywords))
            with streams.call_on(self._device):
                return as_one(with_memory(method, (self, *arguments), keywords))
        except accord.Error as error:
            raise as_torch_error(error, range(self._size)) from None
        except WrongDevice as wrong:
            raise RuntimeError(
                f"this accord communicator takes tensors on {self._device or 'the CPU'}, not on {wrong.device}"
            ) from None

    return call


class Backend(TorchCommBackend):
    """torchcomms' side of one accord.Communicator, which is available as `communicator`."""

    def __init__(self) -> None:
        super().__init__()
        self._communicator: accord.Communicator | None = None
        self._finalized = False
        self._name = ""
        self._rank = -1
        self._size = -1
        self._timeout: float | None = None
        self._starts_collectives = False
        self._device: torch.device | None = None  # a GPU; None: the CPU

    # Creation and shutdown

    @_raises_torch_errors
    def init(self, device: torch.device, name: str, options: CommOptions) -> None:
        if self._communicator is not None or self._finalized:
            raise RuntimeError(f'communicator "{name}" is already {"finalized" if self._finalized else "initialized"}')
        self._name = name
        if device.type == "cuda":
            self._device = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        elif device.type != "cpu":
            raise RuntimeError(
                f'accord cannot create communicator "{name}" for {device}: it supports the CPU and CUDA devices'
            )
        self._adopt(rendezvous.communicator(name, options), options)

    def _adopt(self, communicator: accord.Communicator, options: CommOptions) -> None:
        self._communicator = communicator
        self._name, self._rank, self._size = communicator.name, communicator.rank, communicator.size
        self._starts_collectives = rendezvous.starts_collectives(options)

    @_raises_torch_errors
    def finalize(self) -> None:
        communicator = self.communicator
        self._communicator, self._finalized = None, True
        communicator.close()

    @property
    def communicator(self) -> accord.Communicator:
        """The communicator itself, for features that torchcomms does not expose: timeouts of single calls, batches,
        windows, abort.

        Raises RuntimeError before init() and after finalize()."""
        if self._communicator is None:
            raise RuntimeError(
                f'communicator "{self._name}" is {"already finalized" if self._finalized else "not initialized"}'
            )
        return self._communicator

    @_raises_torch_errors
    def split(self, ranks: list[int], name: str, options: CommOptions) -> Backend | None:
        communicator = self.communicator
        if not ranks:
            return None
        for rank in ranks:
            if not 0 <= rank < self._size:
                raise RuntimeError(f"split: there is no rank {rank}; the ranks are 0 to {self._size - 1}")
        if len(set(ranks)) != len(ranks):
            raise RuntimeError(f"split: the list {ranks} names a rank twice")
        if self._rank not in ranks:
            raise RuntimeError(f"split: Current rank {self._rank} is not included in the provided ranks list {ranks}")
        part = Backend()
        part._device = self._device
        part._adopt(communicator.split_ranks(ranks, name, **rendezvous.keywords_of(options)), options)
        return part

    def is_failed(self) -> bool:
        """Returns True once the communicator has failed or was aborted."""
        return self._communicator is not None and self._communicator.state == "failed"

    def get_rank(self) -> int:
        return self._rank

    def get_size(self) -> int:
        return self._size

    def get_backend_name(self) -> str:
        return "accord"

    def get_comm_name(self) -> str:
        return self._name

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = rendezvous.timeout_of(timeout)

    # Shared helpers

    def _run(self, timeout: Timeout, name: str, *arguments: Any, back: Sequence[CopyBack] = (), **factor: Any) -> None:
        getattr(self.communicator, name)(*arguments, timeout=timeout or self._timeout, **self._stream(name), **factor)
        if back:
            copy_back(back)

    def _start(
        self, timeout: Timeout, name: str, *arguments: Any, back: Sequence[CopyBack] = (), **factor: Any
    ) -> Work:
        start = getattr(self.communicator, name + "_async")
        return self._work(start(*arguments, timeout=timeout or self._timeout, **self._stream(name), **factor), back)

    def _stream(self, name: str) -> dict[str, Any]:
        """Returns keywords for a call of that name. A barrier synchronizes ranks, not streams."""
        if self._device is None or name == "barrier":
            return {}
        return {"stream": streams.current(self._device)}

    def _work(self, work: accord.Work, back: Sequence[CopyBack]) -> Work:
        checked_start(work)
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

    @_raises_torch_errors
    def send(
        self, tensor: torch.Tensor, dst: int, async_op: bool, tag: int = 0, timeout: Timeout = None
    ) -> Work | None:
        return (self._start if async_op else self._run)(timeout, "send", source(tensor, "send"), dst, tag)

    @_raises_torch_errors
    def recv(
        self, tensor: torch.Tensor, src: int, async_op: bool, tag: int = 0, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        return (self._start if async_op else self._run)(
            timeout, "recv", target(tensor, "recv", back), src, tag, back=back
        )

    @_raises_torch_errors
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
        if async_op:
            return self._work(batch.start(timeout=timeout or self._timeout, **self._stream("batch")), back)
        batch.run(timeout=timeout or self._timeout, **self._stream("batch"))
        copy_back(back)
        return None

    @_raises_torch_errors
    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool, timeout: Timeout = None) -> Work | None:
        back: list[CopyBack] = []
        is_root = root == self._rank
        array = source(tensor, "broadcast") if is_root else target(tensor, "broadcast", back)
        return self._collective(async_op, timeout, "broadcast", array, root, back=back)

    @_raises_torch_errors
    def all_reduce(self, tensor: torch.Tensor, op: Operation, async_op: bool, timeout: Timeout = None) -> Work | None:
        back: list[CopyBack] = []
        array = target(tensor, "all_reduce", back, reads=True, reduces=True)
        name, factor = operation_of(op, array)
        return self._collective(async_op, timeout, "all_reduce", array, name, back=back, **factor)

    @_raises_torch_errors
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

    @_raises_torch_errors
    def all_gather(
        self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        self._check_list("all_gather", tensor_list, tensor)
        back: list[CopyBack] = []
        array, output = source(tensor, "all_gather"), joined_target(tensor_list, "all_gather", back)
        return self._collective(async_op, timeout, "all_gather", array, output, back=back)

    @_raises_torch_errors
    def all_gather_v(
        self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        self._check_list("all_gather_v", tensor_list)
        back: list[CopyBack] = []
        array, output = source(tensor, "all_gather_v"), joined_target(tensor_list, "all_gather_v", back)
        return self._collective(async_op, timeout, "all_gather_v", array, output, counts_of(tensor_list), back=back)

    @_raises_torch_errors
    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        array, into = source(input, "all_gather_single"), target(output, "all_gather_single", back)
        return self._collective(async_op, timeout, "all_gather", array, into, back=back)

    @_raises_torch_errors
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

    @_raises_torch_errors
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

    @_raises_torch_errors
    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, op: Operation, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        array = source(input, "reduce_scatter_single", reduces=True)
        into = target(output, "reduce_scatter_single", back, reduces=True)
        name, factor = operation_of(op, array)
        return self._collective(async_op, timeout, "reduce_scatter", array, into, name, back=back, **factor)

    @_raises_torch_errors
    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, async_op: bool, timeout: Timeout = None
    ) -> Work | None:
        back: list[CopyBack] = []
        array, into = source(input, "all_to_all_single"), target(output, "all_to_all_single", back)
        return self._collective(async_op, timeout, "all_to_all", array, into, back=back)

    @_raises_torch_errors
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

    @_raises_torch_errors
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

    @_raises_torch_errors
    def barrier(self, async_op: bool, timeout: Timeout = None) -> Work | None:
        """On a GPU, the barrier comes after the work in its current stream."""
        if self._device is not None:
            streams.current(self._device).synchronize()
        return self._collective(async_op, timeout, "barrier")

    @_raises_torch_errors
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

    @_raises_torch_errors
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
