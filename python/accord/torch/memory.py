"""Tensors in memory that the ranks of a group share, so that their collectives need no intermediate copies
(docs/windows.md).

A call uses this if the tensors of all ranks are in such memory. If only some ranks' tensors are, it is a Mismatch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

import accord
from accord.torch.errors import as_torch_error
from accord.torch.groups import group_of
from accord.torch.process_group import ProcessGroup


def empty(
    *shape: int | Sequence[int], dtype: torch.dtype = torch.float32, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Allocates a tensor in the memory that `group` (the default group if None) was created with:
    `Options(window_bytes=...)`.

    The memory is free again once the tensor and all its views are gone. No other rank is involved. Raises
    accord.ResourceExhausted, which says how much is free, if there is no room, and accord.WrongState if the group has
    no such memory.
    """
    extents = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return group_of(group).allocate_tensor(extents, dtype=dtype)


class _Buckets:
    """Averages each bucket. A bucket is moved to a window when it first appears, in the same order on all ranks."""

    def __init__(self, group: ProcessGroup, overlap: bool) -> None:
        self._group = group
        self._overlap = overlap
        # By the bucket's index; DDP creates new buckets after the first step.
        self._windows: dict[int, torch.Tensor] = {}

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future:
        buffer = bucket.buffer()
        places = self._places(bucket, buffer)
        memory = self._windows.get(bucket.index())
        if memory is None or memory.data_ptr() != buffer.data_ptr():
            memory = self._windows[bucket.index()] = self._memory_like(buffer)
            with torch.no_grad():
                for gradient, place in places:
                    gradient.set_(memory.untyped_storage(), place, gradient.size(), gradient.stride())
                buffer.set_(memory.untyped_storage(), 0, buffer.size(), buffer.stride())
        work = dist.all_reduce(buffer, dist.ReduceOp.AVG, self._group, async_op=self._overlap)
        if work is not None:
            # Value() raises the error of a failure.
            return work.get_future().then(lambda ended: (ended.value(), buffer)[1])
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(buffer)
        return done

    def _memory_like(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns a copy of the buffer in a window of its own."""
        try:
            memory = torch.from_dlpack(self._group.communicator.window(buffer.nbytes).local).view(buffer.dtype)
        except accord.Error as error:
            raise as_torch_error(error, self._group.global_ranks) from None
        return memory.copy_(buffer)

    def _places(self, bucket: dist.GradBucket, buffer: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        """Returns each gradient and its offset in the bucket. A gradient elsewhere would be lost in the move."""
        places = []
        for parameter in bucket.parameters():
            if parameter.numel() == 0:
                continue
            place = -1 if parameter.grad is None else parameter.grad.data_ptr() - buffer.data_ptr()
            if not 0 <= place < buffer.nbytes:
                raise RuntimeError(
                    f"accord.torch.in_window: a parameter of shape {tuple(parameter.shape)} has no gradient in its bucket: every "
                    "parameter needs one in each step (no find_unused_parameters, no join), and none may be replaced"
                )
            places.append((parameter.grad, place // buffer.element_size()))
        return places


def _average(buckets, bucket):  # DDP reads annotations, and does not understand string annotations
    return buckets.average(bucket)


def in_window(model: torch.nn.parallel.DistributedDataParallel, *, overlap: bool | None = None) -> None:
    """Places the gradient buckets of `model` in windows of its group, so that its all_reduces need no intermediate
    copies.

    `model` must have been created with gradient_as_bucket_view=True, and all ranks call this before the first step.
    The mean is taken after the sum.
    overlap: whether all_reduces run concurrently with the backward pass. None: only if this host has two cores for
    each of the group's ranks, because two threads on one core take longer than one after the other.
    """
    group = group_of(model.process_group)
    if not model.gradient_as_bucket_view:
        raise ValueError("accord.torch.in_window: pass gradient_as_bucket_view=True to DistributedDataParallel")
    if overlap is None:
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", group.size()))
        overlap = len(os.sched_getaffinity(0)) >= 2 * min(ranks_here, group.size())
    model.register_comm_hook(_Buckets(group, overlap), _average)
