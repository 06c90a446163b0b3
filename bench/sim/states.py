"""The states of a host whose virtual cores move: at one time they are two threads of one core, at another they are
apart, and signals take four times as long. Each state has a calibration of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")

SAME_STATE = 1.3  # times the shorter of two messages
MOST_ATTEMPTS = 12


def are_alike(one: float, other: float) -> bool:
    return max(one, other) <= SAME_STATE * min(one, other)


@dataclass
class States:
    message: Callable[[], float]  # returns the seconds that a short message takes now
    calibrate: Callable[[Path], None]  # writes the file of a machine
    folder: Path
    calibrated: list[tuple[float, Path]] = field(default_factory=list)  # seconds of a message, and the file
    repeated: int = 0  # measurements that were made again
    unsteady: int = 0  # those for which it did not help

    def measure(self, work: Callable[[], Value]) -> tuple[Value, Path]:
        """Returns the value of `work` and the machine's file for the state in which it ran. Repeats it if messages
        before and after differ, or if the host leaves a new state before it is calibrated."""
        for attempt in range(MOST_ATTEMPTS):
            before = self.message()
            value = work()
            after = self.message()
            machine = self._machine_for(before) if are_alike(before, after) else None
            if machine is not None:
                self.repeated += attempt > 0
                return value, machine
        self.unsteady += 1
        if not self.calibrated:
            raise RuntimeError("messages take a different time whenever one is sent: this host cannot be calibrated")
        return value, self._nearest(after)[1]

    def _nearest(self, seconds: float) -> tuple[float, Path]:
        return min(self.calibrated, key=lambda known: max(known[0], seconds) / min(known[0], seconds))

    def _machine_for(self, seconds: float) -> Path | None:
        if self.calibrated and are_alike(self._nearest(seconds)[0], seconds):
            return self._nearest(seconds)[1]
        machine = self.folder / f"state{len(self.calibrated)}.toml"
        before = self.message()
        self.calibrate(machine)
        if not are_alike(before, self.message()):
            return None
        self.calibrated.append((before, machine))
        return machine if are_alike(before, seconds) else None
