"""Builds the engine of a block: from weights in memory, or from the engine cache.

In a cached package, the weights of products are packed, and processes that run the same model share its pages. An
engine built without the cache packs a copy of its own. Writing a package costs more than packing, so small engines
are not cached.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import accord
from accord.engine_cache import EngineCache, cache_key
from accord.graph.builder import ExportedGraph
from accord.graph.errors import ExportError
from accord.jit.options import Options
from accord.package.sharding import ShardingPlan
from accord.package.weights import plan_packings
from accord.package.writer import write_package
from accord.process_groups import place_in, process_group

if TYPE_CHECKING:
    from accord.jit.compiled_graph import EnginePlan

WORTH_CACHING = 64 << 20  # bytes of weights
NO_PROGRAM = "0" * 32  # ranks have packages of their own, which share nothing but collectives


def build_engine(
    plan: EnginePlan, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], options: Options
) -> tuple[accord.Engine, bool]:
    """Returns an unbound engine, and whether its package was in the cache. sizes: the sizes at which it is tried.
    Raises the same errors as Engine.assemble().
    """
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    places = {name: place_in(process_group(group)) for name, group in plan.groups.items()}
    worth = sum(tensor.nbytes for tensor in tensors.values()) >= WORTH_CACHING
    if options.engine_cache is True or (options.engine_cache == "auto" and worth):
        with contextlib.suppress(accord.Error, ExportError, OSError):  # on a cache failure, build it
            return _cached_engine(plan, tensors, places, options)
    engine = accord.Engine.assemble(
        json.dumps(plan.document), tensors, places, sizes=sizes, name=plan.name, **options.of_load()
    )
    return engine, False


def _cached_engine(
    plan: EnginePlan, tensors: Mapping[str, torch.Tensor], places: Mapping[str, tuple[int, int]], options: Options
) -> tuple[accord.Engine, bool]:
    members = {name: dist.get_process_group_ranks(process_group(group)) for name, group in plan.groups.items()}
    facts = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(options).items()}
    key = cache_key(
        plan.document,
        tensors,
        groups={name: {"place": place, "members": members[name]} for name, place in places.items()},
        options=facts,
    )
    built = []

    def build(path: Path) -> None:
        (packings,) = plan_packings([(ExportedGraph(plan.document, dict(tensors), plan.uses), {})], None)
        write_package(
            path,
            plan.document,
            tensors,
            ShardingPlan([], {}, list(places)),
            "accord, just in time",
            packings=packings,
            part={"program": NO_PROGRAM, "places": {name: list(place) for name, place in places.items()}},
        )
        built.append(path)

    # Mapped pages remain valid after the package is removed.
    with EngineCache().package(key, build) as path:
        return accord.Engine.load(path, places, **options.of_load()), not built
