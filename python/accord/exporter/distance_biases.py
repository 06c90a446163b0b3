"""Biases of attention that depend on the distance alone (T5's), as tables.

A model computes them from the number of rows, and chooses rows of a learned weight by a logarithm of the distance. An
engine counts no rows, and its logarithm may round otherwise at the edge of a bucket. So the model itself computes the
buckets once, and the traced program reads the weight by them.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

import torch

from accord.graph.errors import ExportError
from accord.graph.modules import config_of, number_of


class _Biases:
    """Replaces compute_bias() of an attention whose bias depends on the distance alone (T5's): reads it from a table
    [distances, heads], in which `buckets` chooses rows of the learned weight."""

    def __init__(self, module: torch.nn.Module, most: int, *, of_decoder: bool):
        self.weight, self.most, self.of_decoder = module.relative_attention_bias, most, of_decoder
        self.buckets = _buckets(module, most, of_decoder=of_decoder)

    def __call__(self, query_length, key_length, *_, **__) -> torch.Tensor:
        table = self.weight(self.buckets)
        if self.of_decoder:
            return table.permute(1, 0)  # [heads, distances], for accord.attention
        at = torch.arange(key_length)
        distances = (at[None, :] - at[:, None]).clamp(-self.most, self.most) + self.most
        return torch.nn.functional.embedding(distances, table).permute(2, 0, 1)[None]


def _has_biases(module: torch.nn.Module) -> bool:
    """Returns True for an attention whose bias depends on the distance alone."""
    if not isinstance(getattr(module, "relative_attention_bias", None), torch.nn.Embedding):
        return False
    return {"query_length", "key_length"} <= inspect.signature(module.compute_bias).parameters.keys()


def _buckets(module: torch.nn.Module, most: int, *, of_decoder: bool) -> torch.Tensor:
    """Returns the rows of the weight for keys from `most` tokens before a query to `most` after it; for a decoder, from
    the query's own place to `most` before it. Farther keys have the rows of the farthest. The module says them itself,
    with its weight replaced by the numbers of the rows."""
    learned = module.relative_attention_bias
    numbers = torch.nn.Embedding(learned.num_embeddings, learned.embedding_dim)
    with torch.no_grad():
        numbers.weight.copy_(torch.arange(learned.num_embeddings)[:, None].expand_as(numbers.weight))
    length = 2 * most + 1
    try:
        module.relative_attention_bias = numbers
        rows = module.compute_bias(length, length)[0, 0].round().long()
    finally:
        module.relative_attention_bias = learned
    before, after = rows[-1].flip(0), rows[0]  # by distance from 0 on
    for side in (before,) if of_decoder else (before, after):
        if not bool((side[most:] == side[most]).all()):
            raise ExportError(
                f"{type(module).__name__}: its bias still changes beyond a distance of {most} tokens, which engines "
                "do not know"
            )
    return before[: most + 1] if of_decoder else torch.cat([before[1 : most + 1].flip(0), after[: most + 1]])


@contextlib.contextmanager
def biases_by_distance(model: torch.nn.Module) -> Iterator[None]:
    """Context in which attentions with a bias that depends on the distance read it from a table."""
    in_encoder, changed = set(model.get_encoder().modules()), []
    most = number_of(config_of(model), "relative_attention_max_distance")
    try:
        for module in model.modules():
            if most is not None and _has_biases(module):
                module.compute_bias = _Biases(module, most, of_decoder=module not in in_encoder)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.compute_bias
