"""The torchcomms backend "accord": torchcomms.new_comm("accord", torch.device("cpu"), "world"). docs/torchcomms.md is its guide.

torchcomms finds this module by the entry point group torchcomms.backends and imports it when the backend is first asked for.
"""

import torchcomms

from accord.torchcomms.backend import Backend

__all__ = ["Backend"]

torchcomms.register_backend("accord", Backend)
