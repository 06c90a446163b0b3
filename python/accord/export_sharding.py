"""Which weights are divided among the ranks of a group, and in which units.

A rule is a pattern over module paths and a style. The first pattern that matches a linear layer decides it. A
column-parallel layer's weight [out, in] and bias [out] are divided along `out`; a row-parallel layer's weight along
`in`, and its bias stays whole, because it is added once, after the sum over the ranks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class ExportError(RuntimeError):
    """A model that cannot be exported, or not as asked; the message says where and what to do."""


@dataclass(frozen=True)
class _Parallel:
    unit: int | None = None
    group: str = "tp"


class Column(_Parallel):
    """A linear layer divided along its outputs, in units of `unit` (a head; by default the largest power of two up to
    64 that divides them), among the ranks of `group`."""

    style = "column"
    weight_dim = 0


class Row(_Parallel):
    """A linear layer divided along its inputs, in units of `unit`; the partial results are summed over `group`."""

    style = "row"
    weight_dim = 1


@dataclass(frozen=True)
class Rule:
    """One line of the manifest's sharding plan."""

    pattern: str
    style: str
    unit: int
    group: str


@dataclass(frozen=True)
class TensorSharding:
    """How one tensor is divided."""

    group: str
    dim: int
    unit: int


@dataclass(frozen=True)
class ShardingPlan:
    rules: list[Rule]
    tensors: dict[str, TensorSharding]
    groups: list[str]


def default_unit(size: int) -> int:
    """The largest power of two up to 64 that divides `size`."""
    unit = 64
    while size % unit:
        unit //= 2
    return unit


def plan_sharding(model: torch.nn.Module, sharding: Mapping[str, Column | Row | str] | None) -> ShardingPlan:
    """Applies the patterns to the model's linear layers; a pattern that decides none is an error."""
    import torch  # not before it is needed: Column and Row are for programs without it, too

    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    undecided = dict(linears)
    rules: list[Rule] = []
    tensors: dict[str, TensorSharding] = {}
    for pattern, given in (sharding or {}).items():
        style = _style(pattern, given)
        matcher = _matcher(pattern)
        matched = [name for name in undecided if matcher.fullmatch(name)]
        if not matched:
            raise ExportError(_nothing_matched(pattern, matcher, model, linears))
        sizes = {linears[name].weight.shape[style.weight_dim] for name in matched}
        unit = style.unit if style.unit is not None else min(default_unit(size) for size in sizes)
        rules.append(Rule(pattern, style.style, unit, style.group))
        for name in matched:
            size = linears[name].weight.shape[style.weight_dim]
            if size % unit:
                side = "outputs" if style.style == "column" else "inputs"
                raise ExportError(
                    f'sharding pattern "{pattern}": unit {unit} does not divide the {size} {side} of "{name}"'
                )
            tensors[_joined(name, "weight")] = TensorSharding(style.group, style.weight_dim, unit)
            if style.style == "column" and linears[name].bias is not None:
                tensors[_joined(name, "bias")] = TensorSharding(style.group, 0, unit)
            del undecided[name]
    return ShardingPlan(rules, tensors, sorted({rule.group for rule in rules}))


def apply_rules(rules: list[Rule], document: dict) -> tuple[dict[str, TensorSharding], list[Rule]]:
    """What the rules give the tensors of graph.json, by the modules of its linear layers, as the engine finds it when it
    opens the package; and the rules that decide none of them."""
    matchers = [(_matcher(rule.pattern), rule) for rule in rules]
    stored = {parameter["name"]: parameter["tensor"] for parameter in document["parameters"]}
    given: dict[str, tuple[TensorSharding | None, str]] = {}  # tensor -> what its layers give it, the first of them
    unused = list(rules)
    for node in document["nodes"]:
        if node["op"] != "aten.linear.default":
            continue
        module = node["module"]
        rule = next((rule for matcher, rule in matchers if matcher.fullmatch(module)), None)
        if rule in unused:
            unused.remove(rule)
        weight = rule and TensorSharding(rule.group, 0 if rule.style == "column" else 1, rule.unit)
        bias = weight if rule and rule.style == "column" else None
        for argument, sharding in (("weight", weight), ("bias", bias)):
            tensor = stored.get(node["arguments"].get(argument, {}).get("value"))
            if tensor is not None and given.setdefault(tensor, (sharding, module))[0] != sharding:
                first = given[tensor][1]
                raise ExportError(f'"{tensor}" is used by "{module}", which is to have other sharding than "{first}"')
    return {tensor: sharding for tensor, (sharding, _) in given.items() if sharding is not None}, unused


def _matcher(pattern: str) -> re.Pattern:
    return re.compile(".*".join(re.escape(piece) for piece in pattern.split("*")), re.DOTALL)


def _joined(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter


def _style(pattern: str, given: Column | Row | str) -> Column | Row:
    if isinstance(given, str):
        styles = {"column": Column(), "row": Row()}
        if given not in styles:
            near = difflib.get_close_matches(given, styles, n=1, cutoff=0.4)
            hint = f'; did you mean "{near[0]}"?' if near else ': use "column" or "row"'
            raise ExportError(f'sharding pattern "{pattern}": unknown style "{given}"{hint}')
        return styles[given]
    if not isinstance(given, (Column, Row)):
        raise ExportError(
            f'sharding pattern "{pattern}": expected "column", "row", accord.Column or accord.Row, '
            f"got {type(given).__name__}"
        )
    if given.unit is not None and (not isinstance(given.unit, int) or given.unit < 1):
        raise ExportError(f'sharding pattern "{pattern}": a unit is a whole number from 1 up, got {given.unit!r}')
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", given.group):
        raise ExportError(f'sharding pattern "{pattern}": "{given.group}" cannot be the name of a group')
    return given


def _nothing_matched(pattern: str, matcher: re.Pattern, model: torch.nn.Module, linears: Mapping) -> str:
    shadowed = [name for name in linears if matcher.fullmatch(name)]
    if shadowed:
        return f'sharding pattern "{pattern}": an earlier pattern decides all it matches, such as "{shadowed[0]}"'
    others = [(name, type(module).__name__) for name, module in model.named_modules() if matcher.fullmatch(name)]
    if others:
        name, kind = others[0]
        return f'sharding pattern "{pattern}" matches no linear layer, only others such as "{name}" ({kind})'
    near = difflib.get_close_matches(pattern, linears, n=3, cutoff=0.3) or list(linears)[:3]
    names = ", ".join(f'"{name}"' for name in near)
    return f'sharding pattern "{pattern}" matches no module; linear layers with near names: {names or "none"}'
