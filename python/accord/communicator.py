"""Ranks that compute together: Communicator, Work, and the stores by which ranks find each other."""

from accord._core import Communicator, FileStore, MemoryStore, PrefixStore, Store, TcpStore, Work

__all__ = ["Communicator", "FileStore", "MemoryStore", "PrefixStore", "Store", "TcpStore", "Work"]
