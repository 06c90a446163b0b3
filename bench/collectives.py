"""Collectives on the ranks of this host: accord, OpenMPI (two settings) and gloo, in one interleaved run.

Each contender is a set of processes, one pinned to each core, that sleep in a read while another one is measured. Peers that
are not installed are left out with a line that says so.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO

import report

SIZES = [8, 1 << 10, 8 << 10, 128 << 10, 2 << 20, 64 << 20]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"]
OPENMPI_SETTINGS = {
    "openmpi": [],
    "openmpi vader": ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"],
}


class Contender:
    """Processes of one peer, driven through a pair of pipes for each rank."""

    def __init__(self, commands: list[tuple[list[str], dict[str, str]]], ranks: int, directory: Path):
        self.path = directory / "rank"
        directory.mkdir()
        for rank in range(ranks):
            for end in ("in", "out"):
                os.mkfifo(f"{self.path}.{rank}.{end}")
        self.processes = [
            subprocess.Popen([*command, str(self.path)], env={**os.environ, **environment})
            for command, environment in commands
        ]
        self.pipes = ExitStack()
        self.inputs = [self.pipes.enter_context(self._open_input(r)) for r in range(ranks)]
        self.outputs = [self.pipes.enter_context(open(f"{self.path}.{r}.out")) for r in range(ranks)]  # noqa: SIM115

    def _open_input(self, rank: int) -> IO[str]:
        """The pipe that the rank reads, once it has opened it; an error if a process ended before that."""
        while True:
            try:
                pipe = os.open(f"{self.path}.{rank}.in", os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                if any(process.poll() is not None for process in self.processes):
                    raise RuntimeError(
                        f"{self.path.parent.name}: a process ended before it could be measured"
                    ) from None
                time.sleep(0.01)
            else:
                os.set_blocking(pipe, True)
                return os.fdopen(pipe, "w")

    def measure(self, collective: str, size: int, iterations: int) -> float:
        """Microseconds of one operation, on the slowest rank."""
        for pipe in self.inputs:
            print(collective, size, iterations, file=pipe, flush=True)
        answers = [pipe.readline().strip() for pipe in self.outputs]
        for answer in answers:
            if not answer or answer.startswith("error"):
                raise RuntimeError(f"{self.path.parent.name}: {collective} of {size} B: {answer or 'a rank ended'}")
        return max(map(float, answers))

    def close(self) -> None:
        self.pipes.close()
        for process in self.processes:
            process.wait(timeout=60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environments(ranks: int) -> list[dict[str, str]]:
    port = str(free_port())
    return [
        {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for rank in range(ranks)
    ]


def contenders(build: Path, ranks: int, directory: Path) -> dict[str, Contender]:
    here = Path(__file__).parent
    found = {"accord": [([str(build / "bin/bench_collectives_accord")], env) for env in rank_environments(ranks)]}
    mpi = build / "bin/bench_collectives_openmpi"
    if mpi.exists() and shutil.which("mpirun"):
        launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        for name, setting in OPENMPI_SETTINGS.items():
            found[name] = [([*launch, *setting, str(mpi)], {})]
    else:
        print("left out: OpenMPI (install openmpi-bin and libopenmpi-dev, then build again)")
    try:
        import torch.distributed  # noqa: F401

        found["gloo"] = [([sys.executable, str(here / "collectives_gloo.py")], env) for env in rank_environments(ranks)]
    except ImportError:
        print("left out: gloo (it comes with torch)")
    return {name: Contender(commands, ranks, directory / name.replace(" ", "_")) for name, commands in found.items()}


def iterations_for(collective: str, size: int, contender: str) -> int:
    slow = contender == "gloo"
    if collective == "barrier" or size <= 8 << 10:
        return 200 if slow else 20000
    return max(2, min(100 if slow else 1000, (64 << 20) // size))


def limit_of(collective: str, size: int, medians: dict[str, float]) -> float | None:
    """All_reduce of two ranks: no slower than the best OpenMPI, and at 8 B a hundred times as fast as gloo."""
    if collective != "all_reduce" or size not in (8, 8 << 10, 128 << 10, 2 << 20):
        return None
    limits = [medians[name] for name in OPENMPI_SETTINGS if name in medians]
    if size == 8 and "gloo" in medians:
        limits.append(medians["gloo"] / 100)
    return min(limits, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/collectives.json"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--collectives", nargs="+", default=COLLECTIVES, choices=COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--only", nargs="+", help="contenders to measure")
    arguments = parser.parse_args()

    cases = [(c, s) for c in arguments.collectives for s in ([0] if c == "barrier" else arguments.sizes)]
    results = []
    with tempfile.TemporaryDirectory() as directory:
        peers = contenders(arguments.build, arguments.ranks, Path(directory))
        chosen = {name: peer for name, peer in peers.items() if not arguments.only or name in arguments.only}
        for done, (collective, size) in enumerate(cases):
            case = f"{collective} {size} B x {arguments.ranks}"
            report.progress(done, len(cases), case)
            measures = {
                name: partial(peer.measure, collective, size, iterations_for(collective, size, name))
                for name, peer in chosen.items()
            }
            medians = report.in_turn(measures, arguments.rounds)
            limit = limit_of(collective, size, medians) if arguments.ranks == 2 else None
            results.append(report.result("collectives", case, "us", medians, limit))
        report.progress(len(cases), len(cases), "done")
        for peer in peers.values():
            peer.close()
    report.write("collectives", results, arguments.output)


if __name__ == "__main__":
    main()
