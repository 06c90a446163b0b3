"""Where the ranks of a new communicator meet: in the store of the caller's options, or else in one that the job
creates.

Rank and size come from the same variables, in the same order, as in torchcomms' other backends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import accord
from accord import _core

if TYPE_CHECKING:
    from torchcomms import CommOptions

# (name of the method, variables of the rank, variables of the size); the first complete set counts.
_SOURCES = (
    ("", ("TORCHCOMM_RANK",), ("TORCHCOMM_SIZE",)),
    ("mpi", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("mpi", ("PMI_RANK",), ("PMI_SIZE",)),
    ("pals", ("PALS_RANKID",), ("PALS_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")),
    ("torchrun", ("RANK",), ("WORLD_SIZE",)),
)


def _number(names: tuple[str, ...]) -> int | None:
    for name in names:
        text = os.environ.get(name, "").strip()
        if text:
            try:
                return int(text)
            except ValueError:
                raise RuntimeError(f"Invalid value for environment variable {name}: {text}") from None
    return None


def rank_and_size() -> tuple[int, int]:
    """Returns this process's rank and the number of ranks, from the environment. Raises RuntimeError if not set."""
    method = os.environ.get("TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD", "auto").strip().lower()
    for launcher, ranks, sizes in _SOURCES:
        if launcher and method not in ("auto", launcher):
            continue
        rank, size = _number(ranks), _number(sizes)
        if rank is not None and size is not None and rank >= 0 and size > 0:
            return rank, size
    raise RuntimeError(
        "accord cannot determine this process's rank and the number of ranks: "
        "set TORCHCOMM_RANK and TORCHCOMM_SIZE, or start it with torchrun, accord run or mpirun"
    )


def keywords_of(options: CommOptions) -> dict[str, Any]:
    """Returns the keywords of accord.Communicator.create for the options' timeout and hints."""
    return {"timeout": timeout_of(options.timeout)} | creation_keywords(options.hints)


def creation_keywords(hints: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keywords of accord.Communicator.create for the hints."""
    keywords: dict[str, Any] = {}
    others = []
    for name, value in sorted(hints.items()):
        if name in ("select", "transport"):
            keywords[name] = value
        elif name not in ("async", "persistent_store"):
            if set(name + value) & set(",="):
                raise RuntimeError(f'hint "{name}": neither it nor its value "{value}" may contain a comma or "="')
            others.append(f"{name}={value}")
    return keywords | {"hints": ",".join(others)}


def inherited(parent: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Returns the hints of a part: those of its parent, which its own ones replace; rules for selecting plans follow
    those of the parent. The part's own "async" counts alone."""
    hints = {name: value for name, value in parent.items() if name != "async"} | dict(own)
    if "select" in parent and "select" in own:
        hints["select"] = f"{parent['select']};{own['select']}"
    return hints


def starts_collectives(hints: Mapping[str, str]) -> bool:
    """Returns True if the hint "async" requests collectives that run in the background."""
    value = hints.get("async", "at_once")
    if value not in ("at_once", "background"):
        raise RuntimeError(f'hint "async" is "{value}", expected "at_once" or "background"')
    return value == "background"


def timeout_of(timeout: Any) -> float | None:
    """Returns seconds, or None for torchcomms' 0, "the default"."""
    return timeout.total_seconds() or None


def communicator(name: str, options: CommOptions) -> accord.Communicator:
    """Creates the communicator together with all other ranks of the job."""
    rank, size = rank_and_size()
    keywords = keywords_of(options)
    store = options.store
    if store is None:
        store = _core.job_store(rank, size, keywords["timeout"])
    return accord.Communicator.create(accord.PrefixStore(store, "torchcomms"), rank, size, name=name, **keywords)
