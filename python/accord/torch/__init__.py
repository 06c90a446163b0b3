"""The backend "accord" of torch.distributed.

    torch.distributed.init_process_group("accord")

is all that a program needs: torch finds the backend by itself when accord is installed (docs/pytorch.md). This module has what such a
program may want besides: `Options` of a group, and the communicator behind one.
"""

from accord.torch.groups import Options, communicator
from accord.torch.process_group import ProcessGroup

__all__ = ["Options", "ProcessGroup", "communicator"]
