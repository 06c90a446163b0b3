"""Formats of weights that accord.export may be asked for."""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = (128, 64, 32)


@dataclass(frozen=True)
class Int8:
    """8-bit weights; `group` inputs of an output share a scale."""

    group: int = 64


@dataclass(frozen=True)
class Int4:
    """4-bit weights; `group` inputs of an output share a scale. With `minima` they also share a minimum (more
    accurate: 5 instead of 4.5 bits per weight in groups of 32)."""

    group: int = 32
    minima: bool = False


@dataclass(frozen=True)
class Fp8:
    """Weights as 8-bit floats (float8_e4m3fn) with one scale for each output: its largest magnitude / 448. For linear
    layers and experts; convolutions, and matrices of heads, keep their dtype."""


Format = Int8 | Int4 | Fp8

# Values of `weights` of accord.export for a layer: a format, or the name of one.
NAMED: dict[str, Format | None] = {"int8": Int8(), "int4": Int4(), "fp8": Fp8(), "same": None}
