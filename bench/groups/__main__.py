"""The cost of each of many groups of the same ranks: time of a split, descriptors, memory; per group and rank.

idle: the groups have been created; used: each has run one barrier. Memory is that of the process of one rank (of all
ranks if they are threads), from /proc/self/smaps: rss counts shared pages in every process that has touched them, pss
divides them among the processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from bench import report

LIMITS = {"descriptors": 0.0}
UNITS = {"split_us": "us"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench groups", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/groups.json"))
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=8)
    arguments = parser.parse_args()
    results = []
    for kind in ("processes", "threads"):
        program = [str(arguments.build / "bin/bench_groups_accord"), str(arguments.groups), str(arguments.ranks), kind]
        measured = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
        size, groups = measured.pop("ranks"), measured.pop("groups")
        for figure, value in measured.items():
            case = f"{groups} groups of {size} {kind}, {figure.removesuffix('_us').removesuffix('_kib')}"
            unit = UNITS.get(figure, "KiB" if figure.endswith("_kib") else "")
            results.append(report.result("groups", case, unit, {"accord": value}, LIMITS.get(figure)))
    report.write("groups", results, arguments.output)


if __name__ == "__main__":
    main()
