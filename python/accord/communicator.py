"""Ranks that compute together: Communicator, ElasticGroup, Work, and the stores through which ranks find each other."""

from accord._core import (
    Batch,
    Communicator,
    DeviceWindow,
    ElasticGroup,
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

__all__ = [
    "Batch",
    "Communicator",
    "DeviceWindow",
    "ElasticGroup",
    "FileStore",
    "MemoryStore",
    "PrefixStore",
    "Prepared",
    "Store",
    "TcpStore",
    "Window",
    "WindowArray",
    "Work",
]
