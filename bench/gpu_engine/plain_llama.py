"""A Llama of plain torch.nn with random weights, for machines without transformers: one body, whose attention is
either the engine's op or one over a cache of fixed length."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from bench.engine import llama

THETA = 500000.0
DEFAULT = llama.MODELS["1.2B"]

Tables = tuple[Tensor, Tensor]  # cosines and sines, [1, 1, tokens, head size]
# Takes the layer, queries [batch, heads, tokens, head size], and keys and values [batch, kv heads, ...]; returns
# [batch, tokens, heads, head size].
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """Other widths keep the proportions of Llama 3.2 1B, whose heads have 64 elements."""

    hidden: int = DEFAULT["hidden_size"]
    layers: int = DEFAULT["num_hidden_layers"]
    vocabulary: int = DEFAULT["vocab_size"]
    head = 64

    @property
    def intermediate(self) -> int:
        return 4 * self.hidden

    @property
    def heads(self) -> int:
        return self.hidden // self.head

    @property
    def kv_heads(self) -> int:
        return max(1, self.heads // 4)


def rotated(x: Tensor, tables: Tables) -> Tensor:
    cosines, sines = tables
    half = x.shape[-1] // 2
    return x * cosines + torch.cat([-x[..., half:], x[..., :half]], -1) * sines


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, layer: int):
        super().__init__()
        self.sizes, self.layer = sizes, layer
        width, kv_width = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
        self.q_proj = nn.Linear(sizes.hidden, width, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, sizes.hidden, bias=False)

    def forward(self, x: Tensor, tables: Tables, attend: Attend) -> Tensor:
        sizes = self.sizes
        query = self.split(self.q_proj(x), sizes.heads)
        key = self.split(self.k_proj(x), sizes.kv_heads)
        value = self.split(self.v_proj(x), sizes.kv_heads)
        output = attend(self.layer, rotated(query, tables), rotated(key, tables), value)
        return self.o_proj(output.reshape(x.shape[0], x.shape[1], sizes.heads * sizes.head))

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.sizes.head).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, sizes: Sizes, layer: int):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.self_attn = Attention(sizes, layer)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.mlp = FeedForward(sizes)

    def forward(self, x: Tensor, tables: Tables, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Takes token ids [batch, tokens] at positions [tokens] and returns [batch, tokens, hidden], the input of
    logits().
    """

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList([Layer(sizes, layer) for layer in range(sizes.layers)])
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.register_buffer("frequencies", torch.empty(sizes.head // 2))

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self.embed_tokens(ids)
        angles = torch.cat([positions[:, None].float() * self.frequencies] * 2, -1)[None, None]
        tables = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, tables, attend)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return linear(x, self.embed_tokens.weight)

    def weight_bytes(self) -> int:
        """Returns the bytes that each step reads: the embedding is also the head."""
        return sum(weights.numel() * weights.element_size() for weights in self.parameters())


def make(sizes: Sizes, dtype: torch.dtype, device: str) -> Llama:
    with torch.device("meta"):
        model = Llama(sizes).to(dtype)
    model = model.to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(0, 0.02, generator=generator) if weights.dim() > 1 else weights.fill_(1)
        steps = torch.arange(0, sizes.head, 2, device=device).float() / sizes.head
        model.frequencies = 1.0 / THETA**steps
    return model


class Steps(nn.Module):
    """The model as an engine runs it: token ids [tokens], their positions [tokens], and the rows [rows] with wanted
    logits.
    """

    def __init__(self, model: Llama):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        return self.model.logits(self.model(input_ids[None], positions, self.attend)[0][rows])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.ops.accord.attention(query, key, value, layer, self.model.sizes.head**-0.5)


def export(model: Llama, path: Path, weights: str | None = None) -> Path:
    """Exports accord's package of the model, without transformers. weights: same as for accord.export."""
    import accord
    from accord.exporter import language_model  # registers the op

    steps = Steps(copy.deepcopy(model).to("cpu") if model.frequencies.is_cuda else model).eval()
    shapes = language_model.dynamic_shapes()
    return accord.export(
        steps,
        language_model.example_inputs(),
        path=path,
        dynamic_shapes=shapes,
        output_names=["logits"],
        weights=weights,
    )


class StaticCache(nn.Module):
    """A batch whose keys and values are stored in tensors of a fixed length, as CUDA graphs require. forward()
    computes one token of each sequence.
    """

    def __init__(self, model: Llama, batch: int, length: int):
        super().__init__()
        self.model, sizes = model, model.sizes
        like = model.embed_tokens.weight
        shape = (batch, sizes.kv_heads, length, sizes.head)
        self.keys = [like.new_zeros(shape) for _ in range(sizes.layers)]
        self.values = [like.new_zeros(shape) for _ in range(sizes.layers)]
        for tensor in [*self.keys, *self.values]:
            torch._dynamo.mark_static_address(tensor)
        self.register_buffer("places", torch.arange(length, device=like.device))

    def prompt(self, ids: Tensor) -> Tensor:
        """Takes the first ids [batch, tokens] of the sequences and returns the last token's logits [batch,
        vocabulary].
        """
        count = ids.shape[1]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.keys[layer][:, :, :count] = key
            self.values[layer][:, :, :count] = value
            output = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return output.transpose(1, 2)

        return self.model.logits(self.model(ids, self.places[:count], attend)[:, -1])

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        """Takes ids [batch, 1] at `position` [1] and returns logits [batch, vocabulary]."""
        hidden = self.places[None, :] > position[:, None]
        mask = self.keys[0].new_zeros(hidden.shape).masked_fill(hidden, -torch.inf)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys = self.keys[layer].index_copy_(2, position, key)
            values = self.values[layer].index_copy_(2, position, value)
            # The query heads of one key head are rows of one product, so that keys need not be repeated.
            rows = query.reshape(query.shape[0], keys.shape[1], -1, query.shape[3])
            output = scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
            return output.reshape(query.shape).transpose(1, 2)

        return self.model.logits(self.model(ids, position, attend)[:, -1])
