"""How the weights of transformers' models are made of the tensors of a GGUF file: a table for each architecture.

A key of a table is the name of a weight, or of a module with a weight and perhaps a bias; "{}" is the number of a
layer. The value is a Weight, or several, of which the first applies whose tensors the file has. A text is a Weight of
this one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

Join = Callable[[Sequence[torch.Tensor], Sequence[int]], torch.Tensor]  # of tensors, to a weight of this shape


def only(parts: Sequence[torch.Tensor], _: Sequence[int]) -> torch.Tensor:
    (part,) = parts
    return part


@dataclass(frozen=True)
class Weight:
    """A weight that is made of tensors. Names of a module's tensors are without ".weight" and ".bias"."""

    tensors: tuple[str, ...]
    join: Join = only
    heads: str = ""  # the configuration's number of heads whose rows llama.cpp reorders; "": it keeps their order
    matrices: tuple[str, ...] = ()  # the matrices of a layer of experts that the tensors are, in order


Table = Mapping[str, "str | Weight | tuple[Weight, ...]"]


def ways_to_make(table: Table, name: str) -> tuple[Weight, ...]:
    """Returns the ways in which the weight `name` can be made, with the whole names of their tensors."""
    (layer,) = re.findall(r"\.(\d+)\.", name) or [""]
    pattern = name.replace(f".{layer}.", ".{}.") if layer else name
    module, _, kind = pattern.rpartition(".")
    entry, suffix = (table[pattern], "") if pattern in table else (table[module], f".{kind}")
    ways = entry if isinstance(entry, tuple) else (Weight((entry,)) if isinstance(entry, str) else entry,)
    return tuple(replace(way, tensors=tuple(f"{one}{suffix}".format(layer) for one in way.tensors)) for way in ways)


# How tensors are joined.


def less_one(parts: Sequence[torch.Tensor], _: Sequence[int]) -> torch.Tensor:
    """Gemma multiplies by 1 + weight; the file has that sum."""
    return parts[0] - 1


def as_row(parts: Sequence[torch.Tensor], _: Sequence[int]) -> torch.Tensor:
    return parts[0][None]


def zeros(_: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    return torch.zeros(list(shape))


def stacked(parts: Sequence[torch.Tensor], _: Sequence[int]) -> torch.Tensor:
    """Outputs of several layers, one layer after the other."""
    return torch.cat(list(parts))


def gate_then_up(parts: Sequence[torch.Tensor], _: Sequence[int]) -> torch.Tensor:
    """[experts, gate's and then up's outputs, inputs]"""
    return torch.cat(list(parts), 1)


def gate_between_up(parts: Sequence[torch.Tensor], _: Sequence[int]) -> torch.Tensor:
    """[experts, inputs, outputs that are the gate's and up's in turn], or without inputs."""
    alternating = torch.stack(list(parts), 2).flatten(1, 2)
    return alternating.transpose(1, 2).contiguous() if alternating.dim() == 3 else alternating


def inputs_first(parts: Sequence[torch.Tensor], _: Sequence[int]) -> torch.Tensor:
    return parts[0].transpose(1, 2).contiguous()


def keys_then_values(parts: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """The outputs of each head are its key and its value; llama.cpp stores the keys' part with inputs first."""
    keys, values = parts
    return torch.cat([keys.transpose(1, 2), values], 1).reshape(*shape)


# Tables, which architectures combine.

LAYER = "model.layers.{}"
TEXT: Table = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
NORMS: Table = {f"{LAYER}.input_layernorm": "blk.{}.attn_norm", f"{LAYER}.post_attention_layernorm": "blk.{}.ffn_norm"}
ATTENTION: Table = {
    f"{LAYER}.self_attn.{ours}": f"blk.{{}}.{theirs}"
    for ours, theirs in (("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("o_proj", "attn_output"))
}
# llama.cpp rotates adjacent rows of a head together, and transformers rows that are half a head apart.
REORDERED: Table = {
    f"{LAYER}.self_attn.q_proj": Weight(("blk.{}.attn_q",), heads="num_attention_heads"),
    f"{LAYER}.self_attn.k_proj": Weight(("blk.{}.attn_k",), heads="num_key_value_heads"),
}
HEAD_NORMS: Table = {
    f"{LAYER}.self_attn.q_norm": "blk.{}.attn_q_norm",
    f"{LAYER}.self_attn.k_norm": "blk.{}.attn_k_norm",
}
GATED: Table = {
    f"{LAYER}.mlp.gate_proj": "blk.{}.ffn_gate",
    f"{LAYER}.mlp.up_proj": "blk.{}.ffn_up",
    f"{LAYER}.mlp.down_proj": "blk.{}.ffn_down",
}


GATE_UP = ("gate_proj", "up_proj")


def experts(module: str) -> Table:
    return {
        f"{LAYER}.{module}.experts.gate_up_proj": (
            Weight(("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"), gate_then_up, "", GATE_UP),
            Weight(("blk.{}.ffn_gate_up_exps.weight",)),
        ),
        f"{LAYER}.{module}.experts.down_proj": Weight(("blk.{}.ffn_down_exps.weight",), matrices=("down_proj",)),
    }


def shared_expert(name: str) -> Table:
    return {f"{LAYER}.mlp.{name}.{matrix}_proj": f"blk.{{}}.ffn_{matrix}_shexp" for matrix in ("gate", "up", "down")}


PLAIN = {**TEXT, **NORMS, **ATTENTION, **GATED}
LLAMA = {**PLAIN, **REORDERED}
MIXTURE = {**TEXT, **NORMS, **ATTENTION, f"{LAYER}.mlp.gate": "blk.{}.ffn_gate_inp", **experts("mlp")}
QWEN_2_MIXTURE = {
    **MIXTURE,
    **shared_expert("shared_expert"),
    f"{LAYER}.mlp.shared_expert_gate": Weight(("blk.{}.ffn_gate_inp_shexp",), as_row),
}
GRANITE_MIXTURE = {
    **TEXT,
    **NORMS,
    **ATTENTION,
    **REORDERED,
    f"{LAYER}.block_sparse_moe.router": "blk.{}.ffn_gate_inp",
    **experts("block_sparse_moe"),
}
GEMMA = {
    **PLAIN,
    "model.norm": Weight(("output_norm",), less_one),
    **{
        f"{LAYER}.{ours}": Weight((f"blk.{{}}.{theirs}",), less_one)
        for ours, theirs in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"))
    },
}
GEMMA_2 = {
    **GEMMA,
    **{
        f"{LAYER}.{ours}": Weight((f"blk.{{}}.{theirs}",), less_one)
        for ours, theirs in (
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("self_attn.q_norm", "attn_q_norm"),  # Gemma 3
            ("self_attn.k_norm", "attn_k_norm"),
        )
    },
}
PHI = {
    **PLAIN,
    f"{LAYER}.self_attn.qkv_proj": (
        Weight(("blk.{}.attn_qkv",)),
        Weight(("blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v"), stacked),
    ),
    f"{LAYER}.mlp.gate_up_proj": "blk.{}.ffn_up",
}
OLMO_2 = {
    **PLAIN,
    **HEAD_NORMS,
    f"{LAYER}.post_attention_layernorm": "blk.{}.post_attention_norm",
    f"{LAYER}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
STARCODER_2 = {**PLAIN, f"{LAYER}.mlp.c_fc": "blk.{}.ffn_up", f"{LAYER}.mlp.c_proj": "blk.{}.ffn_down"}
GPT_OSS = {
    **TEXT,
    **NORMS,
    **ATTENTION,
    f"{LAYER}.post_attention_layernorm": "blk.{}.post_attention_norm",
    f"{LAYER}.self_attn.sinks": "blk.{}.attn_sinks.weight",
    f"{LAYER}.mlp.router": "blk.{}.ffn_gate_inp",
    f"{LAYER}.mlp.experts.gate_up_proj": Weight(
        ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"), gate_between_up, "", GATE_UP
    ),
    f"{LAYER}.mlp.experts.gate_up_proj_bias": Weight(
        ("blk.{}.ffn_gate_exps.bias", "blk.{}.ffn_up_exps.bias"), gate_between_up
    ),
    f"{LAYER}.mlp.experts.down_proj": Weight(("blk.{}.ffn_down_exps.weight",), inputs_first, "", ("down_proj",)),
    f"{LAYER}.mlp.experts.down_proj_bias": "blk.{}.ffn_down_exps.bias",
}
DEEPSEEK = {
    **PLAIN,
    **MIXTURE,
    **shared_expert("shared_experts"),
    f"{LAYER}.mlp.gate.e_score_correction_bias": (Weight(("blk.{}.exp_probs_b.bias",)), Weight((), zeros)),
    **{
        f"{LAYER}.self_attn.{ours}": f"blk.{{}}.{theirs}"
        for ours, theirs in (
            ("q_a_proj", "attn_q_a"),
            ("q_a_layernorm", "attn_q_a_norm"),
            ("q_b_proj", "attn_q_b"),
            ("kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            ("kv_a_layernorm", "attn_kv_a_norm"),
        )
    },
    f"{LAYER}.self_attn.kv_b_proj.weight": (
        Weight(("blk.{}.attn_kv_b.weight",)),
        Weight(("blk.{}.attn_k_b.weight", "blk.{}.attn_v_b.weight"), keys_then_values),
    ),
}
