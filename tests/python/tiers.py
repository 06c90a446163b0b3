"""Which of several equal tests the gate runs, and which only the full tests (docs/development.md)."""

from collections.abc import Iterable

import pytest


def mostly_slow(values: Iterable, *quick: object) -> list:
    """Parameters of a test: of `values` those in `quick` run in the gate, the others are marked slow."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, f"no parameter is {missing}"
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
