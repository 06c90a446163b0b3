"""Reads the keys of a GGUF file's architecture, and records which of them were read.

A table of settings maps each field of a transformers configuration to a Setting, a function of Values. The functions
whole(), number() and always() make the usual ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accord.graph.errors import ExportError

Setting = Callable[["Values"], Any]


@dataclass(frozen=True)
class Values:
    """The keys of a file, whose names are given without the architecture. `tensors`: name -> tensor, whose `shape`
    has the first dimension last."""

    facts: Mapping
    tensors: Mapping
    read: set[str] = field(default_factory=set)  # the names that were read

    @property
    def architecture(self) -> str:
        return self.facts["general.architecture"]

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
            raise ExportError(f'"{self.key(name)}" is {short(value)}, no whole number from {least} up')
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.value(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise ExportError(f'"{self.key(name)}" is {short(value)}, no number from 0 up')
        return float(value)

    def value(self, name: str, default: object = None) -> Any:
        """Returns a value; without a default, a missing key is a KeyError. A list contains one value per layer, which
        must all be equal."""
        value = self.values(name, default)
        if isinstance(value, list):
            if any(one != value[0] for one in value[1:]) or not value:
                raise ExportError(
                    f'"{self.key(name)}" differs by layer ({short(value)}); engines of this architecture have equal layers'
                )
            return value[0]
        return value

    def values(self, name: str, default: object = None) -> Any:
        """Returns a value, or a list of one for each layer."""
        self.read.add(name)
        return self.facts[self.key(name)] if default is None else self.facts.get(self.key(name), default)

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"


def whole(name: str, default: int | Setting | None = None, least: int = 1) -> Setting:
    return lambda values: values.whole(name, default(values) if callable(default) else default, least)


def number(name: str, default: float | None = None) -> Setting:
    return lambda values: values.number(name, default)


def always(value: object) -> Setting:
    return lambda _: value


def has_tensor(name: str) -> Setting:
    return lambda values: name in values.tensors


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
