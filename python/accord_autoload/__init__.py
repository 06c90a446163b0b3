"""Runs with `import torch`, through the entry point "torch.backends": registers "accord" with torch.distributed, and
reads the switch.

Nothing of accord is imported until a process group of that name is created, or until ACCORD_ROUTE requests all
groups.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def register() -> None:
    """Registers "accord" as a backend of torch.distributed, and with ACCORD_ROUTE=1 as the backend of every group.
    Cost if that is unset: microseconds.
    """
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        return
    distributed.Backend.register_backend("accord", _create, extended_api=True, devices=["cpu"])
    how = os.environ.get("ACCORD_ROUTE", "")
    if how not in ("", "0", "off"):
        importlib.import_module("accord.torch.route").install(how)


def _create(options: Any, backend_options: Any) -> Any:
    return importlib.import_module("accord.torch.groups").create(options, backend_options)
