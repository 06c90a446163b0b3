"""The groups that the ranks of a model form: by the package's rules, in stages, and in parts of sequences."""

from __future__ import annotations

from collections.abc import Sequence

from accord import Communicator
from accord.mesh import Mesh, MeshPlan

__all__ = ["axes", "communicators"]


def axes(names: Sequence[str], ranks: int, *, group: str | None = None, pp: int = 1, cp: int = 1) -> dict[str, int]:
    """Returns the sizes of the groups, the innermost first. Empty: all groups of the package have all ranks.

    names: the package's groups. group: the one that the ranks form, if pp and cp leave more than one rank for it.
    Raises ValueError if the ranks cannot form these groups.
    """
    if group is not None and group not in names:
        raise ValueError(f'the package has no group "{group}"; it has {", ".join(names) or "none"}')
    if group is None and pp == cp == 1:
        return {}
    rest, left = divmod(ranks, pp * cp)
    if left or rest == 0:
        count = f"{ranks} rank" + "s" * (ranks != 1)
        raise ValueError(f"{count} cannot form {pp} stages of {cp} parts of each sequence")
    if group is None and rest > 1 and len(names) != 1:
        groups = " and ".join(names) or "no groups"
        raise ValueError(f"the package has {groups}; --group chooses the one that {rest} ranks form")
    sizes = {group or "".join(names[:1]): rest, "pp": pp, "cp": cp}
    return {name: size for name, size in sizes.items() if size > 1}


def communicators(comm: Communicator, names: Sequence[str], sizes: dict[str, int]) -> dict[str, Communicator]:
    """Returns the communicator of each group. `names` are the package's groups, `sizes` is what axes() returned."""
    if len(sizes) < 2:
        return dict.fromkeys(sizes or names, comm)
    mesh = Mesh.create(MeshPlan.of_axes(sizes, [[name] for name in sizes]), comm)
    groups = {name: mesh.group(name) for name in sizes}
    return {name: group for name, group in groups.items() if group is not None}
