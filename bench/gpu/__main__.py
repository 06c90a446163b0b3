"""Calls on one GPU: their cost on the GPU and for their caller.

--ranks: all_reduce of float32 through the communicator and with NCCL's own functions. With one rank, this is the cost
of a call; with two, which share the GPU and communicate by sockets, only the difference between the two is
meaningful. --threads: sums of bfloat16 by accord's plans between ranks whose kernels run side by side, and the norm
of their rows (hidden size 4096) by the same kernel or by a separate one after it. Without a GPU, it prints the reason
and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench import report

SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/gpu.json"))
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--threads", type=int, nargs="*", default=[2, 4])
    arguments = parser.parse_args()
    program = arguments.build / "bin/bench_gpu"
    if not program.exists():
        print(f"skipped: there is no {program}; it requires a build with CUDA")
        return 0
    results = []
    runs = [("--ranks", ranks) for ranks in arguments.ranks] + [("--threads", ranks) for ranks in arguments.threads]
    for option, ranks in runs:
        ended = subprocess.run([program, option, str(ranks)], stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode == SKIPPED:
            return 0  # it has printed why
        ended.check_returncode()
        figures = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        for call in dict.fromkeys((figure["what"], figure["bytes"]) for figure in figures):
            for where in ("device", "host"):
                medians = {
                    figure["by"]: figure[f"{where}_us"]
                    for figure in figures
                    if (figure["what"], figure["bytes"]) == call
                }
                case = f"{ranks} {figures[0]['as']}, {call[0]}, {call[1]} B, on the {'GPU' if where == 'device' else 'host'}"
                results.append(report.result("gpu", case, "us", medians))
    report.write("gpu", results, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
