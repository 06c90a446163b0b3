"""Selects which of several equivalent tests run in the gate, and which run only in the full tests
(docs/development.md)."""

from collections.abc import Iterable

import pytest


def mostly_slow(values: Iterable, *quick: object) -> list:
    """Returns the parameters of a test: those of `values` that are in `quick` run in the gate, the others are marked
    slow."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, f"no parameter is {missing}"
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
