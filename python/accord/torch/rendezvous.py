"""Keeps the store that torch creates at MASTER_PORT open, on the rank that serves it, after the groups that met there
are destroyed.

Each rank destroys groups and creates new ones at its own pace. A rank that is early with init_process_group connects
to the previous store, as long as that is open; if it closed at that point, the rank would lose it in the middle. If
it stays open, the rank that serves it finds it again under its port. accord's groups ignore what earlier ones have
left in a store. (torch's gloo keeps it open as well, once it has run a call.)
"""

from __future__ import annotations

import os

import torch.distributed as dist

_kept: list[dist.Store] = []  # at most one


def keep_open(store: dist.Store) -> None:
    """Keeps `store` open, if it is the one at MASTER_PORT, until another takes its place. Cost: a connection."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore) and str(store.port) == os.environ.get("MASTER_PORT"):
        _kept[:] = [store]
