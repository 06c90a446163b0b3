"""MiniLM sentence embeddings in C++ engines on one and two ranks, beside PyTorch eager on one thread, in one interleaved run.

Each rank and the peer have one core. In the lines "TP 2" the engine on one rank is among the peers, so that their ratio is
the gain of the second rank if PyTorch is no faster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import report
from contender import Contender, rank_environments

# What a second rank on a core of its own must gain at batch 8, length 128.
GAIN_OF_SECOND_RANK = 1.5
SHAPES = ["1x7", "1x128", "8x7", "8x128", "8x512"]


def contenders(build: Path, package: Path, directory: Path) -> dict[str, Contender]:
    """accord on one rank, accord on two, and PyTorch."""
    program = [str(build / "bin/bench_engine_accord"), str(package)]
    commands = {f"TP {ranks}": [(program, env) for env in rank_environments(ranks)] for ranks in (1, 2)}
    found = {name: Contender(lines, len(lines), directory / name.replace(" ", "_")) for name, lines in commands.items()}
    torch_peer = [([sys.executable, str(Path(__file__).parent / "engine_torch.py")], {})]
    found["torch eager"] = Contender(torch_peer, 1, directory / "torch")
    return found


def iterations_for(shape: str) -> int:
    batch, length = map(int, shape.split("x"))
    return max(2, 2000 // (batch * length))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument(
        "--package", type=Path, default=Path("build/demo/minilm.accord"), help="as examples/export_minilm.py writes it"
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/engine.json"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="batch x length")
    arguments = parser.parse_args()

    one_rank, two_ranks = [], []
    with tempfile.TemporaryDirectory() as directory:
        peers = contenders(arguments.build, arguments.package, Path(directory))
        for done, shape in enumerate(arguments.shapes):
            report.progress(done, len(arguments.shapes), shape)
            iterations = iterations_for(shape)
            measures = {
                name: lambda peer=peer, shape=shape, n=iterations: peer.measure(shape, 0, n)
                for name, peer in peers.items()
            }
            medians = report.in_turn(measures, arguments.rounds)
            torch_time = {"torch eager": medians["torch eager"]}
            with_torch = {"accord": medians["TP 1"], **torch_time}
            one_rank.append(report.result("engine", f"TP 1, {shape}", "ms", with_torch, medians["torch eager"]))
            with_one = {"accord": medians["TP 2"], "accord TP 1": medians["TP 1"], **torch_time}
            limit = medians["TP 1"] / GAIN_OF_SECOND_RANK if shape == "8x128" else None
            two_ranks.append(report.result("engine", f"TP 2, {shape}", "ms", with_one, limit))
        report.progress(len(arguments.shapes), len(arguments.shapes), "done")
        for peer in peers.values():
            peer.close()
    report.write("engine", one_rank + two_ranks, arguments.output)


if __name__ == "__main__":
    main()
