"""The common form of all benchmarks: measure in turn, take medians, print a table, write JSON.

A result is {"name", "case", "unit", "accord", "peers": {name: value}, "limit", "ratio"}. `ratio` is the best peer
divided by accord, or for rates accord divided by the best peer: above 1, accord is faster. `limit` is the value that
accord promises not to exceed in this case, if it promises anything. Only figures of one run are comparable: machines
are shared and drift.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Measure = Callable[[], float]


def cores() -> int:
    """Returns the number of cores that this process may use, assuming one hardware thread per core."""
    return len(os.sched_getaffinity(0))


def in_turn(
    contenders: Mapping[str, Measure], rounds: int, state: Callable[[dict[str, float]], object] = lambda _: None
) -> dict[str, float]:
    """Returns medians of `rounds` measurements of each contender, taken A B C A B C ... `state` derives the machine's
    state from the measurements of a round; only rounds in the most frequent state count."""
    taken = [{name: measure() for name, measure in contenders.items()} for _ in range(rounds)]
    usual = statistics.mode(state(one) for one in taken)
    kept = [one for one in taken if state(one) == usual]
    return {name: statistics.median(one[name] for one in kept) for name in contenders}


def result(
    name: str,
    case: str,
    unit: str,
    medians: Mapping[str, float],
    limit: float | None = None,
    *,
    larger_is_better: bool = False,
) -> dict:
    """Returns one line of a report; `medians` contains "accord" and the peers. Smaller is better, except for rates;
    these have no limit.
    """
    peers = {peer: value for peer, value in medians.items() if peer != "accord"}
    ratio = None
    if peers:
        ours = medians["accord"]
        ratio = ours / max(peers.values()) if larger_is_better else min(peers.values()) / ours
    return {
        "name": name,
        "case": case,
        "unit": unit,
        "accord": medians["accord"],
        "peers": peers,
        "limit": limit,
        "ratio": ratio,
    }


def progress(done: int, total: int, label: str) -> None:
    """Overwrites one line on a terminal. Prints nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K[{done}/{total}] {label}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def write(name: str, results: list[dict], path: Path) -> None:
    """Prints the table and writes `path`."""
    peers = list(dict.fromkeys(peer for line in results for peer in line["peers"]))
    width = max(len(line["case"]) for line in results) + 2
    print(
        f"{name:{width}}{'unit':>9}{'accord':>12}"
        + "".join(f"{peer:>18}" for peer in peers)
        + f"{'limit':>12}{'ratio':>8}"
    )
    for line in results:
        cells = "".join(f"{line['peers'].get(peer, float('nan')):>18.3f}" for peer in peers)
        limit = f"{line['limit']:>12.3f}" if line["limit"] is not None else f"{'-':>12}"
        ratio = f"{line['ratio']:>8.2f}" if line["ratio"] is not None else f"{'-':>8}"
        print(f"{line['case']:{width}}{line['unit']:>9}{line['accord']:>12.3f}{cells}{limit}{ratio}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {path}")
    above = [line["case"] for line in results if line["limit"] is not None and line["accord"] > line["limit"]]
    if above:
        print("above the limit: " + "; ".join(above))
