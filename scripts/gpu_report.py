"""Formats the results of gpu_checks.py for people: report.md from report.json."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stage:
    name: str
    outcome: str  # "ok", "failed" or why it was left out
    seconds: float


def markdown_of(report: dict) -> str:
    lines = ["# GPU checks", "", *(f"- {device}" for device in report["gpus"])]
    lines += [
        "",
        f"{report['passed']} passed, {len(report['failed'])} failed, {len(report['skipped'])} skipped in {report['seconds']:.0f} s",
        "",
    ]
    lines += ["| stage | how it ended | seconds |", "|---|---|---|"]
    lines += [f"| {stage['name']} | {stage['outcome']} | {stage['seconds']:.0f} |" for stage in report["stages"]]
    for title in ("failed", "skipped"):
        if report[title]:
            lines += ["", f"## {title.capitalize()}", *(f"- {entry}" for entry in report[title])]
    if report["figures"]:
        lines += ["", "## Calls on one GPU", *_call_table(report["figures"])]
    if report["engine"]:
        lines += ["", "## Engines on one GPU", *_engine_table(report["engine"])]
    return "\n".join(lines) + "\n"


def _call_table(figures: list[dict]) -> list[str]:
    lines = ["Microseconds: on the GPU for each call, and of the caller to put one into the stream.", ""]
    lines += ["| ranks | call | bytes | by | on the GPU | of the caller | GB/s |", "|---|---|---|---|---|---|---|"]
    return lines + [
        f"| {figure['ranks']} {figure['as']} | {figure['what']} | {figure['bytes']} | {figure['by']} | {figure['device_us']:.2f} | "
        f"{figure['host_us']:.2f} | "
        f"{figure['bytes'] / figure['device_us'] / 1e3:.2f} |"
        for figure in figures
    ]


def _engine_table(figures: list[dict]) -> list[str]:
    """Formats the lines that bench/report.py writes."""
    peers = list(dict.fromkeys(peer for line in figures for peer in line["peers"]))
    lines = ["The ratio is above 1 where accord is faster than the best of the others.", ""]
    lines += ["| | unit | accord | " + " | ".join(peers) + " | ratio |", "|---" * (len(peers) + 4) + "|"]
    for line in figures:
        values = [line["accord"], *(line["peers"].get(peer) for peer in peers), line["ratio"]]
        cells = " | ".join("" if value is None else f"{value:.3f}" for value in values)
        lines.append(f"| {line['case']} | {line['unit']} | {cells} |")
    return lines
