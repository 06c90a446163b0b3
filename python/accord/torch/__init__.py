"""The backend "accord" of torch.distributed.

    torch.distributed.init_process_group("accord")

is all that a program needs: torch finds the backend by itself when accord is installed (docs/pytorch.md). This module has what such a
program may want besides: `Options` of a group, the communicator behind one, and tensors in memory that the ranks lend each other.
"""

from accord.torch.groups import Options, communicator
from accord.torch.memory import empty, in_window
from accord.torch.process_group import ProcessGroup

__all__ = ["Options", "ProcessGroup", "communicator", "empty", "in_window"]
