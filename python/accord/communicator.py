"""Ranks that compute together: Communicator, Work, and the stores through which ranks find each other."""

from accord._core import (
    Batch,
    Communicator,
    DeviceWindow,
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
