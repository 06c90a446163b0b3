"""Whole numbers as programs give them: those of Python and NumPy, tensors of one element, and whatever else has
__index__."""

from __future__ import annotations

import operator
from typing import Any


def integer(value: Any, what: str, error: type[Exception] = TypeError) -> int:
    """`value` as an int. Raises `error`, which calls it `what` (as in "accord: the tag"), if it is not a whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise error(f"{what} is {value!r}, no whole number") from None


def integers(values: Any, what: str, error: type[Exception] = TypeError) -> list[int]:
    """The whole numbers in a list, a tuple, an array or tensor of one dimension, or any other iterable."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise error(f"{what} are {values!r}, no list of whole numbers") from None
