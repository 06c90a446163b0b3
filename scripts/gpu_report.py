"""The report of gpu_checks.py: report.json, report.md for people, and logs.tar.gz."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_run import Context
    from gpu_stages import Stage

FILES = ("report.json", "report.md", "logs.tar.gz")


@dataclass
class Done:
    """A stage that is over."""

    name: str
    what: str
    outcome: str  # "ok", "failed", "interrupted" or why it was left out
    seconds: float


def write(
    output: Path,
    devices: list[str],
    origin: str,
    seconds: float,
    context: Context,
    done: Sequence[Done],
    stages: Sequence[Stage],
) -> None:
    """Writes the files of the report to `output`, and copies them to the folder that OUT names, if it is set."""
    over = {stage.name for stage in done}
    missing = [Done(stage.name, stage.what, "not run", 0.0) for stage in stages if stage.name not in over]
    report = {
        "gpus": devices,
        "origin": origin,
        "seconds": round(seconds, 1),
        "passed": context.tally.passed,
        "failed": context.tally.failed,
        "skipped": context.tally.skipped,
        "stages": [asdict(stage) for stage in [*done, *missing]],
        "figures": context.figures,
    }
    (output / "report.json").write_text(json.dumps(report, indent=1))
    (output / "report.md").write_text(markdown_of(report))
    with tarfile.open(output / "logs.tar.gz", "w:gz") as packed:
        packed.add(context.logs, arcname="logs")
    if copies := os.environ.get("OUT"):
        Path(copies).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copyfile(output / name, Path(copies) / name)


def markdown_of(report: dict) -> str:
    lines = ["# GPU checks", "", *(f"- {device}" for device in report["gpus"])]
    if report["origin"]:
        lines.append(f"- programs: {report['origin']}")
    counts = f"{report['passed']} passed, {len(report['failed'])} failed, {len(report['skipped'])} skipped"
    lines += ["", f"{counts} in {report['seconds']:.0f} s", ""]
    lines += ["| stage | how it ended | seconds |", "|---|---|---|"]
    lines += [f"| {stage['name']} | {stage['outcome']} | {stage['seconds']:.0f} |" for stage in report["stages"]]
    if report["failed"]:
        lines += ["", "## Failed", *(f"- {entry}" for entry in report["failed"])]
    if report["skipped"]:
        lines += ["", "## Skipped", *(f"- {entry}" for entry in _by_reason(report["skipped"]))]
    titles = {stage["name"]: stage["what"] for stage in report["stages"]}
    for name, figures in report["figures"].items():
        lines += ["", f"## {titles[name][0].upper()}{titles[name][1:]}", *_table(figures)]
    return "\n".join(lines) + "\n"


def _by_reason(skipped: list[str]) -> list[str]:
    """Returns one line for all tests that were skipped for the same reason: "program: test: reason"."""
    reasons: dict[str, list[str]] = {}
    for entry in skipped:
        *test, reason = entry.split(": ", 2)
        reasons.setdefault(reason, []).append(": ".join(test))
    return [
        f"{tests[0]}{f' and {len(tests) - 1} more' if len(tests) > 1 else ''}: {reason}"
        for reason, tests in reasons.items()
    ]


def _table(figures: list[dict]) -> list[str]:
    """Formats the lines that bench/report.py writes."""
    peers = list(dict.fromkeys(peer for line in figures for peer in line["peers"]))
    lines = ["The ratio is above 1 where accord is faster than the best of the others.", ""]
    lines += ["| | unit | accord | " + " | ".join([*peers, "ratio"]) + " |", "|---" * (len(peers) + 4) + "|"]
    for line in figures:
        values = [line["accord"], *(line["peers"].get(peer) for peer in peers), line["ratio"]]
        cells = " | ".join("" if value is None else f"{value:.3f}" for value in values)
        lines.append(f"| {line['case']} | {line['unit']} | {cells} |")
    rules = dict.fromkeys(line["rule"] for line in figures if "rule" in line)
    return lines + ([""] + [f"    {rule}" for rule in rules] if rules else [])
