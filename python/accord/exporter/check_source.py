"""Compares the exported encoder with its model before a package is written.

The reference is the model itself with its own attention: the keys and values that transformers caches for cross
attention. A text is compared at two lengths, one of them beyond the distances that a few tokens have.
"""

from __future__ import annotations

import torch

from accord.exporter.check import LOGITS_TOLERANCE
from accord.exporter.encoder_decoder import longest_source, reads_features, source_example
from accord.exporter.vision_language import as_model_takes, most_images, pixels_example
from accord.graph.errors import ExportError
from accord.graph.modules import config_of
from accord.graph.traced import TracedGraph

LENGTHS = (7, 300)


@torch.no_grad()
def check_source(model: torch.nn.Module, traced: TracedGraph) -> None:
    """Raises ExportError if the program gives other keys and values than the model. `model`: in the state that it had
    before tracing."""
    for source in _sources(model):
        given, right = _run(traced, source), _cached(model, source)
        for number, (one, other) in enumerate(zip(given, right, strict=True)):
            what = f"{'values' if number % 2 else 'keys'} of decoder layer {number // 2}"
            _compare(type(model).__name__, one, other, what, source)


@torch.no_grad()
def check_images(model: torch.nn.Module, traced: TracedGraph) -> None:
    """Raises ExportError if the program makes other rows of images than the model, likewise."""
    for images in {min(images, most_images(model)) for images in (1, 3)}:
        pixels = pixels_example(model, images)
        made = model.get_image_features(pixel_values=as_model_takes(model, pixels)).pooler_output
        right = torch.cat([one.reshape(-1, one.shape[-1]) for one in made])
        (given,) = _run(traced, pixels)
        _compare(type(model).__name__, given, right, "rows", pixels)


def _compare(kind: str, given: torch.Tensor, right: torch.Tensor, what: str, source: torch.Tensor) -> None:
    tolerance = LOGITS_TOLERANCE.get(right.dtype, 1e-3)
    error = float((given.float() - right.float()).norm() / right.float().norm().clamp(min=1e-20))
    if not error <= tolerance:
        raise ExportError(
            f"{kind}: the exported encoder gives other {what} than the model, by {error:.2g} of their norm, for a "
            f"source of shape {list(source.shape)}. Mend the model, or leave this check out by check=False"
        )


def _sources(model: torch.nn.Module) -> list[torch.Tensor]:
    if reads_features(model):
        return [source_example(model)]
    longest, random = longest_source(model), torch.Generator().manual_seed(1)
    config = config_of(model)
    padding = getattr(config, "pad_token_id", None)
    ordinary = torch.tensor([id for id in range(min(config.vocab_size, 1 << 16)) if id != padding] or [0])
    return [ordinary[torch.randint(len(ordinary), (min(length, longest),), generator=random)] for length in LENGTHS]


def _cached(model: torch.nn.Module, source: torch.Tensor) -> list[torch.Tensor]:
    """Returns the keys and values of each layer, as the model caches them."""
    name = "input_features" if reads_features(model) else "input_ids"
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    made = model(**{name: source[None]}, decoder_input_ids=tokens, use_cache=True)
    layers = made.past_key_values.cross_attention_cache.layers
    return [tensor for layer in layers for tensor in (layer.keys, layer.values)]


def _run(traced: TracedGraph, source: torch.Tensor) -> list[torch.Tensor]:
    """Runs the program on one source. Values are dropped after their last use."""
    values: dict[torch.fx.Node, object] = {weight.node: weight.tensor for weight in traced.weights}
    values[traced.inputs[0]] = source
    last = {used: node for node in traced.nodes for used in node.all_input_nodes}
    for node in traced.nodes:
        if node.op != "call_function":
            continue
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = node.target(*args, **kwargs)
        for used in node.all_input_nodes:
            if last[used] is node and used not in traced.outputs:
                values.pop(used, None)
    return [values[node] for node in traced.outputs]
