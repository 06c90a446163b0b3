"""A training of four ranks in which ranks are killed at random moments, over accord and over gloo: how long the ranks
that are left need until their next step.

Both backends run the same code: an error, or an announcement of the next members by the driver, makes the ranks
exchange new handles through torch's TCPStore and form a group by dist._reconfigure. A spare rank, forked from a process
that has imported torch, takes the place of the killed one and gets the state of the rank that is furthest. The losses
of all steps are compared with those of one process without kills. Blocks of some kills of each backend alternate.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench import report

LIMIT_MEDIAN, LIMIT_99 = 0.3, 1.0  # seconds
MOST_HANGS = 5  # of a backend, after which it is not measured any further


def results(outcomes: dict) -> list[dict]:
    medians = {name: statistics.median(outcome.seconds or [float("nan")]) for name, outcome in outcomes.items()}
    slowest = {name: outcome.percentile(0.99) for name, outcome in outcomes.items()}
    steps = {name: statistics.median(outcome.step_seconds or [float("nan")]) for name, outcome in outcomes.items()}
    lines = [
        report.result("elastic", "a step of four ranks", "s", steps),
        report.result("elastic", "kill to next step, median", "s", medians, LIMIT_MEDIAN),
        report.result("elastic", "kill to next step, 99th percentile", "s", slowest, LIMIT_99),
    ]
    for case, limit in (("kills", None), ("hangs", 0), ("wrong", 0), ("retries", None)):
        counts = {name: getattr(outcome, case) for name, outcome in outcomes.items()}
        line = report.result("elastic", case, "", {"accord": counts.pop("accord")}, limit)
        lines.append(line | {"peers": counts})
    return lines


def measure(arguments: argparse.Namespace) -> dict:
    from bench.elastic.supervisor import Block, Hang, Outcome, Ranks, Setup  # need dist._reconfigure

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5))
    setup = Setup(store, random.Random(arguments.seed), arguments.limit)
    kills = {
        "accord": arguments.kills,
        "gloo": arguments.kills if arguments.gloo_kills is None else arguments.gloo_kills,
    }
    outcomes = {name: Outcome() for name in kills}
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = {name: Ranks(name, store, arguments.python, Path(folder, f"{name}.log")) for name in kills}
        while left := {
            name: kills[name] - outcome.kills
            for name, outcome in outcomes.items()
            if outcome.kills < kills[name] and outcome.hangs < MOST_HANGS
        }:
            for name in left:
                number += 1
                try:
                    Block(number, setup, ranks[name], outcomes[name]).run(min(arguments.block, left[name]))
                except Hang:
                    print(Path(folder, f"{name}.log").read_text()[-4000:], file=sys.stderr)
                print(f"{name}: {outcomes[name].summary()}", flush=True)
        for each in ranks.values():
            each.close()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench elastic", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/elastic.json"))
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--gloo-kills", type=int, help="as many as of accord, if not given")
    parser.add_argument("--block", type=int, default=25, help="kills of one backend before the other one's turn")
    parser.add_argument("--seed", type=int, default=0, help="of the ranks that are killed, and when")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a hang is counted")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    arguments = parser.parse_args()
    if not hasattr(dist, "_reconfigure"):
        print(f"nothing measured: torch {torch.__version__} has no dist._reconfigure (2.14 has)")
        return
    torch.set_num_threads(1)
    began = time.monotonic()
    outcomes = measure(arguments)
    report.write("elastic", results(outcomes), arguments.output)
    differences = ", ".join(f"{name} {outcome.largest_difference:.1e}" for name, outcome in outcomes.items())
    print(f"largest relative difference of a loss: {differences}; {time.monotonic() - began:.0f} s")
    if outcomes["accord"].hangs or outcomes["accord"].wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
