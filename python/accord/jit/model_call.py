"""Calls of a compiled or saved model: the arguments it accepts, and the nesting of arguments and results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree

from accord.graph.builder import DTYPES
from accord.graph.symbolic_sizes import read_symbol
from accord.package.call_structure import CallStructure, constant_entry, constant_from, spec_from_text

NUMBERS = {"int": int, "float": float}


@dataclass(frozen=True)
class Expected:
    """What a compiled model expects in one position: a tensor, a number that may change, or a value that became part
    of the program."""

    value: object = None
    dtype: torch.dtype | None = None
    sizes: tuple[int | None, ...] = ()  # None: any size
    number: type | None = None

    @staticmethod
    def read(entry: Mapping) -> Expected:
        if "constant" in entry:
            return Expected(value=constant_from(entry["constant"]))
        if "number" in entry:
            return Expected(number=NUMBERS[entry["number"]])
        return Expected(dtype=getattr(torch, entry["dtype"].removeprefix("torch.")), sizes=tuple(entry["shape"]))

    @staticmethod
    def of(example: object) -> Expected:
        """example: as traced by torch."""
        if isinstance(example, (torch.SymInt, torch.SymFloat)):
            return Expected(number=int if isinstance(example, torch.SymInt) else float)
        if not isinstance(example, torch.Tensor):
            return Expected(value=example)
        sizes = tuple(size if isinstance(size, int) else None for size in example.shape)
        return Expected(dtype=example.dtype, sizes=sizes)

    def entry(self) -> dict:
        """Returns the entry of a package. Raises ExportError for a constant that packages cannot store."""
        if self.dtype is not None:
            return {"dtype": DTYPES.get(self.dtype, str(self.dtype)), "shape": list(self.sizes)}
        return {"constant": constant_entry(self.value)} if self.number is None else {"number": self.number.__name__}

    def is_met_by(self, leaf: object) -> bool:
        if self.number is not None:
            return type(leaf) is self.number
        if self.dtype is None:
            both_nan = isinstance(leaf, float) and math.isnan(leaf) and self.value != self.value
            return type(leaf) is type(self.value) and (leaf == self.value or both_nan)
        return (
            isinstance(leaf, torch.Tensor)
            and leaf.dtype == self.dtype
            and leaf.dim() == len(self.sizes)
            and all(size in (None, now) for size, now in zip(self.sizes, leaf.shape, strict=True))
        )

    def __str__(self) -> str:
        if self.number is not None:
            return f"a number ({self.number.__name__})"
        if self.dtype is None:
            return repr(self.value)
        return f"{self.dtype} [{', '.join('any' if size is None else str(size) for size in self.sizes)}]"


class ModelCall:
    """Parsed calling convention of a saved model."""

    def __init__(self, structure: CallStructure) -> None:
        self.structure = structure
        self._expected = [Expected.read(entry) for entry in structure.inputs]
        self._in_spec, self._out_spec = map(spec_from_text, (structure.in_spec, structure.out_spec))

    def leaves_of(self, args: tuple, kwargs: dict) -> list:
        return leaves_of(args, kwargs, self._in_spec)

    def fits(self, args: tuple, kwargs: dict) -> bool:
        """Returns True if the arguments are nested like the model's."""
        return _pytree.tree_structure((args, kwargs)) == self._in_spec

    def values_of(self, leaves: Sequence) -> dict[str, object]:
        """Returns the leaves by the names of their values. Raises TypeError for values that the model was not
        exported for.
        """
        check_leaves(leaves, self._expected)
        return {entry["name"]: leaf for entry, leaf in zip(self.structure.inputs, leaves, strict=True)}

    def nested(self, results: Sequence) -> object:
        return _pytree.tree_unflatten(results, self._out_spec)


def inputs_of(entries: Sequence[str | list], values: Mapping[str, object]) -> list:
    """Returns the inputs of a part of a program: values, and sizes read from them."""
    return [values[one] if isinstance(one, str) else read_symbol(values, *one) for one in entries]


def leaves_of(args: tuple, kwargs: dict, in_spec: _pytree.TreeSpec) -> list:
    """Returns the leaves of a call's arguments. Raises TypeError unless they are nested like those at compile time."""
    leaves, given = _pytree.tree_flatten((args, kwargs))
    if given != in_spec:
        raise TypeError(f"accord: the model was compiled for arguments {_nested(in_spec)}, not {_nested(given)}")
    return leaves


def check_leaves(leaves: Sequence, inputs: Sequence[Expected]) -> None:
    """Raises TypeError for inputs that a model was not compiled for."""
    if len(leaves) != len(inputs):
        raise TypeError(f"accord: {len(leaves)} inputs were given, the model takes {len(inputs)}")
    for number, (leaf, expected) in enumerate(zip(leaves, inputs, strict=True)):
        if not expected.is_met_by(leaf):
            raise TypeError(f"accord: input {number} was {expected} when the model was compiled, and is {_told(leaf)}")


def _nested(spec: _pytree.TreeSpec) -> str:
    """Describes the nesting of arguments as a call of forward() with * for each leaf."""
    args, kwargs = _pytree.tree_unflatten(["*"] * spec.num_leaves, spec)
    told = [str(one) for one in args] + [f"{name}={value}" for name, value in kwargs.items()]
    return f"({', '.join(told)})".replace("'*'", "*")


def _told(leaf: object) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{leaf.dtype} {list(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, (int, float, str, type(None))) else f"a {type(leaf).__name__}"
