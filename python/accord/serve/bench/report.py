"""Statistics of measurements, as a table and as JSON."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence

from accord.serve.bench.client import Outcome
from accord.serve.bench.load import Measurement

__all__ = ["TIMES", "percentile", "summary", "table"]

_PERCENTS = (50, 90, 95, 99)


def _first(outcome: Outcome) -> list[float]:
    return [outcome.arrivals[0] - outcome.begin] if outcome.arrivals else []


def _per_token(outcome: Outcome) -> list[float]:
    """The mean time from a token to the next. The first event may have several tokens, so long answers are exact."""
    if outcome.answer_tokens < 2 or len(outcome.arrivals) < 2:
        return []
    return [(outcome.arrivals[-1] - outcome.arrivals[0]) / (outcome.answer_tokens - 1)]


def _gaps(outcome: Outcome) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(outcome.arrivals)]


def _whole(outcome: Outcome) -> list[float]:
    return [outcome.end - outcome.begin]


# The times of a request by their names in JSON.
TIMES: dict[str, Callable[[Outcome], list[float]]] = {
    "time_to_first_token": _first,
    "time_per_token": _per_token,
    "time_between_events": _gaps,
    "time_of_request": _whole,
}


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile, interpolated linearly between the nearest values."""
    values = sorted(values)
    place = (len(values) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def _distribution(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    named = {f"p{percent}": percentile(values, percent) for percent in _PERCENTS}
    return {"mean": sum(values) / len(values), "min": min(values), **named, "max": max(values)}


def summary(measurement: Measurement) -> dict:
    """Returns a measurement for JSON. Times are seconds. Rates count from the first request to the last answer."""
    good = [outcome for outcome in measurement.outcomes if not outcome.error]
    errors = collections.Counter(outcome.error for outcome in measurement.outcomes if outcome.error)
    begin = min((outcome.begin for outcome in measurement.outcomes), default=0.0)
    seconds = max((outcome.end for outcome in measurement.outcomes), default=0.0) - begin
    answer_tokens = sum(outcome.answer_tokens for outcome in good)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in good)
    return {
        "clients": measurement.clients,
        "rate": measurement.rate,
        "requests": len(measurement.outcomes),
        "answered": len(good),
        "errors": dict(errors.most_common()),
        "seconds": seconds,
        "prompt_tokens": prompt_tokens,
        "answer_tokens": answer_tokens,
        "answered_per_second": len(good) / seconds if seconds else 0.0,
        "answer_tokens_per_second": answer_tokens / seconds if seconds else 0.0,
        "tokens_per_second": (answer_tokens + prompt_tokens) / seconds if seconds else 0.0,
        **{name: _distribution([value for one in good for value in times(one)]) for name, times in TIMES.items()},
    }


_COLUMNS = ("p50", "p90", "p99")


def table(summaries: Sequence[dict]) -> str:
    """Returns the results as text. Times are milliseconds."""
    head = f"{'load':>12}{'requests':>10}{'errors':>8}{'prompt':>8}{'answer':>8}{'answer tok/s':>14}{'all tok/s':>11}"
    units = f"{'':>12}{'':>10}{'':>8}{'tokens':>8}{'tokens':>8}{'':>14}{'':>11}"
    for title in ("first token, ms", "per token, ms"):
        head += f"{title:^30}".rstrip().rjust(27) if title else ""
        units += "".join(f"{name:>9}" for name in _COLUMNS)
    lines = [head, units]
    for one in summaries:
        load = f"{one['clients']} clients" if one["rate"] is None else f"{one['rate']:g}/s"
        mean_prompt, mean_answer = (one[name] / max(1, one["answered"]) for name in ("prompt_tokens", "answer_tokens"))
        line = f"{load:>12}{one['requests']:>10}{sum(one['errors'].values()):>8}{mean_prompt:>8.0f}{mean_answer:>8.0f}"
        line += f"{one['answer_tokens_per_second']:>14.1f}{one['tokens_per_second']:>11.1f}"
        for name in ("time_to_first_token", "time_per_token"):
            times = one[name]
            line += "".join(f"{'-' if times is None else format(times[column] * 1e3, '.1f'):>9}" for column in _COLUMNS)
        lines.append(line)
    for one in summaries:
        lines += [f"{count} x error: {text}" for text, count in one["errors"].items()]
    return "\n".join(lines)
