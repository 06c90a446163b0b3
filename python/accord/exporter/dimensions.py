"""The names of dynamic dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch

from accord.exporter.smallest import user_inputs
from accord.graph.symbols import derived_from


def shapes_by_position(model: torch.nn.Module, example_inputs: tuple, dynamic_shapes) -> list:
    """Returns the dynamic shapes of each leaf of the inputs in order. A mapping gives them by the names of
    forward()'s parameters."""
    arguments = inspect.signature(model.forward).bind(*example_inputs).arguments
    if isinstance(dynamic_shapes, Mapping):
        shapes = [dynamic_shapes.get(name) for name in arguments]
    else:
        shapes = list(dynamic_shapes or [])
        shapes += [None] * (len(arguments) - len(shapes))
    return [
        leaf for value, shape in zip(arguments.values(), shapes, strict=False) for leaf in _leaf_shapes(value, shape)
    ]


def _leaf_shapes(value: object, shape: object) -> list:
    if isinstance(value, Mapping):
        return [leaf for key, one in value.items() for leaf in _leaf_shapes(one, (shape or {}).get(key))]
    if isinstance(value, (tuple, list)):
        return [
            leaf
            for one, of_it in zip(value, shape or [None] * len(value), strict=False)
            for leaf in _leaf_shapes(one, of_it)
        ]
    return [shape]


def dimension_names(program: torch.export.ExportedProgram, shapes: list) -> dict[str, str]:
    """Returns torch's symbol -> the user's Dim name, or INPUT_dimN for an unnamed dimension. A symbol that occurs
    only in derived sizes (2 * h) gets the name of the dimension that they are derived from."""
    names: dict[str, str] = {}
    derived_names: dict[str, str] = {}
    for index, node in enumerate(user_inputs(program)):
        given = shapes[index] if index < len(shapes) else None
        sizes = node.meta["val"].shape if isinstance(node.meta["val"], torch.Tensor) else ()
        for dim, size in enumerate(sizes):
            derived = derived_from(size)
            if derived is None:
                continue
            symbol, *line = derived
            wanted = None
            if isinstance(given, Mapping):
                wanted = given.get(dim, given.get(dim - len(sizes)))
            elif given:
                wanted = given[dim]
            is_plain = line == [1, 0]
            name = getattr(wanted if is_plain else getattr(wanted, "root", None), "__name__", "")
            name = name if name.isidentifier() else f"{node.name}_dim{dim}"
            (names if is_plain else derived_names).setdefault(symbol, name)
    return derived_names | names
