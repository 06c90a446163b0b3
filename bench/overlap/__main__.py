"""An asynchronous all_reduce of 64 MiB while the ranks compute: the all_reduce alone, computation alone, both
together.

With spare cores, the two should take hardly longer than the longer one; without spare cores, hardly longer than one
after the other.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from bench import report
from bench.contender import Contender, rank_environments

BYTES = 64 << 20
ITERATIONS = 7
OF_THE_LONGER = 1.25  # with at least two cores for each rank
OF_THE_SUM = 1.1  # without


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench overlap", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/overlap.json"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    spare = report.cores() >= 2 * arguments.ranks
    with tempfile.TemporaryDirectory() as directory:
        program = str(arguments.build / "bin/bench_overlap_accord")
        job = Contender(
            [([program], e) for e in rank_environments(arguments.ranks)], arguments.ranks, Path(directory) / "accord"
        )
        names = ["communication", "computation", "together"]
        medians = report.in_turn(
            {name: partial(job.measure, name, BYTES, ITERATIONS) for name in names}, arguments.rounds
        )
        job.close()
    alone = [medians["communication"], medians["computation"]]
    limit = OF_THE_LONGER * max(alone) if spare else OF_THE_SUM * sum(alone)
    case = f"all_reduce of {BYTES >> 20} MiB x {arguments.ranks}"
    lines = [report.result("overlap", f"{case}, {name}", "us", {"accord": medians[name]}) for name in names[:2]]
    lines.append(report.result("overlap", f"{case}, both together", "us", {"accord": medians["together"]}, limit))
    report.write("overlap", lines, arguments.output)
    print(
        f"together they take {medians['together'] / max(alone):.2f} of the longer one, {medians['together'] / sum(alone):.2f} of the sum"
    )


if __name__ == "__main__":
    main()
