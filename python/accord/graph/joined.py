"""Tensors that a program joins and splits again at the same places, as fused layers do: the original parts are used."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

SPLIT, SLICE = "aten.split_with_sizes.default", "aten.slice.Tensor"


@dataclass(frozen=True)
class Joined:
    """A result of cat over values of the graph."""

    dim: int
    parts: list[str]
    sizes: list[int]

    @staticmethod
    def of_cat(arguments: dict, output: dict, values: dict[str, dict]) -> Joined | None:
        """Returns None if a size along the dimension is not constant."""
        parts = arguments["tensors"].get("values", [])
        dim = arguments.get("dim", 0) % len(output["shape"])
        sizes = [values[part]["shape"][dim] for part in parts]
        return Joined(dim, parts, sizes) if all(isinstance(size, int) for size in sizes) else None

    def taken_apart(self, node: torch.fx.Node, op: str) -> list[str] | None:
        """Returns the parts that `node`, a split or slice of the whole, yields; None if it cuts at other places."""
        dims = node.args[0].meta["val"].dim()
        if op == SPLIT:
            _, wanted, along = (*node.args, 0)[:3]
            return self.parts if along % dims == self.dim and list(wanted) == self.sizes else None
        _, along, start, end, step = (*node.args, *(None, 0, None, None, 1)[len(node.args) :])
        if (
            along % dims != self.dim
            or step != 1
            or not isinstance(start, int | None)
            or not isinstance(end, int | None)
        ):
            return None
        begin, behind, _ = slice(start, end).indices(sum(self.sizes))
        begins = list(itertools.accumulate(self.sizes, initial=0))
        return [self.parts[begins.index(begin)]] if (begin, behind) in itertools.pairwise(begins) else None
