"""Converts a causal language model of transformers to the graph of an engine that continues many sequences at once.

The rows of a run are tokens of any sequences, one after the other; only attention knows which row belongs to which
sequence. transformers passes each attention on as a single call (its AttentionInterface), which becomes the op
accord.attention: the engine keeps its keys and values, and derives masks from the positions of the tokens.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from accord import chat_format
from accord.exporter.positions import GivenPositions, first_position, given_positions
from accord.exporter.recurrence import States, kept_states
from accord.graph.errors import ExportError
from accord.graph.joined import STATE_OPS
from accord.graph.latent_heads import LatentHeads, compressed_keys
from accord.graph.modules import config_of, number_of, size_of
from accord.package.writer import LanguageModelFacts

OP = "accord.attention.default"
NAME = "accord"  # of this attention in transformers' registries
MOST_TOKENS = 1 << 16  # in one run
SELECTED = "index_topk"  # in configurations of models whose layers select the tokens to attend to (DeepSeek V3.2)
KEEPS_STATE = "keeps a state from token to token beside keys and values, in code of its own that engines do not know"
ANY_LENGTH = "a language model is exported for any number of tokens, one as well"
_CHANGING = threading.RLock()  # models and transformers' registries
PREFIX = "language_model."  # of module paths below Steps


@torch.library.custom_op("accord::attention", mutates_args=())
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor | None,
    layer: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    value_dim: int = 0,
    chunk: int = 0,
    biases: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one sequence that begins with these rows: equals the engine's op for a sequence without context.
    Without `value`, values are the first `value_dim` elements of keys.
    sinks, slopes: [heads], the scores that take part in the softmax without a value, and what is added to a score for
    each token that the key is ahead of the query. biases: [heads, distances], what is added to a score by how far the
    key is before the query; the last one also counts for all farther keys."""
    rows = query.shape[-2]
    value = key[..., :value_dim] if value is None else value
    scores = scale * (
        query.float() @ key.float().repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(-1, -2)
    )
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(rows)
    if slopes is not None:
        scores = scores + slopes.float()[:, None, None] * (at[None, :] - at[:, None])
    if biases is not None:
        scores = scores + biases.float()[:, (at[:, None] - at[None, :]).clamp(0, biases.shape[1] - 1)]
    scores = scores.masked_fill(~Reach(window, chunk).sees(at[:, None], at[None, :]), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)[..., :rows]
    output = weights @ value.float().repeat_interleave(query.shape[1] // value.shape[1], 1)
    return output.to(query.dtype).transpose(1, 2).contiguous()


@_attention.register_fake
def _(
    query, key, value, layer, scale, window=0, softcap=0.0, sinks=None, slopes=None, value_dim=0, chunk=0, biases=None
):
    batch, heads, rows, _ = query.shape
    return query.new_empty(batch, rows, heads, value_dim if value is None else value.shape[-1])


class Reach(NamedTuple):
    """How far back a token sees. 0: to the first token."""

    window: int = 0  # the last tokens, including itself
    chunk: int = 0  # the tokens since the last multiple of this number

    def sees(self, at: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Returns which tokens `at` see the tokens `before`."""
        seen = before <= at
        if self.window:
            seen = seen & (at - before < self.window)
        if self.chunk:
            seen = seen & (at // self.chunk == before // self.chunk)
        return seen


class Attention:
    """Has the signature of transformers' attention functions. Attentions are numbered in the order of their calls.
    `reaches`: how far back a token sees in each. `selects`: the layers pass on which tokens they have selected, which
    are all."""

    def __init__(self, reaches: Sequence[Reach], *, selects: bool):
        self.reaches, self.calls = reaches, 0
        self.known = _KNOWN_OPTIONS | ({"indices"} if selects else set())

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        unknown = {name for name, value in options.items() if value is not None} - self.known
        if unknown:
            raise ExportError(
                f"{type(module).__name__}: its attention takes {', '.join(sorted(unknown))}, which no engine knows"
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        layer, softcap = self.calls, options.get("softcap") or 0.0
        self.calls += 1
        window, chunk = self.reaches[layer]
        how = layer, float(scale), window, float(softcap), options.get("s_aux")
        latent = getattr(module, "kv_b_proj", None)
        if isinstance(latent, LatentHeads):
            query = latent.absorbed(query)
            output = torch.ops.accord.attention(query, key, None, *how, value_dim=latent.rank, chunk=chunk)
            return latent.expanded(output), None
        return torch.ops.accord.attention(query, key, value, *how, chunk=chunk, biases=options.get("biases")), None


# Other options that transformers passes on: queries and keys already include positions, and an engine has its own
# cache.
_KNOWN_OPTIONS = {
    "sliding_window",
    "softcap",
    "s_aux",  # sinks
    "biases",  # of distances, from encoder_decoder
    "position_ids",
    "cache_position",
    "use_cache",
    "is_causal",
    "output_attentions",
    "output_router_logits",
    "logits_to_keep",
}


class Steps(torch.nn.Module):
    """A language model as an engine runs it. forward() takes token ids [tokens], their positions [tokens], and the
    rows [rows] whose logits are wanted, and returns these [rows, vocabulary]. `given`: from given_positions(model);
    `states`: from kept_states(model)."""

    def __init__(self, model: torch.nn.Module, given: GivenPositions, attend: Attention, states: States):
        super().__init__()
        self.language_model = model
        self.first_position = first_position(model)
        self._given, self._attend, self._states = given, attend, states

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        positions = positions[None] + self.first_position if self.first_position else positions[None]
        self._given.value, self._attend.calls, self._states.number = positions, 0, 0
        return self.language_model(
            input_ids=input_ids[None], position_ids=positions, logits_to_keep=rows, use_cache=False
        ).logits[0]

    @property
    def keeps_states(self) -> bool:
        """Whether layers kept a state in the last run."""
        return self._states.number > 0


def is_language_model(model: torch.nn.Module) -> bool:
    """Returns True for a causal language model of transformers, or a user's class derived from one."""
    if not hasattr(model, "config"):
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    kinds = [kind.__name__ for kind in type(model).__mro__]
    return any(kind in known or kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds)


def example_inputs() -> tuple[torch.Tensor, ...]:
    """Returns inputs of Steps for tracing."""
    return torch.tensor([1, 0, 2, 1, 0]), torch.arange(5), torch.tensor([0, 4])


def dynamic_shapes(most: int = MOST_TOKENS) -> tuple[dict, ...]:
    """most: the largest number of tokens in a run."""
    tokens, rows = (torch.export.Dim(name, min=1, max=size) for name, size in (("tokens", most), ("rows", MOST_TOKENS)))
    return {0: tokens}, {0: tokens}, {0: rows}


@contextlib.contextmanager
def steps_of(model: torch.nn.Module, reaches: Sequence[Reach]) -> Iterator[Steps]:
    """Context in which the model runs as in an engine; yields its Steps. `reaches`: those of the attentions that the
    model hands over (masks.attention_reaches). If there are none, it computes attention in code of its own."""
    selects = number_of(config_of(model), SELECTED) is not None
    attend = Attention(reaches, selects=selects)
    make_mask = _all_ones if selects else lambda *_, **__: None
    attention = attention_by(model, attend, make_mask) if reaches else _implementation(model, "eager")
    with (
        attention,
        compressed_keys(model) if reaches else contextlib.nullcontext(),
        _without_selection(model),
        given_positions(model) as given,
        kept_states(model) as states,
    ):
        yield Steps(model, given, attend, states).eval()


def _all_ones(*_, batch_size, q_length, kv_length, **__) -> torch.Tensor:
    """Returns a mask for layers that read it before they select tokens."""
    return torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool)


@contextlib.contextmanager
def _without_selection(model: torch.nn.Module) -> Iterator[None]:
    """Context in which layers select no tokens: contexts are no longer than a selection (longest_context)."""
    selecting = [module for module in model.modules() if number_of(module, SELECTED) is not None]
    try:
        for module in selecting:
            module.forward = lambda hidden, *_, **__: torch.zeros(*hidden.shape[:2], 1, dtype=torch.int32)
        yield
    finally:
        for module in selecting:
            vars(module).pop("forward", None)


@contextlib.contextmanager
def attention_by(model: torch.nn.Module, attend: Callable, make_mask: Callable) -> Iterator[None]:
    """Context in which the model's attention is `attend` and its masks come from `make_mask`. Both are called as
    transformers calls its own. Other threads wait: the model and transformers' registries are changed."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    with _CHANGING:
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, make_mask)
        with _implementation(model, NAME):
            yield


@contextlib.contextmanager
def _implementation(model: torch.nn.Module, name: str) -> Iterator[None]:
    """Context in which the model's attention is transformers' implementation of this name."""
    with _CHANGING:
        before = model.config._attn_implementation
        model.set_attn_implementation(name)
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
        path = tokenizer_file(tokenizer)
        texts["tokenizer.json"] = path.read_bytes()
        if (chat := chat_format.of_folder(path.parent)) is not None:
            texts["chat_format.json"] = chat.encode()
    return LanguageModelFacts(longest_context(model), stop_tokens, texts)


def tokenizer_file(tokenizer: str | os.PathLike) -> Path:
    """Returns the path of a tokenizer.json, which is given itself or by its folder."""
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ExportError(f"{path}: there is no such tokenizer")
    return path


def longest_context(model: torch.nn.Module) -> int:
    """Returns the most tokens of a sequence. Models without a limit, which know positions by distance only, take
    MOST_TOKENS. Models that select the tokens to attend to take as many as they select."""
    config = config_of(model)
    names = ("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len", "seq_length")
    sizes = (number_of(config, name) for name in names)
    longest = next((size - first_position(model) for size in sizes if size), MOST_TOKENS)
    selected = number_of(config, SELECTED) or longest
    if selected < longest:
        warnings.warn(
            f"{type(model).__name__} selects the tokens that it attends to where there are more than {selected}; the engine "
            f"takes contexts of {selected} tokens",
            stacklevel=3,
        )
    return min(longest, selected)


def check_attention(model: torch.nn.Module, document: dict) -> None:
    """Raises ExportError if a layer's attention stays in the graph as the model's own ops, which forget earlier
    tokens. Not every layer of a model with states has attention.
    """
    if any(node["op"] in STATE_OPS for node in document["nodes"]):
        return
    kept = sum(node["op"] == OP for node in document["nodes"])
    layers = size_of(config_of(model), "layers")
    if layers is not None and kept < layers:
        raise ExportError(
            f"{type(model).__name__}: {kept} of {layers} layers hand their attention over as transformers' "
            "AttentionInterface lays down; an engine cannot keep the keys of others"
        )
