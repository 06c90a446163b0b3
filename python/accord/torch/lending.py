"""NCCL communicators of torch's, lent to accord's."""

from __future__ import annotations

import torch
import torch.distributed as dist

import accord
from accord.torch import c10d


def lend_nccl(
    communicator: accord.Communicator, group: dist.ProcessGroup | None = None, device: torch.device | None = None
) -> None:
    """Makes the NCCL communicator of `group` (the default one) for `device` (the current GPU) the one of `communicator`'s calls on GPUs, so that the process has
    one of NCCL's where it would have two.

    On all ranks, before the first such call of `communicator`, whose ranks are those of the group in the same order. The group has to have called something on the
    device, or was made with `device_id`. It stays torch's: destroy_process_group() comes after communicator.close(), and where a peer is gone the calls end when torch
    aborts it. The two must not have calls under way at the same time that ranks put there in different orders.
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device())
    communicator.lend_nccl(c10d.nccl_pointer(group if group is not None else dist.group.WORLD, device))
