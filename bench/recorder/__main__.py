"""The overhead of the flight recorder in each operation, measured by itself.

An operation that has to wait for another rank reads the counter once more while it waits: the time that the line
"waits" takes in addition to the first line passes while nothing else could be done.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench import report
from bench.contender import Contender

LIMIT = 20.0  # ns
ITERATIONS = 2_000_000
CASES = {"does not wait": "quick", "waits": "waits"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench recorder", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/recorder.json"))
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        program = [str(arguments.build / "bin/bench_recorder_accord")]
        recorder = Contender([(program, {})], 1, Path(directory) / "recorder")
        for case, kind in CASES.items():
            measures = {"accord": lambda kind=kind: recorder.measure(kind, 8, ITERATIONS)}
            medians = report.in_turn(measures, arguments.rounds)
            results.append(report.result("recorder", case, "ns", medians, LIMIT))
        recorder.close()
    report.write("recorder", results, arguments.output)


if __name__ == "__main__":
    main()
