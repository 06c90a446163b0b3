"""Dispatch and combine of a mixture of experts on two ranks: accord, an MPI_Alltoallv program, torch's
all_to_all_single over gloo, and a memcpy of the received rows by each rank, in one interleaved run.

32 experts, 8 of them for each token, bfloat16. accord promises 1/1.5 of MPI's time for 128 tokens, 1/0.7 of a
memcpy's for 4,096, and memory of at most a tenth of the received rows in addition to these.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench import openmpi, report
from bench.contender import Contender, rank_environments

TOKENS, HIDDEN = [128, 4096], [2048, 7168]
EXPERTS, TOP_K, RANKS = 32, 8, 2
OPERATIONS = ["dispatch", "combine", "step"]


def iterations_for(tokens: int) -> int:
    return 150 if tokens <= 1024 else 3


def best_of_mpi(arguments: argparse.Namespace, cases: list[str], directory: Path) -> dict[str, openmpi.Setting]:
    """Returns Open MPI's fastest transport for each case."""
    program = arguments.build / "bin/bench_expert_openmpi"
    best: dict[str, tuple[float, openmpi.Setting]] = {}
    settings = [s for s in openmpi.settings(report.cores() < RANKS) if s.name in openmpi.TRANSPORTS]
    for done, setting in enumerate(settings):
        report.progress(done, len(settings), f"searching Open MPI's best setting: {setting.name}")
        try:
            job = Contender(setting.command(program, RANKS), RANKS, directory / f"search {done}")
        except RuntimeError:
            continue
        try:
            for case in cases:
                time = min(job.measure(case, 0, iterations_for(int(case.split("/")[1]))) for _ in range(2))
                if case not in best or time < best[case][0]:
                    best[case] = (time, setting)
        except RuntimeError:
            job.kill()
        job.close()
    return {case: setting for case, (_, setting) in best.items()}


def limit_of(operation: str, tokens: int, medians: dict[str, float]) -> float | None:
    """Returns the microseconds that accord promises not to exceed."""
    if operation == "step":
        return None
    if tokens <= 1024:
        return medians["MPI"] / 1.5 if "MPI" in medians else None
    return medians["memcpy"] / 0.7


def measure(arguments: argparse.Namespace, directory: Path) -> list[dict]:
    sizes = [(tokens, hidden) for tokens in arguments.tokens for hidden in arguments.hidden]
    program = [str(arguments.build / "bin/bench_expert_accord")]
    accord = Contender([(program, e) for e in rank_environments(RANKS)], RANKS, directory / "accord")
    torch_rank = [arguments.python, "-m", "bench.expert.torch_rank"]
    gloo = Contender([(torch_rank, e) for e in rank_environments(RANKS)], RANKS, directory / "gloo")
    cases = [f"{operation}/{tokens}/{hidden}" for tokens, hidden in sizes for operation in OPERATIONS]
    mpi_settings: dict[str, openmpi.Setting] = {}
    if openmpi.available(arguments.build / "bin/bench_expert_openmpi"):
        mpi_settings = best_of_mpi(arguments, cases, directory)
    mpi = {
        setting: Contender(
            setting.command(arguments.build / "bin/bench_expert_openmpi", RANKS), RANKS, directory / setting.name
        )
        for setting in set(mpi_settings.values())
    }
    lines = []
    for done, (tokens, hidden) in enumerate(sizes):
        for operation in OPERATIONS:
            case = f"{operation}/{tokens}/{hidden}"
            report.progress(done, len(sizes), case)
            iterations = iterations_for(tokens)
            measures = {"accord": partial(accord.measure, case, 0, iterations)}
            if operation != "step":
                private = f"{operation}_private/{tokens}/{hidden}"
                measures["accord, private"] = partial(accord.measure, private, 0, iterations)
                measures["memcpy"] = partial(accord.measure, f"memcpy/{tokens}/{hidden}", 0, iterations)
            if case in mpi_settings:
                measures["MPI"] = partial(mpi[mpi_settings[case]].measure, case, 0, iterations)
            measures["gloo"] = partial(gloo.measure, case, 0, max(1, iterations // 10))
            medians = report.in_turn(measures, arguments.rounds)
            limit = limit_of(operation, tokens, medians)
            bounds = {name: medians.pop(name) for name in ("accord, private", "memcpy") if name in medians}
            name = f"{operation}, {tokens} tokens of {hidden}"
            lines.append(report.result("expert", name, "us", medians, limit) | {"bounds": bounds})
        beyond = accord.measure(f"memory/{tokens}/{hidden}", 0, 1)
        received = 2 * tokens * TOP_K * hidden / 2**20
        line = report.result(
            "expert", f"memory beyond, {tokens} tokens of {hidden}", "MiB", {"accord": beyond}, received / 10
        )
        lines.append(line | {"bounds": {}})
    report.progress(len(sizes), len(sizes), "done")
    for job in [accord, gloo, *mpi.values()]:
        job.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench expert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/expert.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="of each rank")
    parser.add_argument("--hidden", type=int, nargs="+", default=HIDDEN)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        lines = measure(arguments, Path(directory))
    report.write("expert", lines, arguments.output)
    for line in lines:
        if line["bounds"]:
            print(line["case"] + ": " + ", ".join(f"{name} {value:.1f} us" for name, value in line["bounds"].items()))


if __name__ == "__main__":
    main()
