"""Tells users how much of a package is written."""

from __future__ import annotations

import sys
from collections.abc import Callable

Progress = Callable[[int, int], None]  # called with (bytes written, bytes in all)


def terminal_progress() -> Progress | None:
    """Returns a progress line for exports that take a while, or None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        return None
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total
        if percent != shown and total > 1 << 28:
            shown = percent
            end = "\n" if done == total else "\r"
            print(f"writing weights: {percent:3} % of {total / 1e9:.1f} GB", end=end, file=sys.stderr, flush=True)

    return show
