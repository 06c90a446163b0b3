"""Compiled models: load a package, run it; look at a package, check it."""

import os
from collections.abc import Mapping

from accord._core import (
    Communicator,
    Damage,
    Engine,
    EngineContext,
    LoadReport,
    OutputArray,
    TensorInfo,
    inspect,
    verify,
)

__all__ = ["Damage", "Engine", "EngineContext", "LoadReport", "OutputArray", "TensorInfo", "inspect", "load", "verify"]


def load(path: str | os.PathLike[str], groups: Mapping[str, Communicator] | None = None, *, threads: int = 0) -> Engine:
    """Loads the engine package at `path` for this rank, bound and ready to run.

    groups: the communicator of each logical group of the package (`{"tp": comm}`); a group that is absent has one rank.
    threads: that it computes with on this rank; 0 is ACCORD_THREADS, which is 1 unless set.

    Collective over the groups, and agreed: if one rank cannot load, every rank gets its error. Raises NotFound, Corrupt
    (naming file and tensor), Unsupported (naming the op and its place in the model), InvalidArgument (a group that the
    package does not have, more ranks than units to share), Mismatch (ranks that loaded different packages).
    """
    return Engine.load_and_bind(path, groups, threads=threads)
