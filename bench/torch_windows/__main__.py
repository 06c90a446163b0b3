"""torch's one-sided windows between two ranks of one host: puts and signals over accord, through dist._new_window, the
same bytes sent and received over gloo, and copied within one process (copy_), in one interleaved run.

signal: to the other rank and back. put: a put with its signal, there and back. stream: puts in one direction, each with
its signal, which the other rank waits for; that is a rate.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from bench import report
from bench.contender import Contender, rank_environments

SIZES = [8, 8 << 10, 128 << 10, 2 << 20, 64 << 20]
STREAM_SIZES = [128 << 10, 2 << 20, 64 << 20]
RANKS = {"accord": 2, "gloo": 2, "copy": 1}
SIGNAL_BYTES = 4  # of gloo's message


def measure(arguments: argparse.Namespace, directory: Path) -> list[dict]:
    jobs = {
        kind: Contender(
            [
                ([arguments.python, "-m", "bench.torch_windows.rank", kind], environment)
                for environment in rank_environments(ranks)
            ],
            ranks,
            directory / kind,
        )
        for kind, ranks in RANKS.items()
    }
    cases = [
        ("signal", SIGNAL_BYTES),
        *(("put", size) for size in arguments.sizes),
        *(("stream", size) for size in arguments.stream_sizes),
    ]
    lines = []
    for done, (name, size) in enumerate(cases):
        case = name if name == "signal" else f"{name} {size} B"
        report.progress(done, len(cases), case)
        iterations = max(5, min(3000, (256 << 20) // size))
        taking_part = [kind for kind in jobs if kind != "copy" or name != "signal"]
        measures = {kind: partial(jobs[kind].measure, name, size, iterations) for kind in taking_part}
        microseconds = report.in_turn(measures, arguments.rounds)
        is_rate = name == "stream"
        values = {kind: size / time / 1e3 for kind, time in microseconds.items()} if is_rate else microseconds
        copy = values.pop("copy", None)
        line = report.result("torch_windows", case, "GB/s" if is_rate else "us", values, larger_is_better=is_rate)
        lines.append(line | {"bounds": {} if copy is None else {"copy": copy}})
    report.progress(len(cases), len(cases), "done")
    for job in jobs.values():
        job.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench torch_windows", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/torch_windows.json"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--stream-sizes", type=int, nargs="+", default=STREAM_SIZES)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    arguments = parser.parse_args()
    if not hasattr(dist, "_new_window"):
        print(f"nothing measured: torch {torch.__version__} has no dist._new_window (2.14 has)")
        return
    with tempfile.TemporaryDirectory() as directory:
        lines = measure(arguments, Path(directory))
    report.write("torch_windows", lines, arguments.output)
    for line in lines:
        for copy in line["bounds"].values():
            share = line["accord"] / copy if line["unit"] == "GB/s" else copy / line["accord"]
            print(f"{line['case']}: a copy {copy:.3f} {line['unit']}; accord has {share:.2f} of its speed")


if __name__ == "__main__":
    main()
