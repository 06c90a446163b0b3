"""How far predictions are from measurements."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

CLEARLY = 1.1  # times that differ by less say nothing about which algorithm is faster


@dataclass(frozen=True)
class Point:
    """One algorithm at one size. Times are seconds of a call."""

    setting: str  # "2 ranks", "3 namespaces"
    collective: str
    algorithm: str
    size: int
    measured: float
    predicted: float

    def error(self) -> float:
        """Returns the part of the measured time by which the prediction is off."""
        return abs(self.predicted / self.measured - 1)


def median_error(points: list[Point]) -> float:
    return statistics.median(point.error() for point in points)


def pairs_in_order(points: list[Point]) -> tuple[int, int]:
    """Returns of how many pairs of algorithms, which serve the same call and differ clearly when measured, the faster
    one is predicted to be faster, and how many such pairs there are."""
    right = total = 0
    for one, other in itertools.combinations(points, 2):
        if (one.setting, one.collective, one.size) != (other.setting, other.collective, other.size):
            continue
        fast, slow = sorted((one, other), key=lambda point: point.measured)
        if slow.measured <= CLEARLY * fast.measured:
            continue
        total += 1
        right += fast.predicted < slow.predicted
    return right, total
