"""Compiled models: load a package, run it; look at a package, check it."""

import difflib
import os
from collections.abc import Mapping

from accord._core import (
    Communicator,
    Damage,
    Engine,
    EngineContext,
    GenerationEvent,
    GenerationStream,
    LanguageModel,
    LoadReport,
    OutputArray,
    TensorInfo,
    TextEvent,
    TextStream,
    inspect,
    verify,
)

__all__ = [
    "Damage",
    "Engine",
    "EngineContext",
    "GenerationEvent",
    "GenerationStream",
    "LanguageModel",
    "LoadReport",
    "OutputArray",
    "TensorInfo",
    "TextEvent",
    "TextStream",
    "inspect",
    "load",
    "verify",
]


def load(
    path: str | os.PathLike[str],
    groups: Mapping[str, Communicator] | None = None,
    *,
    threads: int = 0,
    canonical_ranks: int = 0,
    memory_limit: int | str = 0,
    **unknown: object,
) -> Engine:
    """Loads the engine package at `path` for this rank, bound and ready to run.

    groups: the communicator of each logical group of the package (`{"tp": comm}`); a group that is absent has one rank.
    threads: that it computes with on this rank; 0 is ACCORD_THREADS, which is 1 unless set.
    canonical_ranks: if not 0, a power of two; outputs have the same bits on any number of ranks that divides it.
    memory_limit: bytes (or "2GiB") that weights, arenas and caches may take together on this rank. What would need more is
    refused here (weights, and an arena at the largest sizes), by create_context() and by LanguageModel.create() (arena and
    cache), never by a run; the error names the parts and what would fit. 0: only the weights are held against what the machine
    and the control group have left.

    Collective over the groups, and agreed: if one rank cannot load, every rank gets its error. Raises NotFound, Corrupt
    (naming file and tensor), Unsupported (naming the op and its place in the model), InvalidArgument (a group that the
    package does not have, more ranks than units to share), ResourceExhausted, Mismatch (ranks that loaded different
    packages), TypeError (an option that there is not, with the nearest one).
    """
    for name in unknown:
        near = difflib.get_close_matches(name, ["groups", "threads", "canonical_ranks", "memory_limit"], n=1)
        raise TypeError(f'load() has no option "{name}"' + (f'; did you mean "{near[0]}"?' if near else ""))
    return Engine.load_and_bind(
        path, groups, threads=threads, canonical_ranks=canonical_ranks, memory_limit=memory_limit
    )
