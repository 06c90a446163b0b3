"""Tensors in memory that the ranks of a group lend each other: collectives of them copy nothing on the way (docs/windows.md).

A call does so where the tensors of all ranks lie there; where those of some do and those of others do not, it is a Mismatch.
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
    """A tensor in the memory that `group` (the default one if None) was made with: `Options(window_bytes=...)`.

    Its piece is free again once it and all its views are gone. No other rank is asked. Raises accord.ResourceExhausted, which tells how
    much is free, where there is no room, and accord.WrongState if the group has no such memory.
    """
    extents = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return group_of(group).allocate_tensor(extents, dtype=dtype)


class _Buckets:
    """Averages each bucket, which is moved to a window when it is first seen, in the same order on all ranks."""

    def __init__(self, group: ProcessGroup, overlap: bool) -> None:
        self._group = group
        self._overlap = overlap
        self._windows: dict[int, torch.Tensor] = {}  # by the bucket's index; DDP makes new buckets after the first step

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
            return work.get_future().then(lambda ended: (ended.value(), buffer)[1])  # value() raises a failure
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(buffer)
        return done

    def _memory_like(self, buffer: torch.Tensor) -> torch.Tensor:
        """A copy of it in a window of its own."""
        try:
            memory = torch.from_dlpack(self._group.communicator.window(buffer.nbytes).local).view(buffer.dtype)
        except accord.Error as error:
            raise as_torch_error(error, self._group.global_ranks) from None
        return memory.copy_(buffer)

    def _places(self, bucket: dist.GradBucket, buffer: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        """Each gradient and where in the bucket it begins. One that is elsewhere would be lost when the bucket moves."""
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


def _average(buckets, bucket):  # DDP reads annotations, and does not understand those that are text
    return buckets.average(bucket)


def in_window(model: torch.nn.parallel.DistributedDataParallel, *, overlap: bool | None = None) -> None:
    """Places the gradient buckets of `model` in windows of its group, so that its all_reduces copy nothing on the way.

    `model` was made with gradient_as_bucket_view=True, and all ranks call this before the first step. The mean is taken after the sum.
    overlap: whether all_reduces go on beside the backward pass; None: where this host has two cores for each of the group's ranks, as
    two threads on one core take longer than one after the other.
    """
    group = group_of(model.process_group)
    if not model.gradient_as_bucket_view:
        raise ValueError("accord.torch.in_window: pass gradient_as_bucket_view=True to DistributedDataParallel")
    if overlap is None:
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", group.size()))
        overlap = len(os.sched_getaffinity(0)) >= 2 * min(ranks_here, group.size())
    model.register_comm_hook(_Buckets(group, overlap), _average)
