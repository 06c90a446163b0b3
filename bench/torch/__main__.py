"""torch.distributed over accord and over gloo, through torch: collectives, messages, and training steps, in one
interleaved run.

Each case also shows accord's own time from C++, which shows the overhead of torch and Python. In ddp_view_step,
gradients are views of the buckets, which accord places in windows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench import plot, report
from bench.contender import Contender, rank_environments

SIZES = [8, 8 << 10, 128 << 10, 2 << 20, 64 << 20]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter"]
# accord's promises: times as fast as gloo through torch, and microseconds added to C++ for an all_reduce of 8 B.
TIMES_FASTER = {8: 5, 128 << 10: 8, 64 << 20: 4}
TIMES_FASTER_STEP = {"ddp_step": 1.3, "ddp_view_step": 1.3, "fsdp_step": 1.5}
OVER_CPP_MICROSECONDS = 10

IMPORT_MICROSECONDS = 5000  # limit on the time added to `import torch`
# The same work that torch does for accord's entry point on import; it looks for entry points even if there are none.
IMPORT = """
import time, torch
from importlib.metadata import entry_points
(accord,) = entry_points(group="torch.backends", name="accord")
began = time.perf_counter()
accord.load()()
print(1e6 * (time.perf_counter() - began))
"""

Case = tuple[str, int]


def iterations_for(case: Case) -> int:
    name, size = case
    if name.endswith("_step"):
        return 5
    return 300 if size <= 8 << 10 else max(3, min(60, (48 << 20) // size))


def limit_of(case: Case, ranks: int, medians: dict[str, float], cpp: float | None) -> float | None:
    """Returns the microseconds that accord promises not to exceed."""
    name, size = case
    factor = TIMES_FASTER_STEP.get(name) or (TIMES_FASTER.get(size) if name in COLLECTIVES else None)
    limits = [medians["gloo"] / factor] if factor else []
    if case == ("all_reduce", 8) and cpp is not None and ranks <= report.cores():
        limits.append(cpp + OVER_CPP_MICROSECONDS)
    return min(limits, default=None)


def measure(arguments: argparse.Namespace, ranks: int, directory: Path) -> list[dict]:
    rank = [arguments.python, "-m", "bench.torch.rank"]
    jobs = {
        backend: Contender(
            [([*rank, backend], e) for e in rank_environments(ranks)],
            ranks,
            directory / f"{backend} x {ranks}",
        )
        for backend in ("accord", "gloo")
    }
    program = [str(arguments.build / "bin/bench_collectives_accord")]
    cpp = Contender([(program, e) for e in rank_environments(ranks)], ranks, directory / f"cpp x {ranks}")
    cases: list[Case] = [(name, size) for name in COLLECTIVES for size in arguments.sizes]
    cases += [
        ("all_reduce_async", 8),
        ("ping_pong", 8),
        ("barrier", 0),
        ("ddp_step", 0),
        ("ddp_view_step", 0),
        ("fsdp_step", 0),
    ]
    lines = []
    for done, case in enumerate(cases):
        name = f"{case[0]} {case[1]} B x {ranks}"
        report.progress(done, len(cases), name)
        measures = {backend: partial(job.measure, *case, iterations_for(case)) for backend, job in jobs.items()}
        if case[0] in (*COLLECTIVES, "barrier"):
            measures["C++"] = partial(cpp.measure, *case, iterations_for(case) * 10)
        medians = report.in_turn(measures, arguments.rounds)
        from_cpp = medians.pop("C++", None)
        line = report.result("torch", name, "us", medians, limit_of(case, ranks, medians, from_cpp))
        line["bounds"] = {} if from_cpp is None else {"C++": from_cpp}
        lines.append(line)
    report.progress(len(cases), len(cases), "done")
    for job in [*jobs.values(), cpp]:
        job.close()
    return lines


def measure_import(arguments: argparse.Namespace) -> dict:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [arguments.python, "-c", IMPORT]
    run = partial(subprocess.run, command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    medians = report.in_turn({"accord": lambda: float(run().stdout)}, arguments.rounds)
    return report.result("torch", "added to import torch", "us", medians, IMPORT_MICROSECONDS) | {"bounds": {}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench torch", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/torch.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    arguments = parser.parse_args()
    lines = [measure_import(arguments)]
    with tempfile.TemporaryDirectory() as directory:
        for ranks in arguments.ranks:
            lines += measure(arguments, ranks, Path(directory))
    plot.write("torch", lines, arguments.output.with_suffix(".svg"))
    report.write("torch", lines, arguments.output)
    for line in lines:
        if line["bounds"]:
            cpp = line["bounds"]["C++"]
            print(f"{line['case']}: from C++ {cpp:.3f} us, through torch {line['accord'] - cpp:.2f} us more")


if __name__ == "__main__":
    main()
