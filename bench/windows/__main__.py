"""all_reduce of two ranks on registered buffers: accord, the best that two ranks could do by hand with the same
memory, and accord's own all_reduce on private buffers, in one interleaved run.

By hand: `push` and `pull` add half of the buffer each and write or read the other half; `one_shot` adds all of it on
both ranks. The limit is 1.3 x the best of the three.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from bench import report
from bench.contender import Contender, rank_environments

SIZES = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 16 << 20, 64 << 20]
BY_HAND = ["push", "pull", "one_shot"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench windows", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/windows.json"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument(
        "--no-touch", action="store_true", help="leave out the cases in which the caller uses its buffers"
    )
    arguments = parser.parse_args()
    cases = [(size, touch) for touch in ([""] if arguments.no_touch else ["", "+touch"]) for size in arguments.sizes]
    results = []
    with tempfile.TemporaryDirectory() as directory:
        program = [str(arguments.build / "bin/bench_windows_accord")]
        ranks = Contender(
            [(program, environment) for environment in rank_environments(2)], 2, Path(directory) / "ranks"
        )
        for done, (size, touch) in enumerate(cases):
            case = f"all_reduce {size} B{' used' if touch else ''}"
            report.progress(done, len(cases), case)
            iterations = max(3, min(20000, (64 << 20) // size))
            names = {"accord": "registered", **{kind: kind for kind in BY_HAND}, "ordinary": "ordinary"}
            measures = {name: partial(ranks.measure, kind + touch, size, iterations) for name, kind in names.items()}
            medians = report.in_turn(measures, arguments.rounds)
            limit = 1.3 * min(medians[kind] for kind in BY_HAND)
            results.append(report.result("windows", case, "us", medians, limit))
        report.progress(len(cases), len(cases), "done")
        ranks.close()
    report.write("windows", results, arguments.output)


if __name__ == "__main__":
    main()
