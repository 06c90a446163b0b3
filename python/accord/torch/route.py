"""The switch ACCORD_ROUTE: every process group of an unmodified program becomes accord's, regardless of the backend
that the program names.

`import torch` reads the variable once (accord_autoload) and, if it is on, calls install(). From then on,
torch.distributed's groups are accord's for tensors on the CPU, and keep the backends that the program named for other
devices, if the machine has such devices. dist.get_backend() returns the backend that the program asked for; report()
and dist.get_backend_config() show which backend carries the tensors. With torchcomms in use
(TORCH_DISTRIBUTED_USE_TORCHCOMMS), torch creates its groups from torchcomms communicators of the backend accord.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from accord.torch import c10d
from accord.torch.fates import NO_EFFECT_ON_CPU, changed_options, fate_of
from accord.torch.groups import Options, Ready
from accord.torch.process_group import ProcessGroup

VARIABLE = "ACCORD_ROUTE"
_ON, _REPORT = ("1", "on"), "report"

# Groups of other backends do not change: accord itself, backends of other packages, and backends without ranks of
# their own.
_ROUTED = ("gloo", "nccl", "ucc", "xccl", "undefined")


@dataclass
class RoutedGroup:
    """One group of this rank, as requested and as created."""

    name: str
    description: str
    ranks: int
    asked: str  # the requested backend
    cpu: str  # the backend for tensors on the CPU
    others: dict[str, str]  # backends for tensors on other devices
    by: str  # "torch.distributed" or "torchcomms"
    options: list[dict[str, Any]] = field(default_factory=list)  # option, value, fate, why


_groups: list[RoutedGroup] = []
_installed = False


@dataclass
class _DefaultGroup:
    rank: int | None = None
    asked: str = "undefined"


_default_group = _DefaultGroup()


def install(how: str = "1") -> None:
    """Routes every group from now on, as ACCORD_ROUTE=`how` does: "1" or "on", or "report", which also prints a
    report at exit. Raises ValueError for any other value.
    """
    global _installed
    if how not in (*_ON, _REPORT):
        text = f'{VARIABLE} is "{how}": "1" routes torch.distributed over accord, "report" also prints what it did, "0" does not'
        raise ValueError(text)
    if _installed:
        return
    _installed = True
    c10d.replace_group_creation(_make)
    c10d.replace_initializing(_initialize)
    if how == _REPORT:
        atexit.register(_print_report)


def installed() -> bool:
    return _installed


def report() -> list[dict[str, Any]]:
    """Returns for each group so far: name, description, ranks, asked, cpu, others, by, options (option, value, fate,
    why).
    """
    return [asdict(group) for group in _groups]


def _initialize(original: Callable[..., None], asked: dict[str, Any]) -> None:
    """Replaces init_process_group. A program that binds itself to a device that this machine lacks runs without it."""
    device = asked.get("device_id")
    if device is not None and torch.accelerator.device_count() == 0:
        asked["device_id"] = None
    original(**asked)
    if device is not None and _groups and asked["device_id"] is None:
        why = "this machine has no such device"
        _groups[-1].options.append(fate_of("device_id", device, "not applicable", why))


def _make(original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Replaces _new_process_group_helper, whose parameter names are torch's."""
    asked, options = str(arguments["backend"]), arguments.get("backend_options")
    if isinstance(options, Options | Ready) or not _is_routed(asked):
        made = original(**arguments)
        if isinstance(options, Ready):  # a mesh's group: shows the requested backend, like the program's other groups
            c10d.name_backends(made[0], _default_group.asked, {"cpu": "accord"})
        return made
    others = {kind: carrier for kind, carrier in c10d.carried_by(asked).items() if kind != "cpu" and _is_here(kind)}
    by_torchcomms = c10d.torchcomms_enabled()
    description, rank, size = arguments.get("group_desc"), arguments["group_rank"], arguments["group_size"]
    is_default = description == c10d.OF_THE_DEFAULT_GROUP
    if is_default:
        _default_group.rank, _default_group.asked = rank, asked
    if by_torchcomms:
        with contextlib.suppress(ImportError):
            importlib.import_module("accord.torchcomms")  # newer torch queries torchcomms for its backends
        # torch splits later groups by the kinds of device in the requested name, so all of them need a backend.
        kinds = {"cpu": "accord"} | dict.fromkeys(c10d.carried_by(asked), "accord") | others
        carried = ",".join(f"{kind}:{carrier}" for kind, carrier in kinds.items())
        with _place_for_torchcomms(rank, size, is_default):
            made = original(**arguments | {"backend": dist.Backend(carried), "backend_options": None})
    else:
        routed = {"backend": dist.Backend("accord"), "backend_options": Options(of_other_devices=options)}
        made = original(**arguments | routed | {"device_id": None})
    group = made[0]
    if group is None or group == dist.GroupMember.NON_GROUP_MEMBER:
        return made
    c10d.name_backends(group, asked, {"cpu": "accord", **others})
    fates = _fates(options, arguments.get("timeout"), others, by_torchcomms)
    # A torch that finds torchcomms without this backend creates the group itself.
    by = "torch.distributed" if isinstance(group, ProcessGroup) else "torchcomms"
    name = arguments["group_name"]
    _groups.append(RoutedGroup(name, description or "undefined", size, asked, "accord", others, by, fates))
    return made


@contextlib.contextmanager
def _place_for_torchcomms(rank: int, size: int, is_default: bool) -> Iterator[None]:
    """Sets this rank's place in a group in the environment, where torchcomms reads it. The place in the default group
    stays there, because programs may create more communicators from it. In a group with ranks of another job, this
    rank has another place, which is set while the group is created."""
    place = {"TORCHCOMM_RANK": str(rank), "TORCHCOMM_SIZE": str(size)}
    if is_default:
        for name, value in place.items():
            os.environ.setdefault(name, value)
        yield
        return
    before = {name: os.environ.get(name) for name in place}
    os.environ.update(place)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _is_routed(asked: str) -> bool:
    if ":" not in asked:
        return asked in _ROUTED
    return dict(entry.split(":") for entry in asked.split(",")).get("cpu", "gloo") in _ROUTED


def _is_here(kind: str) -> bool:
    """Returns True if this machine has devices of that kind."""
    here = torch.accelerator.current_accelerator()
    return here is not None and here.type == kind and torch.accelerator.device_count() > 0


def _fates(
    options: Any, timeout: timedelta | None, others: dict[str, str], by_torchcomms: bool
) -> list[dict[str, Any]]:
    fates = [] if timeout is None else [fate_of("timeout", timeout, "applied", "to the group's calls")]
    for option, value in changed_options(options).items():
        if others and not by_torchcomms:
            fates.append(fate_of(option, value, "applied", f"to tensors of {', '.join(others)}"))
        elif by_torchcomms:
            fates.append(
                fate_of(
                    option, value, "not applicable", "accord does not take options of other backends through torchcomms"
                )
            )
        else:
            fates.append(fate_of(option, value, "not applicable", NO_EFFECT_ON_CPU))
    return fates


def _print_report() -> None:
    if _default_group.rank != 0:
        return
    lines = [f"accord: torch.distributed was routed; {len(_groups)} groups of rank 0"]
    for group in _groups:
        carriers = ", ".join(f"{kind} {name}" for kind, name in {"cpu": group.cpu, **group.others}.items())
        lines.append(
            f"  {group.name} ({group.description}): {group.ranks} ranks, asked for {group.asked}; {carriers}, by {group.by}"
        )
        lines += [f"    {one['option']}={one['value']}: {one['fate']}, {one['why']}" for one in group.options]
    print("\n".join(lines), file=sys.stderr)
