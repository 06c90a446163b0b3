"""sharding="auto" of layers that keep a state: how the ranks of "tp" share their heads or channels.

Each rank has the states of its own heads. Heads that share a key (Mamba 2's groups, the value heads of a delta rule)
stay together. Keys and queries that all heads share are on every rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from accord.graph.modules import is_delta_rule, is_gated_convolution, is_mamba_1, is_mamba_2
from accord.package.sharding import Column, Row, smaller_unit

Styles = dict[str, Column | Row]  # by the path of a layer in its module


def _mamba_2(module: torch.nn.Module) -> Styles:
    heads = module.num_heads // module.n_groups if module.n_groups > 1 else 1
    values = Column(unit=heads * module.head_dim)
    styles = {"in_proj.gate": values, "in_proj.value": values, "in_proj.dt": Column(unit=heads)}
    if module.n_groups > 1:
        styles |= dict.fromkeys(("in_proj.key", "in_proj.query"), Column(unit=module.ssm_state_size))
    return styles | {"out_proj": Row(unit=values.unit)}


def _mamba_1(module: torch.nn.Module) -> Styles:
    unit = smaller_unit(module.intermediate_size)
    columns = dict.fromkeys(("in_proj.value", "in_proj.gate", "dt_proj"), Column(unit=unit))
    return columns | {"x_proj": Row(unit=unit), "out_proj": Row(unit=unit)}


def _gated_convolution(module: torch.nn.Module) -> Styles:
    unit = smaller_unit(module.out_proj.in_features)
    parts = (f"in_proj.{name}" for name, _ in module.in_proj.named_children())
    return dict.fromkeys(parts, Column(unit=unit)) | {"out_proj": Row(unit=unit)}


def _qwen(module: torch.nn.Module) -> Styles:
    """Qwen3-Next, Qwen 3.5 and OLMo hybrid."""
    of_key = module.num_v_heads // module.num_k_heads
    keys, values, heads = module.head_k_dim, of_key * module.head_v_dim, of_key
    styles: Styles = {"in_proj_qkvz": Column(unit=2 * (keys + values)), "in_proj_ba": Column(unit=2 * heads)}
    styles |= dict.fromkeys(("in_proj_qkv.query", "in_proj_qkv.key", "q_proj", "k_proj"), Column(unit=keys))
    styles |= dict.fromkeys(("in_proj_qkv.value", "in_proj_z", "v_proj", "g_proj"), Column(unit=values))
    styles |= dict.fromkeys(("in_proj_a", "in_proj_b", "a_proj", "b_proj"), Column(unit=heads))
    return styles | dict.fromkeys(("out_proj", "o_proj"), Row(unit=values))


def _kimi(module: torch.nn.Module) -> Styles:
    heads = Column(unit=module.head_dim)
    styles: Styles = dict.fromkeys(("q_proj", "k_proj", "v_proj", "forget_gate.f_b_proj", "g_b_proj"), heads)
    return styles | {"b_proj": Column(unit=1), "o_proj": Row(unit=module.head_dim)}


def _is_kimi(module: torch.nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("forget_gate", "b_proj", "g_b_proj", "head_dim", "conv1d"))


def _rwkv_attention(module: torch.nn.Module) -> Styles:
    unit = smaller_unit(module.output.in_features)
    return dict.fromkeys(("key", "value", "receptance"), Column(unit=unit)) | {"output": Row(unit=unit)}


def _rwkv_feed_forward(module: torch.nn.Module) -> Styles:
    unit = smaller_unit(module.value.in_features)
    return {"key": Column(unit=unit), "value": Row(unit=unit)}


def _is_rwkv_attention(module: torch.nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("time_decay", "key", "value", "receptance", "output"))


def _is_rwkv_feed_forward(module: torch.nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("time_mix_key", "key", "value", "receptance"))


def _recurrent_gemma(module: torch.nn.Module) -> Styles:
    unit = module.rg_lru.block_width  # of the channels whose gates see each other
    return dict.fromkeys(("linear_x", "linear_y"), Column(unit=unit)) | {"linear_out": Row(unit=unit)}


def _is_recurrent_gemma(module: torch.nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("rg_lru", "linear_x", "linear_y", "linear_out"))


KINDS: tuple[tuple[Callable[[torch.nn.Module], bool], Callable[[torch.nn.Module], Styles]], ...] = (
    (is_mamba_2, _mamba_2),
    (is_mamba_1, _mamba_1),
    (is_delta_rule, _qwen),
    (_is_kimi, _kimi),
    (is_gated_convolution, _gated_convolution),
    (_is_recurrent_gemma, _recurrent_gemma),
    (_is_rwkv_attention, _rwkv_attention),
    (_is_rwkv_feed_forward, _rwkv_feed_forward),
)


def state_layers(model: torch.nn.Module) -> dict[str, Styles]:
    """Returns the rules for each layer with a state that the table knows, by its path in the model."""
    found = {}
    for path, module in model.named_modules():
        styles = next((of(module) for is_one, of in KINDS if is_one(module)), None)
        layers = dict(module.named_modules()) if styles else {}
        present = {
            name: style for name, style in (styles or {}).items() if isinstance(layers.get(name), torch.nn.Linear)
        }
        if present:
            found[path] = present
    return found
