"""Draws the distributions of the times of all measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accord.serve.bench.load import Measurement
from accord.serve.bench.report import TIMES, summary

__all__ = ["draw"]

_TITLES = {
    "time_to_first_token": "time to the first token",
    "time_per_token": "time per token",
    "time_of_request": "time of a request",
}


def draw(measurements: Sequence[Measurement], title: str, path: Path) -> None:
    """Writes an image in the format of the path's suffix. Raises ModuleNotFoundError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    figure.suptitle(title)
    for axes, (name, heading) in zip(figure.subplots(1, len(_TITLES)), _TITLES.items(), strict=True):
        for measurement in measurements:
            good = [outcome for outcome in measurement.outcomes if not outcome.error]
            values = sorted(value * 1e3 for outcome in good for value in TIMES[name](outcome))
            if not values:
                continue
            load = f"{measurement.clients} clients" if measurement.rate is None else f"{measurement.rate:g} requests/s"
            rate = summary(measurement)["answer_tokens_per_second"]
            parts = [100 * (index + 1) / len(values) for index in range(len(values))]
            axes.step(values, parts, where="post", label=f"{load}: {rate:.0f} tokens/s")
            axes.legend(loc="lower right")
        axes.set(title=heading, xlabel="milliseconds", ylabel="percent of the requests", ylim=(0, 101))
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path)
