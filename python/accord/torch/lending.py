"""Lends NCCL communicators of torch to accord communicators."""

from __future__ import annotations

import torch
import torch.distributed as dist

import accord
from accord.torch import c10d


def lend_nccl(
    communicator: accord.Communicator, group: dist.ProcessGroup | None = None, device: torch.device | None = None
) -> None:
    """Makes `communicator` use the NCCL communicator of `group` (the default group) for `device` (the current GPU)
    for its calls on GPUs, so that the process has one NCCL communicator instead of two.

    Call it on all ranks, before the first such call of `communicator`, whose ranks must be those of the group in the
    same order. The group must already have run a call on the device, or have been created with `device_id`. The NCCL
    communicator remains torch's: call destroy_process_group() after communicator.close(); if a peer is gone, calls
    end when torch aborts it. The two must not have calls in progress at the same time that ranks enqueue in different
    orders.
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device())
    communicator.lend_nccl(c10d.nccl_pointer(group if group is not None else dist.group.WORLD, device))
