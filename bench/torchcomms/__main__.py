"""torchcomms over accord and over its own gloo: collectives and messages on two ranks, from 8 B to 64 MB,
interleaved.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench import plot, report
from bench.contender import Contender, rank_environments

SIZES = [8, 1 << 10, 8 << 10, 128 << 10, 2 << 20, 16 << 20, 64 << 20]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
RANK = ["-m", "bench.torchcomms.rank"]  # of the Python that --python names

Case = tuple[str, int]


def iterations_for(case: Case) -> int:
    size = case[1]
    return 300 if size <= 8 << 10 else max(3, min(60, (48 << 20) // size))


def measure(arguments: argparse.Namespace, directory: Path) -> list[dict]:
    jobs = {
        backend: Contender(
            [([arguments.python, *RANK, backend], e) for e in rank_environments(arguments.ranks)],
            arguments.ranks,
            directory / backend,
        )
        for backend in ("accord", "gloo")
    }
    cases: list[Case] = [(name, size) for name in COLLECTIVES for size in arguments.sizes]
    cases += [("all_reduce_async", 8), ("ping_pong", 8), ("barrier", 0)]
    lines = []
    for done, case in enumerate(cases):
        name = f"{case[0]} {case[1]} B x {arguments.ranks}"
        report.progress(done, len(cases), name)
        measures = {backend: partial(job.measure, *case, iterations_for(case)) for backend, job in jobs.items()}
        line = report.result("torchcomms", name, "us", report.in_turn(measures, arguments.rounds))
        line["bounds"] = {}
        lines.append(line)
    report.progress(len(cases), len(cases), "done")
    for job in jobs.values():
        job.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench torchcomms", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/torchcomms.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torchcomms")
    arguments = parser.parse_args()
    why = subprocess.run([arguments.python, *RANK, "--missing"], capture_output=True, text=True, check=True).stdout
    if why.strip():
        print(f"nothing measured: {arguments.python}: {why.strip()}; torchcomms is built from its sources")
        return
    with tempfile.TemporaryDirectory() as directory:
        lines = measure(arguments, Path(directory))
    plot.write("torchcomms", lines, arguments.output.with_suffix(".svg"))
    report.write("torchcomms", lines, arguments.output)


if __name__ == "__main__":
    main()
