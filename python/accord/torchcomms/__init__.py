"""The torchcomms backend "accord": torchcomms.new_comm("accord", torch.device("cpu"), "world"). The guide is
docs/torchcomms.md.

torchcomms finds this module through the entry point group torchcomms.backends, and imports it when the backend is
first requested.
"""

import importlib.metadata
import importlib.util

import torchcomms

from accord.torchcomms.backend import Backend

__all__ = ["Backend"]

if importlib.util.find_spec("accord.torchcomms._native") is None:
    torchcomms.register_backend("accord", Backend)
else:
    from accord.torchcomms import _native

    installed = tuple(map(importlib.metadata.version, ("torch", "torchcomms")))
    if installed != _native.built_for:
        raise ImportError(
            f"accord.torchcomms._native was built for torch {_native.built_for[0]} and torchcomms {_native.built_for[1]}, "
            f"but {installed[0]} and {installed[1]} are installed; build accord again, or without ACCORD_TORCHCOMMS"
        )
    _native.register_backend(Backend)
