"""The store that torch makes by MASTER_PORT stays open, on the rank that serves it, after the groups that met there
are destroyed.

Ranks destroy groups and make new ones each in its own time. One that is early with init_process_group connects to the
store of before, as long as that is open; were it to close then, the rank would lose it in the middle. Left open, the
rank that serves it finds it again under its port. accord's groups do not mind what earlier ones have left in a store.
(torch's gloo keeps it open as well, once it has called something.)
"""

from __future__ import annotations

import os

import torch.distributed as dist

_kept: list[dist.Store] = []  # one at most


def keep_open(store: dist.Store) -> None:
    """`store`, if it is that one, until another one takes its place. Cost: a connection."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore) and str(store.port) == os.environ.get("MASTER_PORT"):
        _kept[:] = [store]
