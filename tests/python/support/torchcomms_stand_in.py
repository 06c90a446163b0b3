"""A module in place of torchcomms, with the parts of it that accord.torchcomms uses, for functions that run in rank
processes. It calls nothing: tests call the backend as torchcomms, or _native, would."""

from __future__ import annotations

import enum
import sys
import types
from datetime import timedelta
from typing import Any


class RedOpType(enum.Enum):
    SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, AVG = range(8)


def install() -> type:
    """Returns accord's backend class, imported over the stand-in."""
    module = types.ModuleType("torchcomms")
    module.RedOpType, module.ReduceOp = RedOpType, types.SimpleNamespace
    module.CommOptions, module.TorchCommBackend = types.SimpleNamespace, object
    module.register_backend = lambda name, kind: None
    sys.modules["torchcomms"] = module
    sys.modules["accord.torchcomms._native"] = None  # needs the real one
    from accord.torchcomms import Backend

    return Backend


ADD = types.SimpleNamespace(type=RedOpType.SUM)


def options(**given: Any) -> types.SimpleNamespace:
    """torchcomms' CommOptions."""
    defaults = {"timeout": timedelta(seconds=30), "hints": {}, "store": None, "enable_reconfigure": False}
    return types.SimpleNamespace(**defaults | given)
