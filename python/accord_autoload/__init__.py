"""What `import torch` runs of accord, by the entry point "torch.backends": it makes the name "accord" known to torch.distributed.

Nothing of accord is imported until a process group of that name is made.
"""

from __future__ import annotations

import importlib
from typing import Any


def register() -> None:
    """Makes "accord" a backend of torch.distributed. Cost: microseconds."""
    distributed = importlib.import_module("torch.distributed")
    if distributed.is_available():
        distributed.Backend.register_backend("accord", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any) -> Any:
    return importlib.import_module("accord.torch.groups").create(options, backend_options)
