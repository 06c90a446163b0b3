"""Converts integers that programs pass: Python's, NumPy's, one-element tensors, and any object with __index__."""

from __future__ import annotations

import operator
from typing import Any


def integer(value: Any, what: str, error: type[Exception] = TypeError) -> int:
    """Returns `value` as an int. If it is not an integer, raises `error` with a message that calls it `what` (for
    example "accord: the tag").
    """
    try:
        return operator.index(value)
    except TypeError:
        raise error(f"{what} is {value!r}, expected an integer") from None


def integers(values: Any, what: str, error: type[Exception] = TypeError) -> list[int]:
    """Returns the integers in a list, a tuple, a one-dimensional array or tensor, or any other iterable."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise error(f"{what} are {values!r}, expected a list of integers") from None
