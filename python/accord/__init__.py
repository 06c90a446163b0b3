"""accord: one communicator for everything a program does across ranks, and compiled engines that run on it.

    import accord, numpy

    with accord.Communicator.from_environment() as comm:
        x = numpy.full(4, comm.rank, dtype=numpy.float32)
        comm.all_reduce(x)

Importing accord imports neither NumPy nor PyTorch. `accord.export` alone needs PyTorch, and imports it when it is used.
"""

import importlib
import sys
from typing import TYPE_CHECKING

from accord import plan
from accord._core import (
    Aborted,
    Closed,
    Corrupt,
    Error,
    InternalError,
    InvalidArgument,
    IoError,
    Mismatch,
    NotFound,
    PeerLost,
    ResourceExhausted,
    Timeout,
    Unsupported,
    WrongState,
    __version__,
    info,
)
from accord.communicator import (
    Batch,
    Communicator,
    FileStore,
    MemoryStore,
    PrefixStore,
    Prepared,
    Store,
    TcpStore,
    Window,
    WindowArray,
    Work,
)
from accord.engine import (
    Damage,
    Engine,
    EngineContext,
    LoadReport,
    OutputArray,
    TensorInfo,
    inspect,
    load,
    verify,
)

if TYPE_CHECKING:
    from accord.export_graph import UnsupportedOpError
    from accord.export_sharding import Column, ExportError, Row
    from accord.exporter import export

__all__ = [
    "Aborted",
    "Batch",
    "Closed",
    "Column",
    "Communicator",
    "Corrupt",
    "Damage",
    "Engine",
    "EngineContext",
    "Error",
    "ExportError",
    "FileStore",
    "InternalError",
    "InvalidArgument",
    "IoError",
    "LoadReport",
    "MemoryStore",
    "Mismatch",
    "NotFound",
    "OutputArray",
    "PeerLost",
    "PrefixStore",
    "Prepared",
    "ResourceExhausted",
    "Row",
    "Store",
    "TcpStore",
    "TensorInfo",
    "Timeout",
    "Unsupported",
    "UnsupportedOpError",
    "Window",
    "WindowArray",
    "Work",
    "WrongState",
    "__version__",
    "export",
    "info",
    "inspect",
    "load",
    "plan",
    "verify",
]

for _public in [value for name, value in globals().items() if name in __all__ and isinstance(value, type)]:
    _public.__module__ = "accord"  # what tracebacks and repr() say


# Of the exporter: where each name is, imported (with PyTorch, where it needs that) when it is first used.
_EXPORTER = {
    "Column": "accord.export_sharding",
    "ExportError": "accord.export_sharding",
    "Row": "accord.export_sharding",
    "UnsupportedOpError": "accord.export_graph",
    "export": "accord.exporter",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTER:
        raise AttributeError(f"module 'accord' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = getattr(importlib.import_module(_EXPORTER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
