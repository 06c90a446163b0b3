"""Compiled models: load a package, run it; look at a package, check it."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from accord.program import Program

PROGRAM_FORMAT = b'"accord-program"'

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
    device: str = "cpu",
    threads: int = 0,
    canonical_ranks: int = 0,
    overlap_rows: int = 0,
    all_reduce_dtype: str | None = None,
    activation_dtype: str | None = None,
    memory_limit: int | str = 0,
    strict: bool = False,
    **unknown: object,
) -> Engine | Program:
    """Loads the engine package at `path` for this rank, bound and ready to run. A package with PyTorch partitions gives an
    accord.Program, which has run() and module() too and needs PyTorch.

    groups: the communicator of each logical group of the package (`{"tp": comm}`); a group that is absent has one rank.
    device: "cpu", or "cuda:0" (or torch's own devices) for an engine on that GPU: weights go there, run() takes arrays of
    NumPy's or of that GPU and gives arrays on the CPU. An op without a kernel for GPUs is refused, as are the three options after threads. docs/gpu.md.
    threads: that it computes with on this rank; 0 is ACCORD_THREADS, which is 1 unless set. Weights are read and
    checked by more, up to 16, which end with loading.
    canonical_ranks: if not 0, a power of two; outputs have the same bits on any number of ranks that divides it.
    overlap_rows: if not 0, runs of at least so many rows (tokens of a prompt) are computed in two halves, and the sum over the
    ranks in which a row-parallel layer ends is under way for one half while the other one is computed. For ranks on several
    hosts, where a sum takes long and no core. No bit changes. Equal on all ranks.
    all_reduce_dtype: "int8": sums over the ranks of 32 KB and more travel in codes of 8 bits, 64 neighbours with one scale; about
    a quarter of the bytes of float32, half those of bfloat16. An element's error is at most 1/127 of what the largest
    magnitudes among those 64 add up to over the ranks. All ranks have the same bits, which depend on their number and on how
    many rows are computed together. For links that are slow beside the ranks. Not with canonical_ranks or overlap_rows. Equal
    on all ranks.
    activation_dtype: "int8": rows that are multiplied with weights of 8 or 4 bits are rounded to whole numbers of max |x| / 127, for
    each row and each of the weights' groups: an input's error is at most max |x| / 254 of its group. What llama.cpp and OpenVINO do
    unasked; fastest on processors with VNNI. On the CPU alone. "fp8", on GPUs alone: in products of more than 8 rows with weights in 8-bit
    floats (weights="fp8" of accord.export) each row is divided by max |x| / 448 and rounded to such floats. Products with other weights stay as
    they are. Equal on all ranks.
    memory_limit: bytes (or "2GiB") that weights, arenas and caches may take together on this rank. What would need more is
    refused here (weights, and an arena at the largest sizes), by create_context() and by LanguageModel.create() (arena and
    cache), never by a run; the error names the parts and what would fit. 0: only the weights are held against what the machine
    and the control group have left. Of a program the parts count together: the engines with an arena each, and the weights that
    PyTorch partitions hold, but not what PyTorch takes for a while as it runs them.
    strict: refuses a package with PyTorch partitions, naming them and their ops.

    Collective over the groups, and agreed: if one rank cannot load, every rank gets its error. Raises NotFound, Corrupt
    (naming file and tensor), Unsupported (naming the op and its place in the model), InvalidArgument (a group that the
    package does not have, more ranks than units to share), ResourceExhausted, Mismatch (ranks that loaded different
    packages), TypeError (an option that there is not, with the nearest one).
    """
    of_engines = {
        "device": str(device),  # torch.device reads so
        "threads": threads,
        "canonical_ranks": canonical_ranks,
        "overlap_rows": overlap_rows,
        "all_reduce_dtype": all_reduce_dtype,
        "activation_dtype": activation_dtype,
    }
    for name in unknown:
        near = difflib.get_close_matches(name, ["groups", *of_engines, "memory_limit", "strict"], n=1)
        raise TypeError(f'load() has no option "{name}"' + (f'; did you mean "{near[0]}"?' if near else ""))
    if _has_several_parts(Path(path)):
        from accord.program import load_program

        return load_program(Path(path), groups, strict=strict, memory_limit=memory_limit, **of_engines)
    return Engine.load_and_bind(path, groups, **of_engines, memory_limit=memory_limit)


def _has_several_parts(path: Path) -> bool:
    """Whether it is a saved program that is more than one engine for each rank."""
    try:
        with open(path / "manifest.json", "rb") as file:
            if PROGRAM_FORMAT not in file.read(64):
                return False
            file.seek(0)
            ranks = json.load(file)["ranks"]
        return any(len(rank["parts"]) != 1 or rank["parts"][0]["runs_in"] == "pytorch" for rank in ranks)
    except (OSError, ValueError, LookupError, TypeError):
        return False  # Engine.load_and_bind() tells what is wrong
