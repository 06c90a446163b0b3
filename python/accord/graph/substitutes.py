"""Ops that engines lack, written with ops that they have. Tracers decompose calls by these functions; one that returns
NotImplemented leaves the call as it is."""

from __future__ import annotations

import torch

aten = torch.ops.aten


MOST_ENTRIES = 64  # of an index that is compared with every element


def _hits(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor | None:
    """Returns which entry of `index` along `dim` names which element of `self`: [..., elements, entries, ...]. None
    if there are many entries, or if the index leaves out elements of other dimensions."""
    others = [at for at in range(self.dim()) if at != dim]
    if index.dim() != self.dim() or not self.dim() or any(index.shape[at] != self.shape[at] for at in others):
        return None
    if not isinstance(index.shape[dim], int) or index.shape[dim] > MOST_ENTRIES:
        return None
    elements = torch.arange(self.shape[dim], device=self.device)
    return index.unsqueeze(dim) == elements.view(-1, 1, *[1] * (self.dim() - 1 - dim))


def _scatter_value(self: torch.Tensor, dim: int, index: torch.Tensor, value: float) -> torch.Tensor:
    dim %= max(self.dim(), 1)
    hits = _hits(self, dim, index)
    return NotImplemented if hits is None else torch.where(hits.any(dim + 1), torch.full_like(self, value), self)


def _scatter_source(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """If an element occurs twice in the index, torch leaves open which value remains; here it is their sum."""
    dim %= max(self.dim(), 1)
    hits = _hits(self, dim, index)
    if hits is None or src.shape != index.shape:
        return NotImplemented
    given = torch.where(hits, src.unsqueeze(dim), torch.zeros_like(src).unsqueeze(dim)).sum(dim + 1, dtype=src.dtype)
    return torch.where(hits.any(dim + 1), given, self)


def _slice_scatter(
    self: torch.Tensor, src: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    size, count = self.shape[dim], src.shape[dim]
    begin = 0 if start is None else start
    if not all(isinstance(number, int) for number in (size, begin)) or (step != 1 and not isinstance(count, int)):
        return NotImplemented
    begin = min(begin + size if begin < 0 else begin, size)
    pieces = [(begin, src)] if step == 1 else [(begin + at * step, src.narrow(dim, at, 1)) for at in range(count)]
    parts, end = [], 0
    for place, piece in pieces:
        parts += [self.narrow(dim, end, place - end), piece.to(self.dtype)]
        end = place + piece.shape[dim]
    parts.append(self.narrow(dim, end, size - end))
    return torch.cat([part for part in parts if part.shape[dim] != 0], dim)


def _select_scatter(self: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    return _slice_scatter(self, src.unsqueeze(dim), dim, index, None)


def _copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return src.to(self.dtype).expand(self.shape)


def _empty(size: list[int], **options) -> torch.Tensor:
    options.pop("memory_format", None)
    return torch.zeros(size, **options)  # any values will do: a model that reads them is wrong


def _repeat(self: torch.Tensor, repeats: list[int]) -> torch.Tensor:
    given = self.view([1] * (len(repeats) - self.dim()) + list(self.shape))
    for dim, times in enumerate(repeats):
        if not isinstance(times, int) or times != 1:
            sizes = [*given.shape[:dim], times, *given.shape[dim:]]
            given = given.unsqueeze(dim).expand(sizes).flatten(dim, dim + 1)
    return given


def _max_of_dim(self: torch.Tensor, dim: int, keepdim: bool = False, *, largest: bool = True):
    values, indices = torch.topk(self, 1, dim, largest)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def _min_of_dim(self: torch.Tensor, dim: int, keepdim: bool = False):
    return _max_of_dim(self, dim, keepdim, largest=False)


def _argmax(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return NotImplemented if dim is None else _max_of_dim(self, dim, keepdim)[1]


def _argmin(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return NotImplemented if dim is None else _min_of_dim(self, dim, keepdim)[1]


def _clamp(self: torch.Tensor, min: torch.Tensor | None = None, max: torch.Tensor | None = None) -> torch.Tensor:
    self = self if min is None else torch.maximum(self, min)
    return self if max is None else torch.minimum(self, max)


def _expm1(self: torch.Tensor) -> torch.Tensor:
    """e^x - 1 without the loss of digits around 0."""
    return torch.tanh(self / 2) * (torch.exp(self) + 1)


SUBSTITUTES = {
    aten.expm1.default: _expm1,
    aten.clamp.Tensor: _clamp,
    aten.scatter.value: _scatter_value,
    aten.scatter.src: _scatter_source,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.copy.default: _copy,
    aten.empty.memory_format: _empty,
    aten.repeat.default: _repeat,
    aten.max.default: lambda self: torch.amax(self, list(range(self.dim()))),
    aten.min.default: lambda self: torch.amin(self, list(range(self.dim()))),
    aten.max.dim: _max_of_dim,
    aten.min.dim: _min_of_dim,
    aten.argmax.default: _argmax,
    aten.argmin.default: _argmin,
}
