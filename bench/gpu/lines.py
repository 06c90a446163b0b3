"""Lines of bench/report.py from the figures that bench_gpu prints, and the selection rule that follows from them."""

from __future__ import annotations

from collections.abc import Callable

from bench import report

Reader = Callable[[list[dict]], list[dict]]

PLACES = {"device": "on the GPU", "host": "on the host"}
IN_GRAPH = ", in a graph"


def case_of(figure: dict, place: str) -> str:
    return f"{figure['ranks']} {figure['as']}, {figure['what']}, {figure['bytes']} B, {PLACES[place]}"


def grouped(figures: list[dict]) -> list[list[dict]]:
    """Returns the figures of each call."""
    calls: dict[tuple, list[dict]] = {}
    for figure in figures:
        calls.setdefault((figure["ranks"], figure["as"], figure["what"], figure["bytes"]), []).append(figure)
    return list(calls.values())


def of_calls(figures: list[dict]) -> list[dict]:
    """Returns a line for each call and place that has a figure of accord's. A figure by "copy" is a bound."""
    lines = []
    for call in grouped(figures):
        for place in PLACES:
            values = {figure["by"]: figure[f"{place}_us"] for figure in call}
            bounds = {"copy": values.pop("copy")} if "copy" in values else {}
            if "accord" in values:
                lines.append(report.result("gpu", case_of(call[0], place), "us", values) | {"bounds": bounds})
    return lines


def of_thresholds(figures: list[dict]) -> list[dict]:
    """Returns a line for each size, in which accord's time on the GPU is that of the fastest plan. Lines whose calls
    ran in a graph, where their callers cost nothing, decide the rule.
    """
    lines = []
    for call in grouped(figures):
        plans = {figure["by"]: figure["device_us"] for figure in call if figure["by"] != "nccl"}
        if not plans:
            continue
        fastest = min(plans, key=plans.__getitem__)
        values = {"accord": plans[fastest]} | {f["by"]: f["device_us"] for f in call if f["by"] == "nccl"}
        line = report.result("gpu", f"{case_of(call[0], 'device')}, {fastest}", "us", values) | {"bounds": plans}
        if (rule := rule_of(figures)) is not None:
            line["rule"] = rule
        lines.append(line)
    return lines


def rule_of(figures: list[dict]) -> str | None:
    """Returns the selection rule that names the fastest at each measured size, in its grammar
    (docs/architecture.md); None if nothing ran in a graph.
    """
    sizes: dict[int, dict[str, float]] = {}
    for figure in figures:
        if figure["what"].endswith(IN_GRAPH):
            sizes.setdefault(figure["bytes"], {})[figure["by"]] = figure["device_us"]
    if not sizes:
        return None
    ranges: list[tuple[int, str]] = []  # the first size, and the fastest from there on
    for size in sorted(sizes):
        fastest = min(sizes[size], key=sizes[size].__getitem__)
        if not ranges or ranges[-1][1] != fastest:
            ranges.append((size if ranges else 0, fastest))
    ends = [text_of(first) for first, _ in ranges[1:]] + ["inf"]
    parts = [f"{text_of(first)}-{end}={by}" for (first, by), end in zip(ranges, ends, strict=True)]
    ranks = figures[0]["ranks"]
    return f"all_reduce[memory=cuda,ranks={ranks}-{ranks}]:{','.join(parts)}"


def text_of(size: int) -> str:
    for unit, letter in ((1 << 20, "m"), (1 << 10, "k")):
        if size and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)
