"""Sharding plans for the graphs of a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from accord.exporter.replication import Choice, settled_plans
from accord.graph.builder import ExportedGraph, memory_key
from accord.graph.errors import ExportError
from accord.package.sharding import DIVIDED, Rule, ShardingPlan, TensorSharding, apply_rules, plan_sharding


def plans_for(model: torch.nn.Module, choice: Choice, graphs: Sequence[ExportedGraph]) -> list[ShardingPlan]:
    """Assigns to each engine of a program the rules that apply to layers of it."""

    def plans_of(rules: Mapping[str, object], may_be_unused: set[str]) -> list[ShardingPlan]:
        plan = plan_sharding(model, rules)
        checked = [_checked_plan(plan, graph, model) for graph in graphs]
        for rule in plan.rules:
            if rule.pattern not in may_be_unused and all(rule in unused for _, unused in checked):
                raise ExportError(f'sharding pattern "{rule.pattern}" decides no layer that the outputs need')
        return [one for one, _ in checked]

    return settled_plans(model, choice, graphs, plans_of)


def _checked_plan(plan: ShardingPlan, graph: ExportedGraph, model: torch.nn.Module) -> tuple[ShardingPlan, list[Rule]]:
    """Returns the plan with the rules that apply to layers of the graph, and the rules that apply to none. The plan
    refers to tensors as they are stored: a tied weight under its one name, an unused weight not at all. A sharded
    tensor may be used only as a weight or bias of linear layers and as a table of embeddings, each in the module that
    the rules name: the engine applies them to the graph."""
    stored_names = {memory_key(tensor): name for name, tensor in graph.tensors.items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    tensors: dict[str, TensorSharding] = {}
    for name, sharding in plan.tensors.items():
        stored = stored_names.get(memory_key(parameters[name]))
        if stored is None:
            continue
        if tensors.setdefault(stored, sharding) != sharding:
            raise ExportError(f'"{name}" and "{stored}" are one tied weight, but are to be sharded differently')
        uses = graph.uses[stored]
        if name.endswith(".bias") and not any(argument in DIVIDED.get(op, ()) for op, argument, _ in uses):
            del tensors[stored]  # the model adds it by itself: each rank has all of it and uses a part
            continue
        for op, argument, place in uses:
            if argument not in DIVIDED.get(op, ()):
                raise ExportError(f'"{name}" cannot be sharded: {op} at {place} uses it as "{argument}"')
    given, unused = apply_rules(plan.rules, graph.document)
    for name in sorted(tensors.keys() | given.keys()):
        if tensors.get(name) != given.get(name):
            (_, _, place), *_ = graph.uses[name]
            raise ExportError(
                f'"{name}" is used at {place}: a sharding pattern matches either the layer that it belongs to or the module '
                "that uses it, but not both"
            )
    rules = [rule for rule in plan.rules if rule not in unused]
    return ShardingPlan(
        rules, tensors, [name for name in plan.groups if name in {rule.group for rule in rules}]
    ), unused


def joined_plan(plans: Sequence[ShardingPlan]) -> ShardingPlan:
    """Returns the plan of a package with several graphs. Rules stay in their order."""
    rules: list[Rule] = []
    tensors: dict[str, TensorSharding] = {}
    for plan in plans:
        at = 0
        for rule in plan.rules:
            if rule not in rules:
                rules.insert(at, rule)
            at = rules.index(rule) + 1
        for name, sharding in plan.tensors.items():
            if tensors.setdefault(name, sharding) != sharding:
                raise ExportError(f'"{name}" is used by encoder and decoder, but is to be sharded differently')
    return ShardingPlan(rules, tensors, sorted({group for plan in plans for group in plan.groups}))
