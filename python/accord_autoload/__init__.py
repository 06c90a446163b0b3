"""What `import torch` runs of accord, by the entry point "torch.backends": it makes the name "accord" known to torch.distributed, and reads the switch.

Nothing of accord is imported until a process group of that name is made, or ACCORD_ROUTE asks for all of them.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def register() -> None:
    """Makes "accord" a backend of torch.distributed, and with ACCORD_ROUTE=1 the one of every group. Cost where that is unset: microseconds."""
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        return
    distributed.Backend.register_backend("accord", _create, extended_api=True, devices=["cpu"])
    how = os.environ.get("ACCORD_ROUTE", "")
    if how not in ("", "0", "off"):
        importlib.import_module("accord.torch.route").install(how)


def _create(options: Any, backend_options: Any) -> Any:
    return importlib.import_module("accord.torch.groups").create(options, backend_options)
