"""all_reduce of float32 on one GPU, through the communicator and by NCCL's own functions: what a call costs on the GPU, and its caller.

With one rank that is the cost of a call; with two, which share the GPU and talk by sockets, only the difference between the two says something. Without a GPU it says why
and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import report

SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/gpu.json"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    program = arguments.build / "bin/bench_gpu"
    if not program.exists():
        print(f"skipped: there is no {program}; it takes a build with CUDA")
        return 0
    results = []
    for ranks in arguments.ranks:
        ended = subprocess.run([program, "--ranks", str(ranks)], stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode == SKIPPED:
            return 0  # it has said why
        ended.check_returncode()
        figures = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        for bytes_ in dict.fromkeys(figure["bytes"] for figure in figures):
            for what in ("device", "host"):
                medians = {figure["by"]: figure[f"{what}_us"] for figure in figures if figure["bytes"] == bytes_}
                case = f"{ranks} ranks, {bytes_} B, on the {'GPU' if what == 'device' else 'host'}"
                results.append(report.result("gpu", case, "us", medians))
    report.write("gpu", results, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
