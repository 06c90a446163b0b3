"""Meshes: time to plan the groups of one rank, and to create all groups of a job, compared with torch's new_group
over gloo.

Plans are for tp 8, pp 8, cp 2, ep 16; the best of several measurements in one process. Groups are of 16 ranks with tp
2, pp 2, cp 2, ep 2: accord's single step and every group of a rank, then every new_group call of Megatron's, in turn
in the same processes. accord promises plans of 1,024, 16,384 and 131,072 ranks in 5, 20 and 100 ms, and a tenth of
gloo's time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import report

PLAN, LIMITS_MS = "tp=8,pp=8,cp=2,ep=16", {1024: 5, 16384: 20, 131072: 100}
GROUPS, RANKS = "tp=2,pp=2,cp=2,ep=2", 16


def plans(rounds: int) -> list[dict]:
    from accord.mesh import MeshPlan

    results = []
    for ranks, limit in LIMITS_MS.items():

        def plan(ranks: int = ranks) -> float:
            began = time.perf_counter()
            MeshPlan(PLAN, world_size=ranks).groups_of(ranks // 2)
            return 1e3 * (time.perf_counter() - began)

        medians = report.in_turn({"accord": plan}, rounds)
        results.append(report.result("mesh", f"plan of {ranks} ranks", "ms", medians, limit))
    return results


def groups(rounds: int, directory: Path) -> dict:
    output = directory / "groups.json"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command = [*launch, "-m", "bench.mesh.rank"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, GROUPS, str(rounds), str(output)], check=True, env=environment)
    medians = json.loads(output.read_text())
    return report.result("mesh", f"all groups of {RANKS} ranks", "ms", medians, medians["gloo"] / 10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench mesh", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/mesh.json"))
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = [*plans(arguments.rounds), groups(arguments.rounds, Path(directory))]
    report.write("mesh", results, arguments.output)


if __name__ == "__main__":
    main()
