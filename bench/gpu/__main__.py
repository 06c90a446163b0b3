"""Calls on GPUs: their cost on the GPU and for their caller. Parts:

sums: sums of bfloat16 by accord's plans between ranks that share the GPU and whose kernels run side by side, and the
norm of their rows (hidden size 4096) by the same kernel or by a separate one after it. thresholds: sums by size, by
each plan and by NCCL, and the selection rule that follows from them. moe: calls of expert groups beside an all_to_all
of NCCL and a copy of as many bytes. calls: all_reduce of float32 through the communicator and with NCCL's own
functions; with two ranks, which share the GPU and communicate by sockets, only the difference between the two is
meaningful. Without a GPU, it prints the reason and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import report
from bench.gpu import lines

SKIPPED = 77
#: A run with less time left is left out.
MIN_SECONDS = 3


@dataclass(frozen=True)
class Part:
    option: str  # of bench_gpu
    ranks: tuple[int, ...]
    quick_ranks: tuple[int, ...]
    read: lines.Reader  # of its figures


PARTS = {
    "sums": Part("--threads", (2, 4), (2,), lines.of_calls),
    "thresholds": Part("--thresholds", (2, 4, 8), (2,), lines.of_thresholds),
    "moe": Part("--experts", (1, 2, 4, 8), (2,), lines.of_calls),
    "calls": Part("--processes", (1, 2), (1,), lines.of_calls),
}


def run(command: list[str], seconds: float) -> tuple[int | None, str]:
    """Returns the exit code, None if it took too long, and standard output so far."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, process.communicate()[0]
    return process.returncode, output


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/gpu.json"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--ranks", type=int, nargs="+", help="instead of the parts' own")
    parser.add_argument("--seconds", type=float, default=600, help="what does not fit is left out, and named")
    parser.add_argument("--devices", type=Path, help="library of the tests' devices, in place of a GPU")
    parser.add_argument("--quick", action="store_true", help="few calls, to see that everything starts")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    program = arguments.build / "bin/bench_gpu"
    if not program.exists():
        print(f"skipped: there is no {program}; it requires a build with CUDA")
        return 0
    options = (["--devices", str(arguments.devices)] if arguments.devices else []) + ["--quick"] * arguments.quick
    results: list[dict] = []
    failed = False
    for name in arguments.parts:
        part = PARTS[name]
        for ranks in arguments.ranks or (part.quick_ranks if arguments.quick else part.ranks):
            left = until - time.monotonic()
            if left < MIN_SECONDS:
                print(f"left out: {name} of {ranks}: the time is over")
                continue
            code, output = run([str(program), part.option, str(ranks), *options], left)
            figures = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
            results += part.read(figures)
            if code == SKIPPED:  # it has printed why
                print(f"left out: {name} of {ranks}")
            elif code is None:
                print(f"left out: the rest of {name} of {ranks}: the time is over")
            elif code != 0:
                print(f"error: {name} of {ranks}: exit code {code}")
                failed = True
            sys.stdout.flush()
    if results:
        report.write("gpu", results, arguments.output)
        for rule in dict.fromkeys(line["rule"] for line in results if "rule" in line):
            print(rule)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
