"""Meshes whose groups are process groups of torch.distributed, and conversions to and from torch's own meshes."""

from __future__ import annotations

import contextlib
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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


@dataclass
class _Default:
    """State kept for a default group as long as it exists. Its ranks create meshes in the same order, so they count
    alike.
    """

    shared: SharedCommunicator  # creating one over another backend's group costs more than a mesh
    timeout: timedelta
    started: int = 0  # number of meshes started, including failed ones
    open_names: set[str] = field(default_factory=set)

    def next_name(self) -> str:
        """Returns a name for the next mesh that no open mesh has."""
        self.started += 1
        names = (f"mesh{number}" for number in itertools.count(self.started - 1))
        return next(name for name in names if name not in self.open_names)


_kept: weakref.WeakKeyDictionary[dist.ProcessGroup, _Default] = weakref.WeakKeyDictionary()

# Families of the expert axes that dense layers have, too. All other families are named after their axis.
_FAMILIES_OF_EXPERTS = {"etp": "ep_tp", "egtp": "ep_gtp", "edp": "ep_dp"}


class TorchMesh:
    """The groups of a plan as process groups of torch.distributed, over accord regardless of the default group's
    backend.

    Families with the same ranks and options share a group. A group is created when it is first requested, without
    involving other ranks.
    """

    def __init__(self, mesh: Mesh, default: _Default, name: str, timeout: timedelta) -> None:
        """Use create()."""
        self.mesh = mesh
        self._default = default
        self._shared = default.shared  # keeps the communicator alive
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
        """Creates a mesh. Collective over the default group, whose ranks are the plan's numbers; ranks outside the
        mesh get a mesh without groups.

        plan: a plan, or a function that returns one. timeout: for creation, and for the groups' calls unless their
        options specify another; by default the default group's. strict: options that have no effect here raise
        Unsupported. name: prefix of the groups' names in errors; must be unique among open meshes. If one rank's
        arguments are invalid or its `plan` raises, all others fail at once with PeerLost, which includes the reason.
        Mismatch shows the difference between the plans of two ranks. Cost: one exchange among the ranks, regardless
        of the number of groups.
        """
        if not dist.is_initialized():
            raise accord.WrongState("mesh: torch.distributed has no default group yet; call init_process_group first")
        default = _of_default_group(timeout if _is_time(timeout) else None)
        how: dict[str, Any] = {"name": default.next_name(), "timeout": default.timeout}
        try:
            how |= _checked(name, timeout, strict, default)
            planned = plan() if callable(plan) else plan
            if not isinstance(planned, MeshPlan):
                raise accord.InvalidArgument(f"mesh: the plan is {planned!r}, expected a MeshPlan")
            if planned.rank_offset + planned.world_size > dist.get_world_size():
                ranks = f"{planned.rank_offset} to {planned.rank_offset + planned.world_size - 1}"
                raise accord.InvalidArgument(
                    f"mesh: the plan has ranks {ranks}, but there are {dist.get_world_size()} ranks"
                )
        except BaseException as error:
            with contextlib.suppress(accord.Error):  # raised if other ranks fail, too
                Mesh.decline(default.shared.communicator, f"{type(error).__name__}: {error}", **how)
            raise
        mesh = Mesh.create(planned, default.shared.communicator, strict=strict, **how)
        default.open_names.add(how["name"])
        return cls(mesh, default, **how)

    @property
    def plan(self) -> MeshPlan:
        return self.mesh.plan

    def ranks(self, family: str) -> list[int]:
        """Returns the ranks, ascending, of the family's group that contains this rank; [] if it is in none."""
        return self.plan.ranks_of(family, self.mesh.rank) if self.mesh.has_groups else []

    def group(self, family: str, description: str | None = None) -> ProcessGroup | None:
        """Returns the family's group that contains this rank, or None if it is in none. description: torch's
        group_desc, used if the group does not exist yet.
        """
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
                description=description or first,
            )
        if not c10d.is_registered(self._groups[first]):
            raise accord.WrongState(f'mesh: group "{family}" was destroyed')
        return self._groups[first]

    def groups(self) -> list[ProcessGroup]:
        """Returns the groups requested so far."""
        return list(self._groups.values())

    def report(self) -> list[dict[str, Any]]:
        """Reports what happened to each option: dicts of key, option, value, fate and why."""
        return self.mesh.report()

    def device_mesh(self, *axes: str) -> DeviceMesh:
        """Returns torch's mesh along `axes`, outermost first, of the ranks that share this rank's place along all
        other axes.

        Its groups are this mesh's. All axes must be of the dense grid, or all of the expert grid ("ep", "etp",
        "egtp", "edp", "pp").
        """
        places = self._places(axes)
        own = [self.group(_FAMILIES_OF_EXPERTS.get(axis, axis)) for axis in axes]
        return DeviceMesh.from_group(own, "cpu", mesh=places, mesh_dim_names=tuple(axes))

    def _places(self, axes: Sequence[str]) -> torch.Tensor:
        """Returns the ranks along `axes`, with one dimension for each axis."""
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
                raise accord.InvalidArgument(f'mesh: axis "{axis}" does not exist; the axes are {known}')
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
        self._default.open_names.discard(self._name)

    def __enter__(self) -> TorchMesh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TorchMesh({self._name}, {self.mesh!r})"


def _of_default_group(timeout: timedelta | None) -> _Default:
    """timeout: for creating the default group's communicator, if it has none yet; by default the group's."""
    group = dist.group.WORLD
    if isinstance(group, ProcessGroup):
        shared, default_timeout = SharedCommunicator(group.communicator, group.communicator.name), group.timeout
    else:
        default_timeout = c10d.timeout_of(group)
        shared = shared_communicator(group, timeout=timeout or default_timeout)
    kept = _kept.setdefault(group, _Default(shared, default_timeout))
    kept.shared, kept.timeout = shared, default_timeout
    return kept


def _is_time(given: Any) -> bool:
    return isinstance(given, timedelta) and given > timedelta(0)


def _checked(name: Any, timeout: Any, strict: Any, default: _Default) -> dict[str, Any]:
    """Returns those arguments of create() that were given, checked."""
    if timeout is not None and not _is_time(timeout):
        raise accord.InvalidArgument(f"mesh: timeout is {timeout!r}; give a datetime.timedelta above 0")
    if name is not None and (not isinstance(name, str) or not name.isprintable()):
        raise accord.InvalidArgument(f"mesh: name is {name!r}, expected printable text")
    if not isinstance(strict, bool):
        raise accord.InvalidArgument(f"mesh: strict is {strict!r}, expected True or False")
    if name in default.open_names:
        raise accord.InvalidArgument(f'mesh: another mesh called "{name}" is open; close it, or give another name')
    return {key: value for key, value in (("name", name), ("timeout", timeout)) if value is not None}


def plan_of_device_mesh(device_mesh: DeviceMesh, families: Iterable[Sequence[str]] | None = None) -> MeshPlan:
    """Returns the plan of the groups along the dimensions of torch's mesh, regardless of its backend.

    families: lists of dimension names; by default one for each dimension. Raises InvalidArgument unless the mesh's
    ranks are consecutive, with its dimensions in any order of strides.
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
        raise accord.InvalidArgument(f"mesh: the ranks of {device_mesh} do not form a grid of consecutive ranks")
    axes = {names[place]: ranks.shape[place] for place in inner_first}
    return MeshPlan.of_axes(axes, [list(family) for family in families or [[name] for name in names]], first)
