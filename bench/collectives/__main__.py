"""Collectives on the ranks of this host: accord, Open MPI's best setting, gloo, vLLM and DeepSpeed in one interleaved
run.

Hand-written bounds are shown as well (bound.cpp): for all_reduce on two ranks, with private buffers and with input
and output in shared memory; for the collectives that only copy, through shared memory; and for a barrier of ranks
that share cores. "near" and "far" give how long a cache line took from core to core while a case was measured.
Open MPI's settings are searched first (bench/openmpi.py). Peers that are not installed are left out, with a line that
says so.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import openmpi, plot, report
from bench.contender import Contender, rank_environments
from bench.openmpi import Case

SIZES = [8, 1 << 10, 8 << 10, 128 << 10, 2 << 20, 64 << 20]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"]
IN_PLACE = "all_reduce_in_place"  # the only one that vLLM and DeepSpeed have
PYTHON_PEERS = {"gloo": [*COLLECTIVES, IN_PLACE], "vllm": [IN_PLACE], "deepspeed": [IN_PLACE]}
COPIES = ["all_gather", "all_to_all", "broadcast"]
COPIES_BOUND_FROM = 8 << 10  # smaller ones use packets, which are bounded by the all_reduce of 8 B
FAR_NANOSECONDS = 130  # a line takes 26 to 65 ns between near cores and about 250 between far ones

# accord's promises, compared with Open MPI's best setting and the bounds.
TIMES_FASTER = 1.5  # geometric mean over all cases
TIMES_FASTER_ALL_REDUCE = 2  # from 8 KiB
BOUND_FACTOR = 1.3  # all_reduce from 8 KiB
BOUND_MICROSECONDS = 0.06  # all_reduce of 8 B
TIMES_FASTER_OVERSUBSCRIBED = 2  # barrier, four ranks on two cores


def iterations_for(case: Case, contender: str) -> int:
    collective, size = case
    slow = contender in ("gloo", "deepspeed")
    if collective in ("barrier", "ping") or size <= 8 << 10:
        return 150 if slow else 6000
    return max(3, min(60 if slow else 600, (48 << 20) // size))


def is_far(ping: float) -> bool:
    return ping * 1e3 > FAR_NANOSECONDS


def bounds_of(case: Case, ranks: int) -> dict[str, Case]:
    """Returns the commands for the bound's program."""
    collective, size = case
    if ranks > 2:
        return (
            {"bound private": ("switch", 0)} if collective == "barrier" and report.cores() == 2 and ranks == 4 else {}
        )
    if collective == "all_reduce":
        return {"bound private": ("private", size), "bound shared": ("shared", size)}
    if collective in COPIES and size >= COPIES_BOUND_FROM:
        return {"bound private": case}
    return {}


def search_iterations(case: Case) -> int:
    return max(2, iterations_for(case, "openmpi") // 8)


@dataclass
class Options:
    build: Path
    rounds: int
    keep: int
    quick: bool
    only: list[str] | None
    python: str


class Table:
    """Runs cases on one number of ranks and collects the lines of the report."""

    def __init__(self, options: Options, ranks: int, cases: list[Case], directory: Path):
        self.options, self.ranks, self.cases = options, ranks, cases
        self.directory = directory
        self.jobs: dict[str, Contender] = {}
        self.settings: dict[Case, list[openmpi.Setting]] = {}
        self.mpi = options.build / "bin/bench_collectives_openmpi"

    def wants(self, name: str) -> bool:
        return self.options.only is None or name in self.options.only

    def start(self, name: str, commands: list, ranks: int | None = None) -> Contender | None:
        """Returns the contender of that name, started on first use, or None if it does not start."""
        if name not in self.jobs:
            try:
                self.jobs[name] = Contender(
                    commands, ranks or self.ranks, self.directory / f"{name} x {self.ranks}".replace("/", "_")
                )
            except RuntimeError as error:
                print(f"left out: {error}")
                self.jobs[name] = None
        return self.jobs[name]

    def prepare(self) -> None:
        environments = rank_environments(self.ranks)
        self.start("accord", [([str(self.options.build / "bin/bench_collectives_accord")], e) for e in environments])
        program = [self.options.python, "-m", "bench.collectives.torch_rank"]
        for name in PYTHON_PEERS:
            if not self.wants(name):
                continue
            command = [*program, "--missing", name]
            why = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
            if why:
                print(f"left out: {name}: {why}")
                continue
            path = {
                "PATH": f"{Path(self.options.python).parent}{os.pathsep}{os.environ['PATH']}"
            }  # finds the compiler tools of DeepSpeed
            self.start(name, [([*program, name], e | path) for e in rank_environments(self.ranks)])
        self.start("bound", [([str(self.options.build / "bin/bench_collectives_bound")], {})], 2)
        if not openmpi.available(self.mpi):
            print("left out: Open MPI (install openmpi-bin and libopenmpi-dev, then build again)")
        elif self.wants("openmpi"):
            self.settings = openmpi.search(
                self.mpi,
                self.ranks,
                [case for case in self.cases if case[0] in COLLECTIVES],
                self.directory,
                search_iterations,
                self.options.keep,
                self.options.quick,
            )

    def measures(self, case: Case) -> dict[str, report.Measure]:
        """Returns the measurements of all contenders in this case; for Open MPI, one for each of its settings."""
        found: dict[str, report.Measure] = {}

        def add(name: str, job: Contender | None, called: Case) -> None:
            if job is not None:
                found[name] = partial(job.measure, *called, iterations_for(called, name))

        add("accord", self.jobs["accord"], case)
        for setting in self.settings.get(case, []):
            name = f"openmpi: {setting.name}"
            add(name, self.start(name, setting.command(self.mpi, self.ranks)), case)
        for name, collectives in PYTHON_PEERS.items():
            if case[0] in collectives:
                add(name, self.jobs.get(name), case)
        if self.ranks == 2:
            add("ping", self.jobs["bound"], ("ping", 0))
        for name, called in bounds_of(case, self.ranks).items():
            add(name, self.jobs["bound"], called)
        return found

    def without_failed(self, case: Case) -> dict[str, report.Measure]:
        """Returns the contenders that can run the case, and names any other."""
        able = {}
        for name, measure in self.measures(case).items():
            try:
                measure()
                able[name] = measure
            except RuntimeError as error:
                if name == "accord":
                    raise
                print(f"left out: {error}")
                job = name if name in self.jobs else "bound"
                self.jobs[job].kill()
                self.jobs[job] = None
        return able

    def run(self) -> list[dict]:
        self.prepare()
        lines = []
        for done, case in enumerate(self.cases):
            name = f"{case[0]} {case[1]} B x {self.ranks}"
            report.progress(done, len(self.cases), name)
            # The machine may move the ranks to other cores in the meantime.
            medians = report.in_turn(
                self.without_failed(case), self.options.rounds, lambda one: is_far(one.get("ping", 0))
            )
            lines.append(self.line(name, case, medians))
        report.progress(len(self.cases), len(self.cases), "done")
        for job in self.jobs.values():
            if job is not None:
                job.close()
        return lines

    def line(self, name: str, case: Case, medians: dict[str, float]) -> dict:
        ping = medians.pop("ping", None)
        mpi = {key: medians.pop(key) for key in list(medians) if key.startswith("openmpi: ")}
        bounds = {key: medians.pop(key) for key in bounds_of(case, self.ranks) if key in medians}
        if mpi:
            medians["openmpi"] = min(mpi.values())
        line = report.result("collectives", name, "us", medians, limit_of(case, self.ranks, medians, bounds))
        line["bounds"] = bounds
        if mpi:
            line["openmpi setting"] = min(mpi, key=mpi.get).removeprefix("openmpi: ")
            line["times openmpi"] = medians["openmpi"] / medians["accord"]
        if ping is not None:
            line["ping_ns"] = ping * 1e3
            line["placement"] = "far" if is_far(ping) else "near"
        return line


def limit_of(case: Case, ranks: int, medians: dict[str, float], bounds: dict[str, float]) -> float | None:
    """Returns the microseconds that accord promises not to exceed."""
    collective, size = case
    limits = []
    if "openmpi" in medians:
        factor = 1.0
        if ranks > 2:
            factor = TIMES_FASTER_OVERSUBSCRIBED if collective == "barrier" else 1.0
        elif collective == "all_reduce" and size >= 8 << 10:
            factor = TIMES_FASTER_ALL_REDUCE
        limits.append(medians["openmpi"] / factor)
    limits += [medians[name] for name in ("vllm", "deepspeed") if name in medians]
    if collective == "all_reduce":
        if bounds and size >= 8 << 10:
            limits.append(bounds["bound private"] * BOUND_FACTOR)
        if bounds and size == 8:
            limits.append(bounds["bound private"] + BOUND_MICROSECONDS)
    return min(limits, default=None)


def summary(lines: list[dict]) -> list[dict]:
    """Returns the geometric means, as lines whose unit is accord's share of Open MPI's time."""
    pairs = [line for line in lines if "times openmpi" in line and line["case"].endswith("x 2")]
    collectives = dict.fromkeys(line["case"].split()[0] for line in pairs)
    groups = {name: [line for line in pairs if line["case"].split()[0] == name] for name in collectives}
    means = []
    for name, members in {**groups, "all": pairs}.items():
        if not members:
            continue
        share = math.exp(-sum(math.log(line["times openmpi"]) for line in members) / len(members))
        limit = 1 / TIMES_FASTER if name == "all" else None
        means.append(
            report.result("collectives", f"{name}: share of Open MPI's time", "mean", {"accord": share}, limit)
        )
    return means


def print_details(lines: list[dict]) -> None:
    print(f"\n{'case':30}{'times openmpi':>15}{'private':>10}{'shared':>10}{'ping ns':>9}      Open MPI's setting")
    for line in lines:
        bounds = [
            f"{line['bounds'][name]:>10.3f}" if name in line["bounds"] else f"{'-':>10}"
            for name in ("bound private", "bound shared")
        ]
        ping = f"{line['ping_ns']:>9.0f} {line['placement']}" if "ping_ns" in line else f"{'-':>9}     "
        times = f"{line['times openmpi']:>15.2f}" if "times openmpi" in line else f"{'-':>15}"
        print(f"{line['case']:30}{times}{''.join(bounds)}{ping} {line.get('openmpi setting', '-')}")
    below = [
        line["case"] for line in lines if line.get("limit") and line["limit"] < line["bounds"].get("bound private", 0)
    ]
    if below:
        print(f"\nlimits below what is written by hand: {'; '.join(below)}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench collectives", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/collectives.json"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--collectives", nargs="+", default=COLLECTIVES, choices=COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument(
        "--only", nargs="+", help="contenders to measure beside accord", choices=["openmpi", *PYTHON_PEERS]
    )
    parser.add_argument(
        "--keep", type=int, default=3, help="number of settings of Open MPI in the interleaved run of a case"
    )
    parser.add_argument("--quick", action="store_true", help="search Open MPI's transports only, not its algorithms")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the Python peers")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 4], help="2: all cases; more: barrier and all_reduce of 8 B"
    )
    arguments = parser.parse_args()

    options = Options(
        arguments.build, arguments.rounds, arguments.keep, arguments.quick, arguments.only, arguments.python
    )
    lines = []
    with tempfile.TemporaryDirectory() as directory:
        for ranks in arguments.ranks:
            if ranks == 2:
                called = arguments.collectives + ([IN_PLACE] if "all_reduce" in arguments.collectives else [])
                cases = [(c, s) for c in called for s in ([0] if c == "barrier" else arguments.sizes)]
            else:
                cases = [("barrier", 0), ("all_reduce", 8)]
            lines += Table(options, ranks, cases, Path(directory)).run()
    print_details(lines)
    plot.write("collectives", lines, arguments.output.with_suffix(".svg"))
    report.write("collectives", lines + summary(lines), arguments.output)


if __name__ == "__main__":
    main()
