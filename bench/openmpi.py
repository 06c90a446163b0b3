"""Open MPI's settings, and the search for the best of them for each call.

A setting is a transport (pml, btl and its single-copy mechanism) and a way to choose algorithms (the library's own
decision, one of coll_tuned's algorithms by number for every collective that has it, coll/sm, coll/han). With more
ranks than cores, all settings yield. Each setting is its own job, because MPI reads its parameters when it
starts. In the search, one job after the other measures all calls for a short time; the best few of each call then
take part in the interleaved run, where the best median counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import report
from bench.contender import Command, Contender

Case = tuple[str, int]  # collective, bytes


def vader(single_copy: str) -> list[str]:
    """Returns parameters for the library's own shared-memory transport, with one way of copying between processes."""
    return [*"--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism".split(), single_copy]


TRANSPORTS = {
    "default": [],
    "vader cma": vader("cma"),
    "vader none": vader("none"),
    "vader emulated": vader("emulated"),
    "ucx": ["--mca", "pml", "ucx"],
    "ucx shm": ["--mca", "pml", "ucx", "-x", "UCX_TLS=sm,self"],
}
# The highest algorithm number of coll_tuned (ompi_info --param coll tuned --level 9).
ALGORITHMS = {"allreduce": 6, "allgather": 6, "alltoall": 5, "barrier": 6, "bcast": 9, "reduce_scatter_block": 4}
NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "barrier": "barrier",
    "broadcast": "bcast",
    "reduce_scatter": "reduce_scatter_block",
}
SEGMENTED = {"allreduce": [5], "bcast": [2, 3, 4, 5, 6]}  # algorithms that divide a message into segments
SEGMENT = 128 << 10


@dataclass(frozen=True)
class Setting:
    name: str
    arguments: tuple[str, ...]
    cases: Callable[[Case], bool]  # cases in which it may differ from the settings before it

    def command(self, program: Path, ranks: int) -> list[Command]:
        launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        return [([*launch, *self.arguments, str(program)], {})]


def tuned(number: int, segment: int = 0) -> list[str]:
    arguments = ["--mca", "coll_tuned_use_dynamic_rules", "1"]
    for name, most in ALGORITHMS.items():
        if number > most or (segment and number not in SEGMENTED.get(name, [])):
            continue
        arguments += ["--mca", f"coll_tuned_{name}_algorithm", str(number)]
        if segment:
            arguments += ["--mca", f"coll_tuned_{name}_algorithm_segmentsize", str(segment)]
    return arguments


def settings(yields: bool) -> Iterable[Setting]:
    """Yields all settings. With `yields`, they yield their core while they wait."""
    base = ["--mca", "mpi_yield_when_idle", "1"] if yields else []
    for transport, parameters in TRANSPORTS.items():
        common = [*base, *parameters]
        yield Setting(transport, tuple(common), lambda _: True)
        for component in ("sm", "han"):
            more = ["--mca", f"coll_{component}_priority", "100"]
            yield Setting(f"{transport}, coll/{component}", (*common, *more), lambda _: True)
        for number in range(1, max(ALGORITHMS.values()) + 1):
            yield Setting(
                f"{transport}, algorithm {number}",
                (*common, *tuned(number)),
                lambda case, number=number: number <= ALGORITHMS[NAMES[case[0]]],
            )
        for number in sorted({n for numbers in SEGMENTED.values() for n in numbers}):
            yield Setting(
                f"{transport}, algorithm {number} in segments",
                (*common, *tuned(number, SEGMENT)),
                lambda case, number=number: number in SEGMENTED.get(NAMES[case[0]], []) and case[1] > SEGMENT,
            )


def available(program: Path) -> bool:
    return program.exists() and shutil.which("mpirun") is not None


def search(
    program: Path,
    ranks: int,
    cases: list[Case],
    directory: Path,
    iterations: Callable[[Case], int],
    keep: int,
    quick: bool,
) -> dict[Case, list[Setting]]:
    """Returns the best settings for each case, the best first. Settings that fail are left out."""
    times: dict[Case, list[tuple[float, int, Setting]]] = {case: [] for case in cases}
    oversubscribed = ranks > report.cores()
    candidates = [s for s in settings(oversubscribed) if any(map(s.cases, cases))]
    if quick:
        candidates = [s for s in candidates if s.name in TRANSPORTS]
    for index, setting in enumerate(candidates):
        report.progress(index, len(candidates), f"searching Open MPI's best setting: {setting.name}")
        wanted = [case for case in cases if setting.cases(case)]
        try:
            job = Contender(setting.command(program, ranks), ranks, directory / f"search {ranks} {index}")
        except RuntimeError:
            continue
        try:
            for case in wanted:
                best = min(job.measure(*case, iterations(case), timeout=30) for _ in range(2))
                times[case].append((best, index, setting))
        except RuntimeError:
            job.kill()
        job.close()
    report.progress(len(candidates), len(candidates), "searched Open MPI's settings")
    return {
        case: [setting for _, _, setting in sorted(found, key=lambda f: f[:2])[:keep]] for case, found in times.items()
    }
