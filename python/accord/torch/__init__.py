"""The backend "accord" of torch.distributed.

    torch.distributed.init_process_group("accord")

is all that a program needs: torch finds the backend by itself when accord is installed (docs/pytorch.md). This module has what such a
program may want besides: `Options` of a group, the communicator behind one, tensors in memory that the ranks lend each other, and `shrink`, which
goes on without ranks that have failed.
"""

from accord.torch.errors import ALSO_OF_TORCH
from accord.torch.groups import Options, communicator, from_communicator
from accord.torch.lending import lend_nccl
from accord.torch.memory import empty, in_window
from accord.torch.process_group import ProcessGroup
from accord.torch.recovery import shrink

# The errors of its groups, which are torch.distributed's as well.
globals().update({error.__name__: error for error in ALSO_OF_TORCH.values()})

__all__ = ["Options", "ProcessGroup", "communicator", "empty", "from_communicator", "in_window", "lend_nccl", "shrink"]
