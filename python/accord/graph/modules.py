"""Modules of transformers that are exported in another form: experts as one op, and fused weights as their parts.

A rank's share of a fused weight (query, key and value in one; gate and up in one) is a slice of each part, not a
slice of the whole, so sharding needs the parts. While a model is exported, such modules are replaced with others over
views of the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from accord.graph.experts import Experts, frozen, is_experts


class Parts(torch.nn.Module):
    """A linear layer that computes the outputs of several layers side by side, split into these layers."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, parts: dict[str, int]):
        super().__init__()
        biases = (None,) * len(parts) if bias is None else bias.split(list(parts.values()))
        weights = weight.split(list(parts.values()))
        for name, one_weight, one_bias in zip(parts, weights, biases, strict=True):
            self.add_module(name, _linear(one_weight, one_bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.children()], -1)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = frozen(weight)
    if bias is not None:
        layer.bias = frozen(bias)
    return layer.eval()


def parts_of(name: str, outputs: int, config, parent: torch.nn.Module | None = None) -> dict[str, int] | None:
    """Returns the sizes of the parts that a layer of this name, in the module `parent`, computes together, or None if
    it has only one."""
    heads, kv_heads, head = heads_of(config)
    parts = {
        "in_proj": _parts_of_state(parent, outputs),
        "in_proj_qkv": _parts_of_delta_rule(parent),
        "c_attn": {"query": outputs // 3, "key": outputs // 3, "value": outputs // 3},  # GPT-2
        "qkv_proj": heads
        and head
        and {"query": heads * head, "key": kv_heads * head, "value": kv_heads * head},  # Phi 3
        "gate_up_proj": {"gate": outputs // 2, "up": outputs // 2},
    }.get(name)
    return parts if parts and sum(parts.values()) == outputs else None


def is_mamba_2(module: torch.nn.Module | None) -> bool:
    return all(hasattr(module, name) for name in ("n_groups", "ssm_state_size", "num_heads", "head_dim", "in_proj"))


def is_mamba_1(module: torch.nn.Module | None) -> bool:
    return all(hasattr(module, name) for name in ("ssm_state_size", "intermediate_size", "in_proj", "x_proj"))


def is_delta_rule(module: torch.nn.Module | None) -> bool:
    """Returns True for layers with Qwen3-Next's names of sizes."""
    return all(hasattr(module, name) for name in ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim"))


def is_gated_convolution(module: torch.nn.Module | None) -> bool:
    """Returns True for LFM2's layers."""
    return hasattr(module, "in_proj") and hasattr(module, "conv") and hasattr(module, "out_proj")


def _parts_of_state(module: torch.nn.Module | None, outputs: int) -> dict[str, int] | None:
    if is_mamba_2(module):
        keys = module.n_groups * module.ssm_state_size
        inner = module.num_heads * module.head_dim
        return {"gate": inner, "value": inner, "key": keys, "query": keys, "dt": module.num_heads}
    if is_mamba_1(module):
        return {"value": module.intermediate_size, "gate": module.intermediate_size}
    if is_gated_convolution(module):
        return {"before": outputs // 3, "after": outputs // 3, "value": outputs // 3}
    return None


def _parts_of_delta_rule(module: torch.nn.Module | None) -> dict[str, int] | None:
    if not is_delta_rule(module):
        return None
    keys = module.num_k_heads * module.head_k_dim
    return {"query": keys, "key": keys, "value": module.num_v_heads * module.head_v_dim}


def _other(name: str, module: torch.nn.Module, config, parent: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module that `module` is exported as, or None if it stays as it is."""
    if is_experts(module):
        return Experts(module)
    transposed = type(module).__name__ == "Conv1D" and hasattr(module, "nf")
    is_linear = type(module) is torch.nn.Linear or type(module).__name__ == "FalconLinear"  # in ops of its own
    if not transposed and not is_linear:
        return None
    weight = module.weight.t() if transposed else module.weight
    parts = parts_of(name, weight.shape[0], config, parent)
    if parts:
        return Parts(weight, module.bias, parts)
    return None if type(module) is torch.nn.Linear else _linear(weight, module.bias)


def config_of(model: torch.nn.Module):
    """Returns transformers' configuration of a model, or of the first module inside it that has one, or None."""
    configs = (getattr(module, "config", None) for module in model.modules())
    config = next((config for config in configs if hasattr(config, "get_text_config")), None)
    return config and config.get_text_config()


def number_of(config, name: str) -> int | None:
    """Returns a number from the configuration, or None if it is missing or differs between layers or stages."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:  # transformers' AmbiguousGlobalPerLayerAttributeError
        return None
    return value if isinstance(value, int) else None


def size_of(config, name: str) -> int | None:
    """Returns the number of "layers" or "attention_heads". For a lone decoder, returns the decoder's own number if
    the configuration also has one for an encoder."""
    alone = getattr(config, "is_decoder", False) and not getattr(config, "is_encoder_decoder", False)
    own = number_of(config, f"decoder_{name}") if alone else None
    return own or number_of(config, {"layers": "num_hidden_layers"}.get(name, f"num_{name}"))


def heads_of(config) -> tuple[int | None, int | None, int | None]:
    """Returns the numbers of attention heads and key-value heads, and the size of a head; None where unknown."""
    heads, hidden = size_of(config, "attention_heads"), number_of(config, "hidden_size")
    head = number_of(config, "head_dim") or number_of(config, "d_kv") or (heads and hidden and hidden // heads)
    return heads, number_of(config, "num_key_value_heads") or heads, head


@contextlib.contextmanager
def taken_apart(model: torch.nn.Module) -> Iterator[None]:
    """Context in which modules of a transformers model are replaced with modules that sharding supports."""
    replaced = []
    try:
        config = config_of(model)
        for parent in list(model.modules()) if config else []:
            for name, module in list(parent.named_children()):
                other = _other(name, module, config, parent)
                if other is not None:
                    setattr(parent, name, other)
                    replaced.append((parent, name, module))
        yield
    finally:
        for parent, name, module in replaced:
            setattr(parent, name, module)
