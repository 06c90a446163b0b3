"""Decides which layers sharding="auto" leaves whole on every rank.

Names of layers do not say everything: heads may share one key, a norm may cover all heads, a table may be tied to a
layer that no rule knows. Therefore the resulting plan is tried for two ranks, without the weights, with the code that
shards a package when it is loaded. Layers that divide the same activations (an attention, a feed-forward block) are
tried together. If the model as a whole cannot be sharded, halves of it are added one after the other to the part that
can, so that only layers that cannot be divided stay whole.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from accord import _core
from accord.graph.builder import ExportedGraph
from accord.graph.errors import ExportError
from accord.package.sharding import Column, ShardingPlan, pattern_matcher, shardable_layers

RANKS = 2
GROUP = Column().group
Place = tuple[str, str]  # the first pattern of a family of rules, and the text that its * stands for
Accepted = tuple[list[Place], list[ShardingPlan]]  # places that ranks can share, and the plans for them


@dataclass(frozen=True)
class Choice:
    """Rules by name patterns. `families`: the patterns that "auto" chose, grouped by layers that belong together.
    `is_auto`: "auto" is among the rules."""

    rules: Mapping[str, object] | object
    families: Sequence[Sequence[str]] = field(default=())
    is_auto: bool = False

    def chosen(self) -> set[str]:
        return {pattern for family in self.families for pattern in family}


def settled_plans(
    model: torch.nn.Module,
    choice: Choice,
    graphs: Sequence[ExportedGraph],
    plans_of: Callable[[Mapping, set[str]], list[ShardingPlan]],
) -> list[ShardingPlan]:
    """Returns a sharding plan for each graph, without the layers that ranks cannot share; a warning names these
    layers. `plans_of`: creates plans from rules, given the patterns that are allowed to match nothing."""
    if not choice.families:
        plans = plans_of(choice.rules, set())
        if not choice.is_auto:
            return plans
        warnings.warn(
            f'sharding="auto" knows no rules for {type(model).__name__}, whose layers have other names than those of the '
            "families that it knows: every rank has all of them; give the rules by name patterns",
            stacklevel=3,
        )
        return _in_group(plans)
    trials = [
        _core.ShardingTrial(
            json.dumps(graph.document), {name: list(tensor.shape) for name, tensor in graph.tensors.items()}
        )
        for graph in graphs
    ]
    layers = _layers_by_place(model, choice)

    def plans_with(places: Sequence[Place]) -> list[ShardingPlan]:
        left_out = {name for place, names in layers.items() if place not in places for name in names}
        rules, chosen = _without(model, choice, left_out)
        plans = plans_of(rules, chosen)
        for plan, trial in zip(plans, trials, strict=True):
            problem = trial.problem(
                {name: (one.group, one.dim, one.unit, one.together, one.copies) for name, one in plan.tensors.items()},
                GROUP,
                RANKS,
            )
            if problem:
                raise ExportError(problem)
        return plans

    refused: dict[Place, str] = {}

    def kept(places: list[Place], accepted: Accepted) -> Accepted:
        """Extends `accepted`, which can be shared, with those of `places` that can be shared as well."""
        try:
            together = [*accepted[0], *places]
            return together, plans_with(together)
        except ExportError as error:
            if len(places) <= 1:
                refused.update((place, str(error)) for place in places)
                return accepted
        half = len(places) // 2
        return kept(places[half:], kept(places[:half], accepted))

    accepted, plans = kept(list(layers), ([], []))
    if not accepted:
        plans = plans_with([])
    _warn(layers, refused)
    return _in_group(plans)


def _in_group(plans: list[ShardingPlan]) -> list[ShardingPlan]:
    """Lets the ranks of a group load what they do not share, too."""
    if any(GROUP in plan.groups for plan in plans):
        return plans
    return [replace(plans[0], groups=sorted([*plans[0].groups, GROUP])), *plans[1:]]


def _layers_by_place(model: torch.nn.Module, choice: Choice) -> dict[Place, list[str]]:
    """Returns the layers that the chosen patterns apply to. All tables and heads count as one place, because their
    patterns have no path in front of them."""
    matchers = [(pattern, pattern_matcher(pattern)) for pattern in choice.rules]
    of_family = {pattern: family[0] for family in choice.families for pattern in family}
    placed: dict[Place, list[str]] = {}
    for name in shardable_layers(model):
        pattern = next((pattern for pattern, matcher in matchers if matcher.fullmatch(name)), None)
        if pattern in of_family:
            where = name.removesuffix(pattern.removeprefix("*")) if pattern.startswith("*.") else ""
            placed.setdefault((of_family[pattern], where), []).append(name)
    return dict(sorted(placed.items(), key=lambda item: list(of_family).index(item[0][0])))


def _without(model: torch.nn.Module, choice: Choice, left_out: set[str]) -> tuple[dict[str, object], set[str]]:
    """Returns the rules, with layer names in place of patterns that match a left-out layer, and the patterns or names
    among them that "auto" chose.
    """
    rules, chosen, undecided = {}, set(), list(shardable_layers(model))
    for pattern, style in choice.rules.items():
        matched = [name for name in undecided if pattern_matcher(pattern).fullmatch(name)]
        whole = left_out.isdisjoint(matched)
        if pattern not in choice.chosen():
            rules[pattern] = style
        else:
            given = [pattern] if whole else [name for name in matched if name not in left_out]
            rules |= dict.fromkeys(given, style)
            chosen |= set(given)
        decided = set(matched) - left_out
        undecided = [name for name in undecided if name not in decided]
    return rules, chosen


def _warn(layers: Mapping[Place, list[str]], refused: Mapping[Place, str]) -> None:
    for family in dict.fromkeys(family for family, _ in refused):
        places = [place for place in refused if place[0] == family]
        names = [name for place in places for name in layers[place]]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        shown = ", ".join(f'"{name}"' for name in names[:4]) + more
        warnings.warn(
            f'sharding="auto": every rank has all of {shown}, which {RANKS} ranks cannot share: {refused[places[0]]}',
            stacklevel=4,
        )
