"""Runs the calls of op_values.py on a simulated device, in packages of many calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from op_values import Call, Tally, difference_of

import accord
from accord.package.sharding import ShardingPlan
from accord.package.writer import write_package

Expected = tuple[Call, list[torch.Tensor]]


def run_packages(_, path, packages):
    """Runs each package with its inputs, in a process with simulated devices. Returns the bytes of its outputs, or
    the reason why an op has no kernel."""
    import torch
    from host_devices import library

    import accord

    library(path)
    found = []
    for package, inputs in packages:
        try:
            with accord.load(package, device="cuda") as engine:
                outputs = [torch.from_dlpack(one).reshape(-1).view(torch.uint8) for one in engine.run(*inputs)]
                found.append([one.numpy().tobytes() for one in outputs])
        except accord.Unsupported as error:
            found.append(str(error))
    return found


def compare_on_device(calls: Iterable[Call], process: Callable, folder: Path) -> Tally:
    """Like compare(), on a device. Skips calls that an engine on the CPU rejects."""
    tally = Tally()
    by_op: dict[str, list[Expected]] = {}
    for call in calls:
        expected = call.expected()
        if expected is not None and _is_taken(call, expected):
            by_op.setdefault(call.op, []).append((call, expected))
    groups, numbers = list(by_op.values()), itertools.count()
    while groups:
        packages = [_package(group, folder / f"{next(numbers)}.accord") for group in groups]
        left = []
        for group, found in zip(groups, process(run_packages, packages), strict=True):
            if isinstance(found, list):
                _take(tally, group, found)
            elif len(group) > 1:  # at least one call has no kernel
                left += [group[: len(group) // 2], group[len(group) // 2 :]]
            else:
                tally.refuse(group[0][0], found)
        groups = left
    return tally


def _is_taken(call: Call, expected: list[torch.Tensor]) -> bool:
    try:
        accord.Engine.assemble(json.dumps(call.graph(expected)), call.given()[1]).close()
    except (accord.Unsupported, accord.Corrupt):
        return False
    return True


def _package(group: list[Expected], path: Path) -> tuple[str, list[torch.Tensor]]:
    whole: dict[str, list] = {"symbols": [], "inputs": [], "parameters": [], "nodes": [], "outputs": []}
    inputs: list[torch.Tensor] = []
    weights: dict[str, torch.Tensor] = {}
    for number, (call, expected) in enumerate(group):
        prefix = f"c{number}."
        graph = json.loads(
            json.dumps(call.graph(expected)), object_hook=lambda one, prefix=prefix: _renamed(one, prefix)
        )
        graph["outputs"] = [prefix + name for name in graph["outputs"]]
        for key in whole:
            whole[key] += graph[key]
        given, own = call.given()
        inputs += given
        weights |= {prefix + name: tensor for name, tensor in own.items()}
    write_package(path, whole, weights, ShardingPlan([], {}, []), "test")
    return str(path), inputs


def _renamed(one: dict, prefix: str) -> dict:
    """Adds a prefix to the names of values."""
    renamed = {key: prefix + one[key] for key in ("name", "tensor", "value") if isinstance(one.get(key), str)}
    if "values" in one:
        renamed["values"] = [None if name is None else prefix + name for name in one["values"]]
    return {**one, **renamed}


def _take(tally: Tally, group: list[Expected], found: list[bytes]) -> None:
    outputs = iter(found)
    for call, expected in group:
        made = []
        for one in expected:
            flat = torch.frombuffer(bytearray(next(outputs)), dtype=torch.uint8)
            made.append(flat.view(one.dtype).reshape(one.shape))
        difference = difference_of(call, made, expected)
        if difference:
            tally.wrong.append(f"{call}: {difference}")
        else:
            tally.equal += 1
