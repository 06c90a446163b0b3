"""Meshes whose groups are process groups of torch.distributed, and torch's own meshes."""

from __future__ import annotations

import contextlib
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import accord
from accord.mesh import Mesh, MeshPlan
from accord.process_groups import SharedCommunicator, shared_communicator
from accord.torch import c10d
from accord.torch.groups import from_communicator
from accord.torch.process_group import ProcessGroup

# Meshes of this process so far. They are made by all ranks, one after the other, so that ranks count alike; one that does not is told at creation.
_made = itertools.count()

# Communicators over default groups of other backends, as long as those are there: making one costs more than a mesh.
_kept: weakref.WeakKeyDictionary[dist.ProcessGroup, SharedCommunicator] = weakref.WeakKeyDictionary()

# The families of the axes of experts that dense layers have too; all others are called as their axis.
_FAMILIES_OF_EXPERTS = {"etp": "ep_tp", "egtp": "ep_gtp", "edp": "ep_dp"}


class TorchMesh:
    """The groups of a plan as process groups of torch.distributed, over accord whatever the default group's backend is.

    Families with the same ranks and options share a group. A group is made when it is first asked for, which needs no other rank.
    """

    def __init__(self, mesh: Mesh, shared: SharedCommunicator, name: str, timeout: timedelta) -> None:
        """create() makes one."""
        self.mesh = mesh
        self._shared = shared  # that the communicator lives as long as this
        self._name = name
        self._timeout = timeout
        self._groups: dict[str, ProcessGroup] = {}
        own = mesh.plan.groups_of(mesh.rank) if mesh.has_groups else []
        self._first_family = {family: names[0] for names, _, _ in own for family in names}

    @classmethod
    def create(
        cls,
        plan: MeshPlan | Callable[[], MeshPlan],
        *,
        timeout: timedelta | None = None,
        strict: bool = False,
        name: str | None = None,
    ) -> TorchMesh:
        """Collective over the default group, whose ranks the plan's numbers are; those beyond the mesh get one without groups.

        plan: or what makes it; where that raises on one rank, all others fail at once with PeerLost, which has the reason. timeout: of creation
        and of the groups' calls, where their options have no other; the default group's. strict: options that change nothing here
        are Unsupported. Mismatch shows what is different in the plans of two ranks. Cost: one exchange among the ranks, whatever the number
        of groups.
        """
        if not dist.is_initialized():
            raise accord.WrongState("mesh: torch.distributed has no default group yet; call init_process_group first")
        shared, usual_timeout = _default_communicator(timeout)
        name = name or f"mesh{next(_made)}"
        how = {"name": name, "timeout": timeout or usual_timeout}
        try:
            planned = plan() if callable(plan) else plan
            if not isinstance(planned, MeshPlan):
                raise accord.InvalidArgument(f"mesh: the plan is {planned!r}, no MeshPlan")
            if planned.rank_offset + planned.world_size > dist.get_world_size():
                ranks = f"{planned.rank_offset} to {planned.rank_offset + planned.world_size - 1}"
                raise accord.InvalidArgument(f"mesh: ranks {ranks} are planned, but there are {dist.get_world_size()}")
        except Exception as error:
            with contextlib.suppress(accord.Error):  # the ranks that fail too
                Mesh.decline(shared.communicator, f"{type(error).__name__}: {error}", **how)
            raise
        return cls(Mesh.create(planned, shared.communicator, strict=strict, **how), shared, name, how["timeout"])

    @property
    def plan(self) -> MeshPlan:
        return self.mesh.plan

    def ranks(self, family: str) -> list[int]:
        """Of the family's group that this rank is in, ascending; [] if it is in none."""
        return self.plan.ranks_of(family, self.mesh.rank) if self.mesh.has_groups else []

    def group(self, family: str) -> ProcessGroup | None:
        """The family's group that this rank is in; None if it is in none."""
        ranks = self.ranks(family)
        if not ranks:
            return None
        first = self._first_family[family]
        if first not in self._groups:
            self._groups[first] = from_communicator(
                self.mesh.group(first),
                ranks,
                name=f"{self._name}.{first}.{ranks[0]}",
                timeout=self._timeout,
                description=first,
            )
        if not c10d.is_registered(self._groups[first]):
            raise accord.WrongState(f'mesh: group "{family}" was destroyed')
        return self._groups[first]

    def groups(self) -> list[ProcessGroup]:
        """Those that were asked for."""
        return list(self._groups.values())

    def report(self) -> list[dict[str, Any]]:
        """What became of each option: dicts of key, option, value, fate and why."""
        return self.mesh.report()

    def device_mesh(self, *axes: str) -> DeviceMesh:
        """torch's mesh along `axes`, the outermost first, of the ranks that have this rank's place along all others.

        Its groups are this mesh's. All axes are of the dense grid, or all of that of experts ("ep", "etp", "egtp", "edp", "pp").
        """
        places = self._places(axes)
        own = [self.group(_FAMILIES_OF_EXPERTS.get(axis, axis)) for axis in axes]
        return DeviceMesh.from_group(own, "cpu", mesh=places, mesh_dim_names=tuple(axes))

    def _places(self, axes: Sequence[str]) -> torch.Tensor:
        """The ranks along `axes`, of shape [size of each]."""
        if not axes or len(set(axes)) != len(axes):
            raise accord.InvalidArgument(f"mesh: axes {list(axes)}; give each of one or more axes once")
        of_experts = not {"ep", *_FAMILIES_OF_EXPERTS}.isdisjoint(axes)
        sizes = self.plan.expert_axes if of_experts else self.plan.axes
        known = ["ep", *_FAMILIES_OF_EXPERTS, "pp"] if of_experts else [axis for axis in sizes if axis != "ep"]
        strides = dict(zip(sizes, itertools.accumulate(sizes.values(), operator.mul, initial=1), strict=False))
        places = torch.tensor(self.mesh.rank)
        for axis in axes:
            on_grid = axis[1:] if axis in _FAMILIES_OF_EXPERTS else axis
            if axis not in known or on_grid not in sizes:
                raise accord.InvalidArgument(f'mesh: axis "{axis}" is none of {known}')
            start = self.plan.coordinate(axis, self.mesh.rank)
            places = places.unsqueeze(-1) + strides[on_grid] * (torch.arange(sizes[on_grid]) - start)
        return places

    def close(self) -> None:
        """Ends all groups of this rank. Idempotent."""
        for group in self.groups():
            if c10d.is_registered(group):
                dist.destroy_process_group(group)
        self._groups.clear()
        self.mesh.close()

    def __enter__(self) -> TorchMesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TorchMesh({self._name}, {self.mesh!r})"


def _default_communicator(timeout: timedelta | None) -> tuple[SharedCommunicator, timedelta]:
    """The communicator of the default group, and its timeout. timeout: to make it, where the group has none."""
    default = dist.group.WORLD
    if isinstance(default, ProcessGroup):
        return SharedCommunicator(default.communicator, default.communicator.name), default.timeout
    usual = timedelta(minutes=30)
    _kept[default] = shared_communicator(default, timeout=timeout or usual)
    return _kept[default], usual


def plan_of_device_mesh(device_mesh: DeviceMesh, families: Iterable[Sequence[str]] | None = None) -> MeshPlan:
    """The plan of groups along the dimensions of torch's mesh, whatever their backend is.

    families: lists of names of dimensions; one of each dimension. The mesh's ranks are consecutive, with its dimensions in any order of strides;
    else InvalidArgument.
    """
    names, ranks = device_mesh.mesh_dim_names, device_mesh.mesh
    if names is None:
        raise accord.InvalidArgument("mesh: the DeviceMesh has no mesh_dim_names")
    first = int(ranks.min())
    strides = [
        int(ranks.select(place, 1).flatten()[0] - ranks.flatten()[0]) if size > 1 else ranks.numel()
        for place, size in enumerate(ranks.shape)
    ]
    inner_first = sorted(range(ranks.dim()), key=lambda place: strides[place])
    consecutive = torch.arange(first, first + ranks.numel()).reshape([ranks.shape[i] for i in reversed(inner_first)])
    if not torch.equal(ranks.permute(list(reversed(inner_first))), consecutive.to(ranks.dtype)):
        raise accord.InvalidArgument(f"mesh: the ranks of {device_mesh} are no grid of consecutive ranks")
    axes = {names[place]: ranks.shape[place] for place in inner_first}
    return MeshPlan.of_axes(axes, [list(family) for family in families or [[name] for name in names]], first)
