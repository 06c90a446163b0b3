"""Grids of ranks with groups along any of their dimensions, like megatron-core's HyperCommGrid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import accord
from accord._integers import integer, integers
from accord.mesh import MeshPlan
from accord.mesh.torch_mesh import TorchMesh
from accord.torch.fates import NO_EFFECT_ON_CPU, changed_options, fate_of, raise_if_unused
from accord.torch.process_group import ProcessGroup

_Dims = str | Sequence[str]


def _sizes(shape: Sequence[int]) -> list[int]:
    return integers(shape, "mesh: the sizes of a grid", accord.InvalidArgument)


class HyperCommGrid:
    """A grid of ranks, and process groups along its dimensions. The ranks of the first dimension are adjacent.

        grid = HyperCommGrid([2, 4], ["tp", "dp"])
        tp = grid.create_pg("tp")
        grid.register_view("experts", [4, 2], ["ep", "edp"])  # another grid over the same ranks
        ep = grid.create_pg("ep", view="experts")

    Names of dimensions, rank lists and calls are megatron-core's. create_pg is one collective step of all ranks of
    the default group.
    """

    def __init__(
        self, shape: Sequence[int], dim_names: Sequence[str], rank_offset: int = 0, backend: str | None = None
    ) -> None:
        """backend: the backend that programs pass to megatron-core. The groups are accord's, as report() states."""
        self.shape, self.dim_names = _sizes(shape), list(dim_names)
        self.rank_offset = integer(rank_offset, "mesh: rank_offset", accord.InvalidArgument)
        self.backend = backend
        self.size = math.prod(self.shape)
        self._views: dict[str | None, dict[str, int]] = {}
        self._meshes: dict[str, TorchMesh] = {}
        self._fates: dict[str, list[dict[str, Any]]] = {}
        self._add_view(None, self.shape, dim_names)
        needed = self.size + self.rank_offset
        world_size = dist.get_world_size() if dist.is_initialized() else needed
        if needed > world_size:
            ranks = f"{self.size} ranks from rank {self.rank_offset}"
            text = f"mesh: a grid of {ranks} needs {needed} ranks, but there are {world_size}"
            raise accord.InvalidArgument(text)

    def register_view(self, name: str, shape: Sequence[int], dim_names: Sequence[str]) -> None:
        """Adds another grid over the same ranks, which the other calls select with `view=name`."""
        if name in self._views:
            raise accord.InvalidArgument(f'mesh: view "{name}" already exists')
        sizes = _sizes(shape)
        if math.prod(sizes) != self.size:
            raise accord.InvalidArgument(
                f'mesh: view "{name}" has {math.prod(sizes)} ranks, but the grid has {self.size}'
            )
        self._add_view(name, sizes, dim_names)

    def _add_view(self, name: str | None, shape: list[int], dim_names: Sequence[str]) -> None:
        if len(shape) != len(dim_names):
            raise accord.InvalidArgument(f"mesh: {len(shape)} sizes for {len(dim_names)} names of dimensions")
        sizes = dict(zip(dim_names, shape, strict=True))
        if len(sizes) != len(dim_names):
            raise accord.InvalidArgument(f"mesh: a dimension appears twice: {list(dim_names)}")
        MeshPlan.of_axes(sizes, [[dim] for dim in dim_names], self.rank_offset)
        self._views[name] = sizes

    def _plan(self, dims: _Dims, view: str | None) -> MeshPlan:
        if view not in self._views:
            known = [name for name in self._views if name is not None]
            raise accord.NotFound(f'mesh: there is no view "{view}"; the views are {known}')
        wanted = [dims] if isinstance(dims, str) else list(dims)
        return MeshPlan.of_axes(self._views[view], [wanted], self.rank_offset)

    def create_pg(
        self,
        dims: _Dims,
        *,
        view: str | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        strict: bool = False,
    ) -> ProcessGroup | None:
        """Creates and returns the group along `dims` that contains this rank; None on ranks outside the grid.
        Collective; call it once for the same dims.

        pg_options: another backend's options, for report(). strict: options that have no effect here raise
        Unsupported. group_desc: description of the group.
        """
        fates = [fate_of(*option, "not applicable", NO_EFFECT_ON_CPU) for option in changed_options(pg_options).items()]

        def plan() -> MeshPlan:
            key = self._key(dims, view)
            if key in self._meshes:
                raise accord.InvalidArgument(
                    f'mesh: the groups of "{key}" have already been created; get_pg returns them'
                )
            if strict:
                raise_if_unused(fates)
            return self._plan(dims, view)

        mesh = TorchMesh.create(plan, timeout=timeout, strict=strict)
        key = self._key(dims, view)
        self._meshes[key], self._fates[key] = mesh, fates
        return mesh.group(mesh.plan.families[0].name, group_desc)

    def get_pg(self, dims: _Dims, *, view: str | None = None) -> ProcessGroup | None:
        """Returns the group that create_pg created."""
        key = self._key(dims, view)
        if key not in self._meshes:
            raise accord.NotFound(f'mesh: the groups of "{key}" have not been created; call create_pg first')
        mesh = self._meshes[key]
        return mesh.group(mesh.plan.families[0].name)

    def report(self) -> list[dict[str, Any]]:
        """Reports what happened to each option of each group: dicts of key, option, value, fate and why."""
        backend = (
            [] if self.backend is None else [fate_of("backend", self.backend, "translated", "the group is accord's")]
        )
        return [{"key": key} | one for key, fates in self._fates.items() for one in backend + fates]

    def get_rank_enum(self, dims: _Dims, *, view: str | None = None) -> list[list[int]]:
        """Returns all groups along `dims`, as lists of ranks."""
        plan = self._plan(dims, view)
        return plan.all_groups(plan.families[0].name)

    def _key(self, dims: _Dims, view: str | None) -> str:
        family = self._plan(dims, view).families[0].name
        return family if view is None else f"{view}: {family}"

    def close(self) -> None:
        """Ends all groups of this rank. Idempotent."""
        for mesh in self._meshes.values():
            mesh.close()
        self._meshes.clear()
        self._fates.clear()
