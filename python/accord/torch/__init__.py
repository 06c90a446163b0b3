"""The backend "accord" of torch.distributed.

    torch.distributed.init_process_group("accord")

A program needs nothing else: torch finds the backend by itself when accord is installed (docs/pytorch.md). This
module contains what such a program may also want: `Options` of a group, a group's communicator, tensors in memory
that the ranks share, `shrink`, which continues without ranks that have failed, and `reconfigure`, which forms a group
of any ranks.
"""

from accord.torch.elastic import ElasticGroup
from accord.torch.errors import ALSO_OF_TORCH
from accord.torch.groups import Options, communicator, from_communicator
from accord.torch.lending import lend_nccl
from accord.torch.memory import empty, in_window
from accord.torch.process_group import ProcessGroup
from accord.torch.reconfigurable import reconfigure, reconfigure_handle
from accord.torch.recovery import shrink

# The errors of its groups, which are also torch.distributed's.
globals().update({error.__name__: error for error in ALSO_OF_TORCH.values()})

__all__ = [
    "ElasticGroup",
    "Options",
    "ProcessGroup",
    "communicator",
    "empty",
    "from_communicator",
    "in_window",
    "lend_nccl",
    "reconfigure",
    "reconfigure_handle",
    "shrink",
]
