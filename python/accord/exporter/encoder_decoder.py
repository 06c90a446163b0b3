"""Converts an encoder-decoder model of transformers (T5, BART, Marian, Whisper, ...) to the two graphs of an engine.

The encoder's graph runs once for each source: it computes the encoder, and the keys and values of the source for the
cross attention of each decoder layer, which it stores in the cache. The decoder's graph is that of a language model
whose rows also attend to the source of their sequence.

Both are traced as functions without a cache, so that they can be compared with the model: the encoder's program returns
the keys and values, and the decoder's takes the encoder's hidden states as an input. Only the finished graphs store and
read keys instead.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence

import torch

from accord.exporter.distance_biases import biases_by_distance
from accord.exporter.language_model import MOST_TOKENS, Attention, Reach, attention_by, longest_context
from accord.exporter.positions import GivenPositions, given_positions
from accord.graph.builder import CROSS_ATTENTION, ExportedGraph
from accord.graph.errors import ExportError
from accord.graph.modules import config_of, number_of

STORE = "accord.cache_source.default"
SOURCE = "source"  # the decoder's input in its traced program
WITHOUT_LIMIT = 4096  # tokens of a source, and of an answer, for models without a limit
CROSS_ATTENTIONS = ("encoder_attn", "EncDecAttention")  # names of modules


@torch.library.custom_op("accord::source_attention", mutates_args=())
def _source_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scale: float
) -> torch.Tensor:
    """Attention of all rows to all rows of a source: what the engine's op computes, which finds the keys and values of
    the layer in its cache."""
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=True)
    return output.transpose(1, 2).contiguous()


@_source_attention.register_fake
def _(query, key, value, layer, scale):
    batch, heads, rows, _ = query.shape
    return query.new_empty(batch, rows, heads, value.shape[-1])


def is_encoder_decoder(model: torch.nn.Module) -> bool:
    """Returns True for a model of transformers that generates text from what its encoder reads."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    from transformers.models.auto import modeling_auto

    known = {
        *modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values(),
        *modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.values(),
    }
    names = {name for one in known for name in ((one,) if isinstance(one, str) else one)}
    return any(kind.__name__ in names for kind in type(model).__mro__)


def reads_features(model: torch.nn.Module) -> bool:
    """Returns True if the encoder reads features of audio instead of token ids."""
    return getattr(model, "main_input_name", "input_ids") == "input_features"


def source_example(model: torch.nn.Module, length: int = 6) -> torch.Tensor:
    """Returns an input of the encoder for tracing: token ids [length], or features of the only size that it takes."""
    if not reads_features(model):
        return torch.tensor([1, 0, 2, 1, 0, 2] * (length // 6 + 1))[:length]
    encoder, config = model.get_encoder(), config_of(model)
    frames = config.max_source_positions * encoder.conv1.stride[0] * encoder.conv2.stride[0]
    features = torch.randn(config.num_mel_bins, frames, generator=torch.Generator().manual_seed(0))
    return features.to(next(model.parameters()).dtype)


def source_shapes(model: torch.nn.Module) -> tuple:
    return (
        (None,)
        if reads_features(model)
        else ({0: torch.export.Dim("source_tokens", min=1, max=longest_source(model))},)
    )


def longest_source(model: torch.nn.Module) -> int:
    """Returns the most tokens, or frames, that the encoder reads."""
    of_audio = number_of(config_of(model), "max_source_positions")
    return of_audio or longest_answer(model)


def longest_answer(model: torch.nn.Module) -> int:
    """Returns the most tokens of an answer."""
    longest = longest_context(model)
    return longest if longest < MOST_TOKENS else WITHOUT_LIMIT


def start_tokens(model: torch.nn.Module) -> list[int]:
    """Returns the tokens that an answer begins with."""
    generation, tokens = getattr(model, "generation_config", None), []
    for name in ("decoder_start_token_id", "forced_bos_token_id"):
        token = getattr(generation, name, None)
        token = getattr(model.config, name, None) if token is None else token
        tokens += [] if token is None else [token]
    if not tokens:
        warnings.warn(
            f"{type(model).__name__} has no decoder_start_token_id: each request has to begin its answer", stacklevel=3
        )
    return tokens


def encoder_states(model: torch.nn.Module, source: torch.Tensor) -> torch.Tensor:
    """Returns the encoder's hidden states [rows, hidden size] for an input without a batch dimension."""
    return model.get_encoder()(source[None]).last_hidden_state[0]


def run_decoder(model: torch.nn.Module, input_ids: torch.Tensor, states: torch.Tensor, **options):
    """Runs the model on the tokens of an answer [1, tokens], with the encoder's hidden states [rows, hidden size]."""
    from transformers.modeling_outputs import BaseModelOutput

    outputs = BaseModelOutput(last_hidden_state=states[None])
    return model(decoder_input_ids=input_ids, encoder_outputs=outputs, use_cache=False, **options)


class DecoderSteps(torch.nn.Module):
    """The decoder as an engine runs it: like language_model.Steps, with the encoder's hidden states [source rows,
    hidden size] of the one source that all rows attend to."""

    keeps_states = False

    def __init__(self, model: torch.nn.Module, given: GivenPositions, attend: _Attend):
        super().__init__()
        self.language_model = model
        self._given, self._attend = given, attend

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, source: torch.Tensor
    ) -> torch.Tensor:
        self._given.value = positions[None]
        self._attend.begin()
        with rows_of_head(self.language_model, rows):
            return run_decoder(self.language_model, input_ids[None], source).logits[0]


class _SourceSteps(torch.nn.Module):
    """The encoder as an engine runs it. Returns the keys and values of each decoder layer, [1, heads, rows, head size],
    one after the other."""

    def __init__(self, model: torch.nn.Module, attend: _Attend):
        super().__init__()
        self.language_model = model
        self._attend = attend

    def _stored(self, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._attend.begin()
        states = encoder_states(self.language_model, source)
        run_decoder(self.language_model, torch.zeros(1, 1, dtype=torch.int64), states)
        if not self._attend.stored:
            raise ExportError(
                f"{type(self.language_model).__name__} hands no cross attention over as transformers' "
                "AttentionInterface lays down; an engine cannot keep the keys of others"
            )
        return tuple(self._attend.stored)


class _TextSteps(_SourceSteps):
    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._stored(input_ids)


class _AudioSteps(_SourceSteps):
    def forward(self, input_features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._stored(input_features)


class _Attend:
    """Has the signature of transformers' attention functions, for all attentions of a model. `reaches`: how far back a
    token sees in each of the decoder's attentions to earlier tokens; without them, only the encoder's results count."""

    def __init__(self, model: torch.nn.Module, reaches: Sequence[Reach] | None):
        self.of_decoder = None if reaches is None else Attention(reaches, selects=False)
        self.in_encoder = set(model.get_encoder().modules())
        self.crossing = {module for name, module in model.named_modules() if is_crossing(name)}
        self.begin()

    def begin(self) -> None:
        self.stored: list[torch.Tensor] = []
        if self.of_decoder is not None:
            self.of_decoder.calls = 0

    def __call__(self, module, query, key, value, attention_mask, scaling=None, position_bias=None, **options):
        if module in self.in_encoder or module in self.crossing:
            _check_options(module, options)
        if module in self.in_encoder:
            return attend_to_all_rows(module, query, key, value, attention_mask, scaling, position_bias), None
        if module in self.crossing:
            return self._cross(query, key, value, scaling), None
        if self.of_decoder is None:
            return query.transpose(1, 2).contiguous(), None
        return self.of_decoder(
            module, query, key, value, attention_mask, scaling=scaling, biases=position_bias, **options
        )

    def _cross(self, query, key, value, scaling):
        layer = len(self.stored) // 2
        self.stored += [key, value]
        if self.of_decoder is None:
            return query.transpose(1, 2).contiguous()
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return torch.ops.accord.source_attention(query, key, value, layer, float(scale))


def _check_options(module: torch.nn.Module, options: dict) -> None:
    """Raises ExportError if an attention to a source is to do more than attend to all of its rows."""
    unknown = {name for name, value in options.items() if value is not None} - _WITHOUT_EFFECT
    if unknown:
        raise ExportError(
            f"{type(module).__name__}: attention of an encoder, or to its source, takes {', '.join(sorted(unknown))}, "
            "which no engine knows there"
        )


# Options that transformers passes on, but that do not change attention to all rows.
_WITHOUT_EFFECT = {
    "dropout",  # in eval mode
    "position_ids",
    "cache_position",
    "use_cache",
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
}


def is_crossing(name: str) -> bool:
    """Returns True for the path of a module that attends to the source."""
    return name.rpartition(".")[2] in CROSS_ATTENTIONS


def attend_to_all_rows(module, query, key, value, attention_mask, scaling=None, position_bias=None) -> torch.Tensor:
    """Attention of all rows of an encoder to all of them. The arguments are those of transformers' attention functions.
    Raises ExportError if the encoder makes a mask."""
    if attention_mask is not None:
        raise ExportError(f"{type(module).__name__}: the encoder makes a mask of its own, which no engine knows")
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=position_bias, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2).contiguous()


@contextlib.contextmanager
def rows_of_head(model: torch.nn.Module, rows: torch.Tensor) -> Iterator[None]:
    """Context in which the model computes only the logits of these rows."""
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, given: (given[0][:, rows],))
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def decoder_steps_of(model: torch.nn.Module, reaches: Sequence[Reach]) -> Iterator[DecoderSteps]:
    """Context in which the decoder runs as in an engine."""
    attend = _Attend(model, reaches)
    with (
        attention_by(model, attend, without_mask),
        biases_by_distance(model),
        given_positions(model.get_decoder(), always=True) as given,
    ):
        yield DecoderSteps(model, given, attend).eval()


@contextlib.contextmanager
def source_steps_of(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Context in which the encoder runs as in an engine."""
    attend = _Attend(model, None)
    kind = _AudioSteps if reads_features(model) else _TextSteps
    with attention_by(model, attend, without_mask), biases_by_distance(model):
        yield kind(model, attend).eval()


def without_mask(*_, **__) -> None:
    """Makes no mask, as transformers' mask functions are called."""


def example_inputs(model: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    """Returns inputs of DecoderSteps for tracing."""
    parameter = model.get_decoder().get_input_embeddings().weight
    states = torch.randn(6, parameter.shape[1], generator=torch.Generator().manual_seed(0)).to(parameter.dtype)
    return torch.tensor([1, 0, 2, 1, 0]), torch.arange(5), torch.tensor([0, 4]), states


def dynamic_shapes(model: torch.nn.Module, most: int = MOST_TOKENS) -> tuple[dict, ...]:
    tokens, rows = (torch.export.Dim(name, min=1, max=size) for name, size in (("tokens", most), ("rows", MOST_TOKENS)))
    source = torch.export.Dim("source_rows", min=1, max=longest_source(model))
    return {0: tokens}, {0: tokens}, {0: rows}, {0: source}


def reading_keys(graph: ExportedGraph) -> ExportedGraph:
    """Returns the decoder's graph without the input of the encoder's hidden states: its cross attention finds the keys
    and values in the cache."""
    document = graph.document
    unused = {entry["name"] for entry in document["inputs"] if entry["name"] == SOURCE}
    document["inputs"] = [entry for entry in document["inputs"] if entry["name"] not in unused]
    document["symbols"] = [entry for entry in document["symbols"] if entry["name"] != "source_rows"]
    return graph


def storing_keys(graph: ExportedGraph) -> ExportedGraph:
    """Returns the encoder's graph with ops that store its outputs, keys and values of each layer, in the cache."""
    document = graph.document
    outputs = document["outputs"]
    document["outputs"] = []
    for layer in range(len(outputs) // 2):
        key, value = outputs[2 * layer : 2 * layer + 2]
        stored = f"stored_{layer}"
        document["nodes"].append(
            {
                "op": STORE,
                "arguments": {"key": {"value": key}, "value": {"value": value}, "layer": layer},
                "outputs": [{"name": stored, "dtype": "int64", "shape": [1]}],
                "module": "",
                "source": "",
            }
        )
        document["outputs"].append(stored)
    return graph


def check_cross_attention(model: torch.nn.Module, document: dict) -> None:
    """Raises ExportError if a decoder layer computes its cross attention in code of its own."""
    config = config_of(model)
    layers = number_of(config, "num_decoder_layers") or number_of(config, "decoder_layers")
    kept = sum(node["op"] == CROSS_ATTENTION for node in document["nodes"])
    if layers is not None and kept < layers:
        raise ExportError(
            f"{type(model).__name__}: {kept} of {layers} decoder layers hand their cross attention over as "
            "transformers' AttentionInterface lays down; an engine cannot keep the keys of others"
        )
