"""sharding="auto": how the ranks of "tp" share a model whose layers have transformers' names.

Heads stay whole, and query heads stay with their key head. A model is covered if its attention layers and the layers
after them have names from this table. Each line of the table is one naming scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from accord.exporter.replication import Choice
from accord.exporter.state_layers import state_layers
from accord.graph.errors import ExportError
from accord.graph.experts import Experts
from accord.graph.latent_heads import LatentHeads
from accord.graph.modules import config_of, heads_of
from accord.package.sharding import Column, Row, pattern_matcher, shardable_layers, smaller_unit

# Query, key, value and output projection of attention.
ATTENTIONS = (
    ("*.self_attn.q_proj", "*.self_attn.k_proj", "*.self_attn.v_proj", "*.self_attn.o_proj"),  # Llama's, and most
    ("*.self_attn.q_proj", "*.self_attn.k_proj", "*.self_attn.v_proj", "*.self_attn.out_proj"),  # OPT, CLIP, Whisper
    ("*.self_attn.q_proj", "*.self_attn.k_proj", "*.self_attn.v_proj", "*.self_attn.dense"),  # Phi
    (
        "*.self_attn.qkv_proj.query",
        "*.self_attn.qkv_proj.key",
        "*.self_attn.qkv_proj.value",
        "*.self_attn.o_proj",
    ),  # Phi 3
    ("*.attention.q_proj", "*.attention.k_proj", "*.attention.v_proj", "*.attention.o_proj"),  # ViT, DINOv2
    ("*.attn.q_proj", "*.attn.k_proj", "*.attn.v_proj", "*.attn.out_proj"),  # GPT-J
    ("*.attn.attention.q_proj", "*.attn.attention.k_proj", "*.attn.attention.v_proj", "*.attn.attention.out_proj"),
    ("*.attn.c_attn.query", "*.attn.c_attn.key", "*.attn.c_attn.value", "*.attn.c_proj"),  # GPT-2
    ("*.attention.self.query", "*.attention.self.key", "*.attention.self.value", "*.attention.output.dense"),  # BERT
    ("*.attention.q_lin", "*.attention.k_lin", "*.attention.v_lin", "*.attention.out_lin"),  # DistilBERT
    ("*.SelfAttention.q", "*.SelfAttention.k", "*.SelfAttention.v", "*.SelfAttention.o"),  # T5
)
# The same of attention to an encoder's source.
CROSS_ATTENTIONS = (
    ("*.encoder_attn.q_proj", "*.encoder_attn.k_proj", "*.encoder_attn.v_proj", "*.encoder_attn.out_proj"),  # BART
    ("*.EncDecAttention.q", "*.EncDecAttention.k", "*.EncDecAttention.v", "*.EncDecAttention.o"),  # T5
)
# Query, key and value of each head side by side, and the output projection.
FUSED_ATTENTIONS = (("*.attention.query_key_value", "*.attention.dense"),)  # GPT-NeoX
# The layer that computes the queries of latent attention.
QUERIES_OF_LATENT = ("q_b_proj", "q_proj")
# Layers divided along their outputs, and the layer that takes these outputs as its inputs.
INNER = (
    (("*.gate_up_proj.gate", "*.gate_up_proj.up"), "*.down_proj"),
    (("*.gate_proj", "*.up_proj"), "*.down_proj"),
    (("*.mlp.c_fc",), "*.mlp.c_proj"),
    (("*.intermediate.dense",), "*.output.dense"),
    (("*.mlp.dense_h_to_4h",), "*.mlp.dense_4h_to_h"),
    (("*.ffn.lin1",), "*.ffn.lin2"),
    (("*.fc1",), "*.fc2"),
    (("*.fc_in",), "*.fc_out"),  # GPT-J
    (("*.DenseReluDense.wi_0", "*.DenseReluDense.wi_1"), "*.DenseReluDense.wo"),  # Flan-T5
    (("*.DenseReluDense.wi",), "*.DenseReluDense.wo"),  # T5
)
# Embedding tables, and the heads that compute a score for each id: the largest layers of small models.
VOCABULARY = (
    ("*embed_tokens", Row),
    ("*wte", Row),
    ("*embed_in", Row),
    ("*word_embeddings", Row),
    ("backbone.embeddings", Row),  # Mamba
    ("lm_head", Column),
    ("embed_out", Column),
    ("proj_out", Column),  # Whisper
)


@dataclass(frozen=True)
class _Names:
    """The layers of a model that can be divided."""

    model: torch.nn.Module

    def all(self) -> dict[str, torch.nn.Module]:
        return shardable_layers(self.model)

    def of(self, pattern: str) -> list[torch.nn.Module]:
        matcher = pattern_matcher(pattern)
        return [module for name, module in self.all().items() if matcher.fullmatch(name)]

    def have(self, *patterns: str) -> bool:
        return all(self.of(pattern) for pattern in patterns)


def _families(model: torch.nn.Module) -> list[dict[str, Column | Row]]:
    """Returns the rules for a model whose modules have been split (graph/modules.py), grouped by what they divide
    together: nothing if its layers have other names."""
    families = [
        {f"{path}.{pattern}" if path else pattern: style for pattern, style in rules.items()}
        for path, part in _parts(model).items()
        for rules in _families_of_part(part)
    ]
    vocabulary = {pattern: style() for pattern, style in VOCABULARY if _Names(model).of(pattern)}
    return [*families, vocabulary] if families and vocabulary else families


def _parts(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Returns the parts of a model with names and sizes of their own, by path: the model, or its encoder of images and
    its language model."""
    vision = getattr(getattr(model, "config", None), "vision_config", None)
    if vision is None:
        return {"": model}
    kinds = {type(vision), type(model.config.get_text_config())}
    parts: dict[str, torch.nn.Module] = {}
    for path, module in model.named_modules():
        is_inside = any(path.startswith(f"{part}.") for part in parts)
        if path and type(getattr(module, "config", None)) in kinds and not is_inside:
            parts[path] = module
    return parts


def _families_of_part(model: torch.nn.Module) -> list[dict[str, Column | Row]]:
    names = _Names(model)
    families = [
        rules
        for rules in (
            *_by_pattern(names, _latent_attentions(model) | state_layers(model)),
            _attention(names, model, ATTENTIONS),
            _attention(names, model, CROSS_ATTENTIONS),
            _experts(names, model),
        )
        if rules
    ]
    for columns, row in INNER:
        if names.have(*columns, row) and not any(row in rules for rules in families):
            unit = min(smaller_unit(layer.in_features) for layer in names.of(row))
            families.append({pattern: Column(unit=unit) for pattern in columns} | {row: Row(unit=unit)})
    return families


def with_default_sharding(model: torch.nn.Module, sharding: object) -> Choice:
    """Replaces "auto", which is `sharding` itself or its last rule, with default rules for the layers without another
    rule.
    """
    if isinstance(sharding, str) and sharding == "auto":
        sharding = {"*": "auto"}
    if not isinstance(sharding, Mapping) or "auto" not in [rule for rule in sharding.values() if isinstance(rule, str)]:
        return Choice(sharding)
    *first, last = sharding
    if last != "*" or any(isinstance(sharding[pattern], str) and sharding[pattern] == "auto" for pattern in first):
        raise ExportError('sharding: "auto" is for all layers that are left: {..., "*": "auto"}')
    given = [pattern_matcher(pattern) for pattern in first]
    left = [name for name in shardable_layers(model) if not any(matcher.fullmatch(name) for matcher in given)]
    rules: dict[str, object] = {pattern: sharding[pattern] for pattern in first}
    families = []
    for family in _families(model):
        matching = {pattern: pattern_matcher(pattern) for pattern in family if pattern not in rules}
        families.append([one for one, matcher in matching.items() if any(matcher.fullmatch(name) for name in left)])
        rules |= {pattern: family[pattern] for pattern in families[-1]}
        left = [name for name in left if not any(matching[one].fullmatch(name) for one in families[-1])]
    return Choice(rules, [family for family in families if family], is_auto=True)


def _attention(names: _Names, model: torch.nn.Module, attentions: tuple) -> dict[str, Column | Row]:
    config = config_of(model)
    heads, kv_heads, head = heads_of(config)
    if not heads or not head:
        return {}
    norms = [module for name, module in model.named_modules() if name.endswith(".q_norm")]
    if any(norm.weight.numel() > head for norm in norms if getattr(norm, "weight", None) is not None):
        return {}  # a norm over all heads needs all of them
    of_key = heads // kv_heads  # query heads that use one key head
    for query, key, value, output in attentions:
        if names.have(query, key, value, output):
            return {
                query: Column(unit=min(layer.out_features for layer in names.of(query)) // heads, together=of_key),
                key: Column(unit=head, copies=True),
                value: Column(unit=head, copies=True),
                output: Row(unit=head, together=of_key),
            }
    for fused, output in FUSED_ATTENTIONS if attentions is ATTENTIONS else ():
        if names.have(fused, output):
            return {fused: Column(unit=3 * head), output: Row(unit=head)}
    return {}


def _latent_attentions(model: torch.nn.Module) -> dict[str, dict[str, Column | Row]]:
    """Returns rules for the projections of latent attentions, by the path of each: each rank has the compressed keys,
    and its own query heads."""
    found = {}
    for path, module in model.named_modules():
        if not isinstance(getattr(module, "kv_b_proj", None), LatentHeads):
            continue
        layers = {name: getattr(module, name, None) for name in QUERIES_OF_LATENT}
        query = next((name for name, layer in layers.items() if isinstance(layer, torch.nn.Linear)), None)
        if query is None or not isinstance(getattr(module, "o_proj", None), torch.nn.Linear):
            continue
        key, value = (module.kv_b_proj.get_submodule(part).weight for part in ("key", "value"))
        found[path] = {
            query: Column(unit=layers[query].out_features // len(key)),
            "o_proj": Row(unit=value.shape[1]),
            "kv_b_proj.key": Column(unit=1),
            "kv_b_proj.value": Column(unit=1),
        }
    return found


def _by_pattern(names: _Names, found: dict[str, dict[str, Column | Row]]) -> list[dict[str, Column | Row]]:
    """Returns rules with patterns for modules that are in each layer of the model, given the rules of each. They name
    each module if other layers have such names too."""
    together: dict[tuple, list[str]] = {}
    for path, styles in found.items():
        together.setdefault((re.sub(r".*?\.\d+\.", "*.", path, count=1), tuple(styles.items())), []).append(path)
    families = []
    for (pattern, styles), paths in together.items():
        only_these = all(len(names.of(f"{pattern}.{layer}")) == len(paths) for layer, _ in styles)
        for path in [pattern] if only_these else paths:
            families.append({f"{path}.{layer}": style for layer, style in styles})
    return families


def _experts(names: _Names, model: torch.nn.Module) -> dict[str, Column | Row]:
    layers = [module for module in model.modules() if isinstance(module, Experts)]
    if not layers or not names.have("*.experts"):
        return {}
    return {"*.experts": Row(unit=min(smaller_unit(layer.up_proj.shape[1]) for layer in layers))}
