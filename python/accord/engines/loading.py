"""Loads engine packages and saved programs: accord.load."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from accord._core import Communicator, Engine

if TYPE_CHECKING:
    from accord.engines.program import Program

PROGRAM_FORMAT = b'"accord-program"'


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
    """Loads the engine package at `path` for this rank, bound and ready to run. A package with PyTorch partitions is
    loaded as an accord.Program, which also has run() and module() and needs PyTorch.

    groups: the communicator of each logical group of the package (`{"tp": comm}`). A group that is absent has one
    rank.
    device: "cpu", or "cuda:0" (or a torch.device) for an engine on that GPU: the weights are stored there, run()
    accepts NumPy arrays or arrays on that GPU, and returns arrays on the CPU. An op without a GPU kernel is rejected.
    See docs/gpu.md.
    threads: compute threads on this rank. 0 means ACCORD_THREADS, which is 1 unless set. Loading reads and verifies
    weights with more threads, up to 16, which end when loading ends.
    canonical_ranks: if not 0, a power of two: outputs are bit-identical for every number of ranks that divides it.
    Also works on GPUs of one model, where it excludes overlap_rows and activation_dtype.
    overlap_rows: if not 0, runs of at least this many rows (tokens of a prompt) are computed in two halves: the sum
    over the ranks at the end of a row-parallel layer is in progress for one half while the other half is computed.
    For ranks on several hosts, where a sum takes long but needs no core. On the CPU, results are bit-identical to
    those without it. Equal on all ranks.
    all_reduce_dtype: "int8": sums over the ranks of 32 KB and more are sent as 8-bit codes, in groups of 64 neighbors
    with one scale: about a quarter of the bytes of float32, half those of bfloat16. An element's error is at most
    1/127 of the sum, over the ranks, of the largest magnitudes among those 64. All ranks get identical bits, which
    depend on the number of ranks and on how many rows are computed together. For links that are slow compared with
    the ranks. Excludes canonical_ranks and overlap_rows. Equal on all ranks.
    activation_dtype: "int8", only on the CPU: the inputs of products with 8-bit or 4-bit weights are rounded to
    multiples of max |x| / 127, for each row and each group of the weights, so an input's error is at most max |x| /
    254 of its group. llama.cpp and OpenVINO do this by default. Fastest on processors with VNNI. "fp8", only on GPUs:
    in products of more than 8 rows with weights in 8-bit floats (weights="fp8" of accord.export), each row is divided
    by max |x| / 448 and rounded to such floats. Products with other weights do not change. Equal on all ranks.
    memory_limit: bytes (or "2GiB") that weights, arenas and caches may use together on this rank. Whatever would need
    more is rejected by load() (weights, and an arena at the largest sizes), by create_context() and by
    LanguageModel.create() (arena and cache), never by a run; the error lists the parts and what would fit. 0: only
    the weights are compared with what the machine and the control group have left. The parts of a program share one
    limit: it counts the engines with an arena each, and the weights that PyTorch partitions hold, but not the memory
    that PyTorch uses temporarily while it runs them.
    strict: rejects a package with PyTorch partitions, with an error that lists them and their ops.

    Collective over the groups, with a common outcome: if one rank cannot load, every rank raises its error. Raises
    NotFound, Corrupt (names file and tensor), Unsupported (names the op and its place in the model), InvalidArgument
    (a group that the package does not have, or more ranks than units to share), ResourceExhausted, Mismatch (ranks
    that loaded different packages), and TypeError (an unknown option, with the nearest known one).
    """
    of_engines = {
        "device": str(device),  # str() of a torch.device has this form
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
        from accord.engines.program import load_program

        return load_program(Path(path), groups, strict=strict, memory_limit=memory_limit, **of_engines)
    return Engine.load_and_bind(path, groups, **of_engines, memory_limit=memory_limit)


def _has_several_parts(path: Path) -> bool:
    """Returns True for a saved program that is more than one engine per rank."""
    try:
        with open(path / "manifest.json", "rb") as file:
            if PROGRAM_FORMAT not in file.read(64):
                return False
            file.seek(0)
            ranks = json.load(file)["ranks"]
        return any(len(rank["parts"]) != 1 or rank["parts"][0]["runs_in"] == "pytorch" for rank in ranks)
    except (OSError, ValueError, LookupError, TypeError):
        return False  # Engine.load_and_bind() reports the error
