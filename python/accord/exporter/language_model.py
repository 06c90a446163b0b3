"""Converts a causal language model of transformers to the graph of an engine that continues many sequences at once.

The rows of a run are tokens of any sequences, one after the other; only attention knows which row belongs to which
sequence. transformers passes each attention on as a single call (its AttentionInterface), which becomes the op
accord.attention: the engine keeps its keys and values, and derives masks from the positions of the tokens.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from accord import chat_format
from accord.exporter.positions import GivenPositions, first_position, given_positions
from accord.graph.errors import ExportError
from accord.graph.modules import config_of, size_of
from accord.package.writer import LanguageModelFacts

OP = "accord.attention.default"
NAME = "accord"  # of this attention in transformers' registries
MOST_TOKENS = 1 << 16  # in one run
ANY_LENGTH = "a language model is exported for any number of tokens, one as well"
PREFIX = "language_model."  # of module paths below Steps


@torch.library.custom_op("accord::attention", mutates_args=())
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one sequence that begins with these rows: equals the engine's op for a sequence without context.
    sinks, slopes: [heads], the scores that take part in the softmax without a value, and what is added to a score for
    each token that the key is ahead of the query."""
    rows = query.shape[-2]
    scores = scale * (
        query.float() @ key.float().repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(-1, -2)
    )
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(rows)
    if slopes is not None:
        scores = scores + slopes.float()[:, None, None] * (at[None, :] - at[:, None])
    seen = at[:, None] >= at[None, :]
    if window:
        seen &= at[:, None] - at[None, :] < window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)[..., :rows]
    output = weights @ value.float().repeat_interleave(query.shape[1] // value.shape[1], 1)
    return output.to(query.dtype).transpose(1, 2).contiguous()


@_attention.register_fake
def _(query, key, value, layer, scale, window=0, softcap=0.0, sinks=None, slopes=None):
    batch, heads, rows, _ = query.shape
    return query.new_empty(batch, rows, heads, value.shape[-1])


def _attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
    """Has the signature of transformers' attention functions."""
    if attention_mask is not None or not getattr(module, "is_causal", True):
        raise ExportError(
            f"{type(module).__name__}: its attention is not causal; an engine that keeps keys needs that it is"
        )
    unknown = {name for name, value in options.items() if value is not None} - _KNOWN_OPTIONS
    if unknown:
        raise ExportError(
            f"{type(module).__name__}: its attention takes {', '.join(sorted(unknown))}, which no engine knows"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window, softcap = options.get("sliding_window") or 0, options.get("softcap") or 0.0
    output = torch.ops.accord.attention(
        query, key, value, module.layer_idx, float(scale), window, float(softcap), options.get("s_aux")
    )
    return output, None


# Other options that transformers passes on: queries and keys already include positions, and an engine has its own
# cache.
_KNOWN_OPTIONS = {
    "sliding_window",
    "softcap",
    "s_aux",  # sinks
    "position_ids",
    "cache_position",
    "use_cache",
    "is_causal",
    "output_attentions",
    "output_router_logits",
}


class Steps(torch.nn.Module):
    """A language model as an engine runs it. forward() takes token ids [tokens], their positions [tokens], and the
    rows [rows] whose logits are wanted, and returns these [rows, vocabulary]. `given`: from given_positions(model)."""

    def __init__(self, model: torch.nn.Module, given: GivenPositions):
        super().__init__()
        self.language_model = model
        self.first_position = first_position(model)
        self._given = given

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        positions = positions[None] + self.first_position if self.first_position else positions[None]
        self._given.value = positions
        return self.language_model(
            input_ids=input_ids[None], position_ids=positions, logits_to_keep=rows, use_cache=False
        ).logits[0]


def is_language_model(model: torch.nn.Module) -> bool:
    """Returns True for a causal language model of transformers, or a user's class derived from one."""
    kinds = (kind.__name__ for kind in type(model).__mro__)
    return hasattr(model, "config") and any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds)


def example_inputs() -> tuple[torch.Tensor, ...]:
    """Returns inputs of Steps for tracing."""
    return torch.tensor([1, 0, 2, 1, 0]), torch.arange(5), torch.tensor([0, 4])


def dynamic_shapes() -> tuple[dict, ...]:
    tokens, rows = torch.export.Dim("tokens", min=1, max=MOST_TOKENS), torch.export.Dim("rows", min=1, max=MOST_TOKENS)
    return {0: tokens}, {0: tokens}, {0: rows}


@contextlib.contextmanager
def steps_of(model: torch.nn.Module) -> Iterator[Steps]:
    """Context in which the model runs as in an engine; yields its Steps."""
    with attention_by(model, _attend, lambda *_, **__: None), given_positions(model) as given:
        yield Steps(model, given).eval()


@contextlib.contextmanager
def attention_by(model: torch.nn.Module, attend: Callable, make_mask: Callable) -> Iterator[None]:
    """Context in which the model's attention is `attend` and its masks come from `make_mask`. Both are called as
    transformers calls its own."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def facts(model: torch.nn.Module, tokenizer: str | os.PathLike | None) -> LanguageModelFacts:
    """Returns the facts about the model for its package. `tokenizer`: same as for export()."""
    generation = getattr(model, "generation_config", None)
    stop = getattr(generation, "eos_token_id", None)
    stop = getattr(model.config, "eos_token_id", None) if stop is None else stop
    stop_tokens = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
    texts = {}
    if tokenizer is not None:
        path = Path(tokenizer)
        folder, path = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
        if not path.is_file():
            raise ExportError(f"{path}: there is no such tokenizer")
        texts["tokenizer.json"] = path.read_bytes()
        if (chat := chat_format.of_folder(folder)) is not None:
            texts["chat_format.json"] = chat.encode()
    longest = getattr(config_of(model), "max_position_embeddings", None)
    if longest is None:
        raise ExportError(f"{type(model).__name__}: its configuration does not say how many tokens it takes")
    return LanguageModelFacts(longest - first_position(model), stop_tokens, texts)


def check_attention(model: torch.nn.Module, document: dict) -> None:
    """Raises ExportError if a layer's attention stays in the graph as the model's own ops, which forget earlier
    tokens.
    """
    kept = {node["arguments"]["layer"] for node in document["nodes"] if node["op"] == OP}
    layers = size_of(config_of(model), "layers")
    if len(kept) != layers:
        raise ExportError(
            f"{type(model).__name__}: {len(kept)} of {layers} layers hand their attention over as transformers' "
            "AttentionInterface lays down; an engine cannot keep the keys of others"
        )
