"""Which weights are divided among the ranks of a group, and in which units.

A rule is a pattern over module paths and a style. The first pattern that matches a linear layer or an embedding
applies to it. In a column-parallel layer, the weight [out, in] and the bias [out] are divided along `out`. In a
row-parallel layer, the weight is divided along `in`, and the bias stays whole, because it is added once, after the
sum over the ranks. The table of an embedding, [ids, out], is divided along `out` by columns, and along ids by rows. A
layer of experts is divided by rows within each expert: up and gate [experts, inner, hidden] and down [experts,
hidden, inner] along `inner`; or expert by expert. A layer with a matrix for each head, [heads, out, in], is divided by
columns, head by head.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accord.graph.errors import ExportError

if TYPE_CHECKING:
    import torch


LINEAR = "aten.linear.default"
ADAPTED_LINEAR = "accord.adapted_linear.default"
EMBEDDING = "aten.embedding.default"
EXPERTS = "accord.experts.default"
HEAD_LINEAR = "accord.head_linear.default"
DIVIDED = {
    LINEAR: ("weight", "bias"),
    ADAPTED_LINEAR: ("weight", "bias", "down", "up"),
    EMBEDDING: ("weight",),
    EXPERTS: ("up", "gate", "down"),
    HEAD_LINEAR: ("weight",),
}  # arguments that can be divided


@dataclass(frozen=True)
class _Parallel:
    unit: int | None = None
    group: str = "tp"
    together: int = 1  # units kept on one rank unless there are more ranks (query heads of one key head)


@dataclass(frozen=True)
class Column(_Parallel):
    """Divides a linear layer or an embedding along its outputs, in units of `unit` (a head; by default the largest
    power of two up to 64 that divides them), among the ranks of `group`. The last unit may be shorter."""

    style = "column"
    copies: bool = False  # with more ranks than units, several ranks hold the same unit (key heads)


class Row(_Parallel):
    """Divides a linear layer along its inputs, an embedding along its ids, or experts along their inner size, in
    units of `unit`. The partial results are summed over `group`."""

    style = "row"


@dataclass(frozen=True)
class Expert:
    """Divides a layer of experts expert by expert among the ranks of `group`, as evenly as possible. Ranks that run
    the same rows add up the results of their experts. With group="dp", whose ranks share a batch and run rows of
    their own, rows are sent to the ranks whose experts they chose, and the results are sent back (expert
    parallelism)."""

    group: str = "tp"

    style = "expert"
    unit = 1
    together = 1


Style = Column | Row | Expert


@dataclass(frozen=True)
class Rule:
    """One line of the sharding plan in the manifest."""

    pattern: str
    style: str
    unit: int
    group: str
    together: int = 1
    copies: bool = False


@dataclass(frozen=True)
class TensorSharding:
    """How a tensor is divided."""

    group: str
    dim: int
    unit: int
    together: int = 1
    copies: bool = False

    def entry(self) -> dict:
        """Returns the entry of the manifest."""
        return {"group": self.group, "dim": self.dim, "unit": self.unit} | _sharing_entry(self)


def _sharing_entry(given: Rule | TensorSharding) -> dict:
    return ({"together": given.together} if given.together > 1 else {}) | ({"copies": True} if given.copies else {})


@dataclass(frozen=True)
class ShardingPlan:
    rules: list[Rule]
    tensors: dict[str, TensorSharding]
    groups: list[str]


def _weight_dim(style: str, is_embedding: bool) -> int:
    """Returns the divided dimension of a weight: [out, in] of a linear layer, or [ids, out] of an embedding."""
    return int((style == "column") == is_embedding)


def default_unit(size: int) -> int:
    """Returns the largest power of two up to 64 that divides `size`. For a large size that only small powers divide
    (a vocabulary of 50257), returns 64: its last unit is shorter."""
    unit = 64
    while size % unit:
        unit //= 2
    return 64 if unit < 16 and size >= 1024 else unit


def smaller_unit(size: int) -> int:
    """Like default_unit, but chooses smaller units where that gives 8 ranks one each."""
    unit = default_unit(size)
    while unit > 8 and size // unit < 8:
        unit //= 2
    return unit


def shardable_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Returns the layers of the model that rules can divide, by path."""
    import torch  # imported late: programs without torch use Column and Row, too

    from accord.graph.experts import Experts
    from accord.graph.latent_heads import HeadLinear

    kinds = (torch.nn.Linear, torch.nn.Embedding, Experts, HeadLinear)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


def plan_sharding(model: torch.nn.Module, sharding: Mapping[str, Style | str | object] | None) -> ShardingPlan:
    """Applies the patterns to the model's linear layers and embeddings. A pattern that applies to none is an error.
    Styles may also be torch's, as for parallelize_module."""
    if not isinstance(sharding, Mapping | None):
        raise ExportError(f'sharding is {sharding!r}; expected rules by name patterns, or "auto"')
    layers = shardable_layers(model)
    undecided = dict(layers)
    rules: list[Rule] = []
    tensors: dict[str, TensorSharding] = {}
    for pattern, given in (sharding or {}).items():
        of_torch = _is_of_torch(given)
        style = _of_torch(pattern, given) if of_torch else _style(pattern, given)
        if style is None:
            continue
        matcher = pattern_matcher(pattern)
        matched = [name for name in undecided if matcher.fullmatch(name)]
        if not matched:
            raise ExportError(_nothing_matched(pattern, matcher, model, layers))
        divided = {name: _divided(name, layers[name], style.style) for name in matched}
        sizes = {layers[name].get_parameter(part).shape[dim] for name in matched for part, dim in divided[name].items()}
        units = (_unit_of_heads(model, size) if of_torch else default_unit(size) for size in sizes)
        is_by_head = any(_is_by_head(layers[name]) for name in matched)
        unit = style.unit if style.unit is not None else 1 if is_by_head else min(units)
        if is_by_head and unit != 1:
            raise ExportError(
                f'sharding pattern "{pattern}": layers with a matrix for each head are divided in units of 1'
            )
        sharing = style.together, getattr(style, "copies", False)
        rules.append(Rule(pattern, style.style, unit, style.group, *sharing))
        for name in matched:
            for part, dim in divided[name].items():
                size = layers[name].get_parameter(part).shape[dim]
                if unit > size:
                    side = {"column": "outputs", "row": "inputs", "expert": "experts"}[style.style]
                    raise ExportError(
                        f'sharding pattern "{pattern}": unit {unit} is more than the {size} {side} of "{name}"'
                    )
                if -(-size // unit) % style.together:
                    raise ExportError(
                        f'sharding pattern "{pattern}": the {-(-size // unit)} units of "{name}" are no whole number of '
                        f"{style.together}, which are to stay together"
                    )
                tensors[_joined(name, part)] = TensorSharding(style.group, dim, unit, *sharing)
            del undecided[name]
    return ShardingPlan(rules, tensors, sorted({rule.group for rule in rules}))


def rule_entry(rule: Rule) -> dict:
    """Returns the entry of the manifest."""
    return {"pattern": rule.pattern, "style": rule.style, "unit": rule.unit, "group": rule.group} | _sharing_entry(rule)


def _divided(name: str, layer: torch.nn.Module, style: str) -> dict[str, int]:
    """Returns the parameters of a layer that a rule divides, each with its dimension."""
    import torch

    kind = {torch.nn.Embedding: "an embedding", torch.nn.Linear: "a linear layer"}.get(type(layer))
    if style == "expert" and kind:
        raise ExportError(f'"{name}" is {kind}: accord.Expert is for layers of experts')
    if _is_by_head(layer):
        if style != "column":
            raise ExportError(f'"{name}" has a matrix for each head: it is divided by columns')
        return {"weight": 0}
    if isinstance(layer, torch.nn.Embedding):
        return {"weight": _weight_dim(style, is_embedding=True)}
    if isinstance(layer, torch.nn.Linear):
        with_bias = style == "column" and layer.bias is not None
        return {"weight": _weight_dim(style, is_embedding=False), **({"bias": 0} if with_bias else {})}
    if style == "column":
        raise ExportError(
            f'"{name}" is a layer of experts, which are divided expert by expert or within each: use accord.Expert or accord.Row'
        )
    parts = ("gate_proj", "up_proj", "down_proj") if layer.gate_proj is not None else ("up_proj", "down_proj")
    return {part: _expert_dim(style, part == "down_proj") for part in parts}


def _is_by_head(layer: torch.nn.Module) -> bool:
    from accord.graph.latent_heads import HeadLinear

    return isinstance(layer, HeadLinear)


def _expert_dim(style: str, is_down: bool) -> int:
    """Returns the dimension of [experts, out, in] that is divided."""
    return 0 if style == "expert" else 1 + is_down


def apply_rules(rules: list[Rule], document: dict) -> tuple[dict[str, TensorSharding], list[Rule]]:
    """Applies the rules to the tensors of graph.json, by the modules of its linear layers and embeddings, as the
    engine does when it opens the package. Also returns the rules that apply to none of them."""
    matchers = [(pattern_matcher(rule.pattern), rule) for rule in rules]
    stored = {parameter["name"]: parameter["tensor"] for parameter in document["parameters"]}
    # Tensor -> its sharding, and the module of the first op that uses it.
    given: dict[str, tuple[TensorSharding | None, str]] = {}
    unused = list(rules)
    for node in document["nodes"]:
        if node["op"] not in DIVIDED:
            continue
        module = node["module"]
        rule = next((rule for matcher, rule in matchers if matcher.fullmatch(module)), None)
        if rule in unused:
            unused.remove(rule)
        for argument in DIVIDED[node["op"]]:
            dim = rule and _argument_dim(node["op"], argument, rule.style)
            sharding = None if dim is None else TensorSharding(rule.group, dim, rule.unit, rule.together, rule.copies)
            tensor = stored.get((node["arguments"].get(argument) or {}).get("value"))
            if tensor is not None and given.setdefault(tensor, (sharding, module))[0] != sharding:
                first = given[tensor][1]
                raise ExportError(f'"{tensor}" is used by "{module}", which is to have other sharding than "{first}"')
    return {tensor: sharding for tensor, (sharding, _) in given.items() if sharding is not None}, unused


def _argument_dim(op: str, argument: str, style: str) -> int | None:
    """Returns the dimension along which a rule divides an op's argument, or None if it stays whole."""
    if op == EXPERTS:
        return _expert_dim(style, argument == "down")
    if argument == "bias":
        return 0 if style == "column" else None
    if argument in ("down", "up"):  # [adapters, rank, in] and [adapters, out, rank]
        own, dim = {"down": ("row", 2), "up": ("column", 1)}[argument]
        return dim if style == own else None
    return _weight_dim(style, op == EMBEDDING)


def pattern_matcher(pattern: str) -> re.Pattern:
    """Returns a matcher of module paths; `*` stands for any characters."""
    return re.compile(".*".join(re.escape(piece) for piece in pattern.split("*")), re.DOTALL)


def _joined(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter


def _style(pattern: str, given: Style | str) -> Style:
    if isinstance(given, str):
        styles = {"column": Column(), "row": Row(), "expert": Expert()}
        if given not in styles:
            near = difflib.get_close_matches(given, styles, n=1, cutoff=0.4)
            hint = f'; did you mean "{near[0]}"?' if near else ': use "column", "row" or "expert"'
            raise ExportError(f'sharding pattern "{pattern}": unknown style "{given}"{hint}')
        return styles[given]
    if not isinstance(given, Style):
        raise ExportError(
            f'sharding pattern "{pattern}": expected "column", "row", "expert", accord.Column, accord.Row or accord.Expert, '
            f"got {type(given).__name__}"
        )
    if given.unit is not None and (type(given.unit) is not int or given.unit < 1):
        raise ExportError(f'sharding pattern "{pattern}": a unit is a whole number from 1 up, got {given.unit!r}')
    if type(given.together) is not int or given.together < 1:
        raise ExportError(f'sharding pattern "{pattern}": together is a number of units, got {given.together!r}')
    if not isinstance(given.group, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", given.group):
        raise ExportError(f'sharding pattern "{pattern}": "{given.group}" cannot be the name of a group')
    return given


def _is_of_torch(given: object) -> bool:
    """Returns True for one of torch's styles. Compares names, because older versions of torch have fewer styles."""
    return any(kind.__module__.startswith("torch.distributed.tensor.parallel") for kind in type(given).__mro__)


def _of_torch(pattern: str, given: object) -> Style | None:
    """Converts torch's style to accord's. Returns None for styles that only describe the layout of activations, which
    an engine decides itself.
    """
    styles = {
        "ColwiseParallel": Column(),
        "RowwiseParallel": Row(),
        "SequenceParallel": None,
        "PrepareModuleInput": None,
        "PrepareModuleOutput": None,
        "PrepareModuleInputOutput": None,
    }
    name = type(given).__name__
    if name not in styles:
        raise ExportError(
            f'sharding pattern "{pattern}": torch\'s style {name} is not known; there are {", ".join(styles)}'
        )
    return styles[name]


def _unit_of_heads(model: torch.nn.Module, size: int) -> int:
    """Returns the unit of a layer of `size`: a key head with all query heads that use it, if the model's
    configuration describes its heads."""
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return default_unit(size)
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    if size == heads * head:
        return heads // key_heads * head
    return head if size == key_heads * head else default_unit(size)


def _nothing_matched(pattern: str, matcher: re.Pattern, model: torch.nn.Module, layers: Mapping) -> str:
    shadowed = [name for name in layers if matcher.fullmatch(name)]
    if shadowed:
        return f'sharding pattern "{pattern}": an earlier pattern decides all it matches, such as "{shadowed[0]}"'
    others = [(name, type(module).__name__) for name, module in model.named_modules() if matcher.fullmatch(name)]
    if others:
        name, kind = others[0]
        return f'sharding pattern "{pattern}" matches no linear layer and no embedding, only others such as "{name}" ({kind})'
    near = difflib.get_close_matches(pattern, layers, n=3, cutoff=0.3) or list(layers)[:3]
    names = ", ".join(f'"{name}"' for name in near)
    return f'sharding pattern "{pattern}" matches no module; layers with near names: {names or "none"}'
