"""Reads the tensors of a GGUF file, one by one, and makes the weights of a model of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import gguf
import torch

from accord.gguf.weights import Table, Weight, only, ways_to_make
from accord.graph.errors import ExportError


@dataclass(frozen=True)
class Tensors:
    """The tensors of a file by name, whose `shape` has the first dimension last."""

    all: Mapping[str, gguf.ReaderTensor]
    known: set[str] = field(default_factory=set)  # those that were taken, or are another way to make a weight

    def way_to_make(self, table: Table, name: str) -> Weight:
        ways = ways_to_make(table, name)
        self.known.update(tensor for way in ways for tensor in way.tensors)
        return next((way for way in ways if all(tensor in self.all for tensor in way.tensors)), ways[0])

    def take(self, name: str) -> torch.Tensor:
        self.known.add(name)
        kind = self.all[name].tensor_type
        try:
            return torch.from_numpy(gguf.dequantize(self.all[name].data, kind).copy())
        except NotImplementedError as error:
            raise ExportError(
                f'its tensor "{name}" is of the type {kind.name}, which the package gguf cannot read'
            ) from error

    def make(self, way: Weight, shape: list[int]) -> torch.Tensor:
        sizes = [[int(size) for size in reversed(self.all[name].shape)] for name in way.tensors]
        names = " and ".join(f'"{name}"' for name in way.tensors)
        wrong = f"its tensor {names} is {' and '.join(map(str, sizes))}, but its keys make it {shape}"
        if way.join is only and sizes != [shape]:
            raise ExportError(wrong)
        try:
            made = way.join([self.take(name) for name in way.tensors], shape)
        except (RuntimeError, IndexError) as error:
            raise ExportError(wrong) from error
        if list(made.shape) != shape:
            raise ExportError(wrong)
        return made

    def unknown(self) -> list[str]:
        return sorted(self.all.keys() - self.known)
