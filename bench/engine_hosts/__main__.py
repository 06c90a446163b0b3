"""Engines of two ranks with one thread each, on two hosts (network namespaces, TCP) or on one: options for sums over
the ranks.

Measures 32 sums with their norms, and prompts of the Llama with 60 million parameters: without options, in 8-bit
codes (all_reduce_dtype="int8"), and with long prompts in two halves (overlap_rows). --rate slows the link between the
hosts down. Two hosts need root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from bench import report
from bench.contender import free_port
from bench.engine import llama, sums
from bench.engine_hosts.rank import WIDTH

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python/support"))
from hosts import Hosts, why_not


def packages(folder: Path) -> list[Path]:
    paths = [sums.export_sums(folder / "sums.accord", WIDTH, torch.float32, whole=True, rows=512)]
    return paths + [llama.package("60M", precision, folder) for precision in ("fp32", "bf16")]


def run_ranks(paths: list[Path], rounds: int, hosts: Hosts | None) -> dict[str, dict[str, float]]:
    address = "10.83.0.1" if hosts else "127.0.0.1"
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(free_port()), "ACCORD_THREADS": "1"}
    program = [sys.executable, "-m", "bench.engine_hosts.rank", str(rounds), *map(str, paths)]
    ranks = [
        subprocess.Popen(
            [*(hosts.prefix(rank) if hosts else []), "taskset", "-c", str(rank % report.cores()), *program],
            env=os.environ | where | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise RuntimeError("a rank failed")
    return json.loads(outputs[0])


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench engine_hosts", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/engine_hosts.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rate", help="limit of what each of the two hosts sends, in tc's notation: 2gbit")
    parser.add_argument("--one-host", action="store_true", help="over shared memory")
    options = parser.parse_args()
    reason = None if options.one_host else why_not()
    if reason:
        print(f"left out: {reason}")
        return 0
    folder = options.output.parent / "models"
    folder.mkdir(parents=True, exist_ok=True)
    paths = packages(folder)
    hosts = None if options.one_host else Hosts(2)
    try:
        if hosts and options.rate:
            hosts.slow_down(options.rate)
        found = run_ranks(paths, options.rounds, hosts)
    finally:
        if hosts:
            hosts.close()
    results = [report.result("engine_hosts", case, "ms", medians) for case, medians in found.items()]
    report.write("engine_hosts", results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
