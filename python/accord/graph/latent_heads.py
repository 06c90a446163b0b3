"""Multi-head latent attention with its compressed keys: DeepSeek V2 and later, Kimi K2, GLM 4.7, MiniCPM 3 and others.

A token has one compressed vector c, and one key with its position that all heads share. A layer, kv_b_proj, expands c
to a key and a value for each head: k = W_k c and v = W_v c. The score of a query is q k = (W_k^T q) c, and the output
is a sum of values W_v c, which is W_v times the sum of c. So attention can run on c itself: one key head, whose key is
c with the shared key behind it and whose value is c. Only these are then cached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from accord.graph.experts import frozen


@torch.library.custom_op("accord::head_linear", mutates_args=())
def _head_linear(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A product with a matrix for each head: [rows, heads, in] by [heads, out, in] gives [rows, heads, out]."""
    return torch.einsum("rhi,hoi->rho", input.float(), weight.float()).to(input.dtype).contiguous()


@_head_linear.register_fake
def _(input, weight):
    return input.new_empty(*input.shape[:2], weight.shape[1])


class HeadLinear(torch.nn.Module):
    """A linear layer for each head. weight: [heads, out, in]."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = frozen(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.accord.head_linear(x, self.weight)


class LatentHeads(torch.nn.Module):
    """A kv_b_proj as two products by head: `key` multiplies queries with the transposed matrices of keys, `value`
    multiplies outputs with those of values. Called like the layer, it expands compressed vectors."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor):
        super().__init__()
        self.key, self.value = HeadLinear(key), HeadLinear(value)

    def forward(self, compressed: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(compressed, joined(self.key.weight, self.value.weight))

    @property
    def rank(self) -> int:
        return self.value.weight.shape[2]

    def absorbed(self, query: torch.Tensor) -> torch.Tensor:
        """Returns queries [1, heads, tokens, ..] for keys that are compressed vectors with shared keys behind them."""
        size = self.key.weight.shape[2]
        own, shared = (part[0].transpose(0, 1) for part in (query[..., :size], query[..., size:]))
        return torch.cat([self.key(own), shared], -1).transpose(0, 1)[None]

    def expanded(self, output: torch.Tensor) -> torch.Tensor:
        """Returns the values [1, tokens, heads, ..] of which `output` has the compressed vectors."""
        return self.value(output[0])[None]


def head_matrices(weight: torch.Tensor, key_size: int, value_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the matrices of LatentHeads, [heads, rank, key size] and [heads, value size, rank], as views of the
    weight of kv_b_proj."""
    by_head = weight.unflatten(0, (-1, key_size + value_size))
    return by_head[:, :key_size].transpose(1, 2), by_head[:, key_size:]


def joined(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns the weight of kv_b_proj of which these are the parts."""
    return torch.cat([key.transpose(1, 2), value], 1).flatten(0, 1)


@contextlib.contextmanager
def latent_heads(model: torch.nn.Module) -> Iterator[None]:
    """Context in which the kv_b_proj of each latent attention is replaced by its LatentHeads."""
    replaced = []
    try:
        for attention in model.modules():
            heads = _heads_of(attention)
            if heads is not None:
                replaced.append((attention, attention.kv_b_proj))
                attention.kv_b_proj = heads
        yield
    finally:
        for attention, layer in replaced:
            attention.kv_b_proj = layer


@contextlib.contextmanager
def compressed_keys(model: torch.nn.Module) -> Iterator[None]:
    """Context in which attentions that have LatentHeads pass on one compressed key head, in place of the keys of all
    heads, and the compressed vectors as its values."""
    attentions = [module for module in model.modules() if isinstance(getattr(module, "kv_b_proj", None), LatentHeads)]
    try:
        for attention in attentions:
            attention.expand_kv = lambda compressed, shared: (torch.cat([compressed, shared], -1), compressed)
        yield
    finally:
        for attention in attentions:
            vars(attention).pop("expand_kv", None)


def _heads_of(attention: torch.nn.Module) -> LatentHeads | None:
    """Returns the LatentHeads of an attention that expands compressed vectors as they do; None for other modules."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank, key, shared, value = (getattr(attention, name, None) for name in names)
    layer = getattr(attention, "kv_b_proj", None)
    is_latent = hasattr(attention, "expand_kv") and type(layer) is torch.nn.Linear and layer.bias is None
    if not is_latent or not (rank and key and shared and value) or layer.in_features != rank:
        return None
    if layer.out_features % (key + value):
        return None
    heads = LatentHeads(*head_matrices(layer.weight, key, value))
    return heads.eval() if _expands(attention, heads, shared) else None


@torch.no_grad()
def _expands(attention: torch.nn.Module, heads: LatentHeads, shared: int) -> bool:
    """Returns True if the keys that the attention computes for a few random vectors are keys of the heads, followed by
    the shared key, and its values are those of the heads."""
    weight, random = heads.value.weight, torch.Generator().manual_seed(0)
    compressed, shared_key = (
        torch.randn(1, 1, 3, size, generator=random).to(weight.device, weight.dtype) for size in (heads.rank, shared)
    )
    keys, values = attention.expand_kv(compressed, shared_key)
    key, value = (
        one.transpose(1, 2)
        for one in heads(compressed[:, 0])
        .unflatten(-1, (len(weight), -1))
        .split((heads.key.weight.shape[2], weight.shape[1]), -1)
    )
    expected = torch.cat([key, shared_key.expand(-1, len(weight), -1, -1)], -1)
    return all(
        given.shape == wanted.shape and torch.allclose(given, wanted, rtol=1e-2, atol=1e-4)
        for given, wanted in ((keys, expected), (values, value))
    )
