"""Models in C++ engines on one and two ranks, in interleaved runs.

Part `sentences`: MiniLM embeddings, compared with PyTorch eager on one thread. Each rank and the peer have one core.
In the lines "TP 2" the engine on one rank is one of the peers, so that their ratio is the gain of the second rank if
PyTorch is not faster.
Part `language`: two Llamas (language.py).
Part `load`: time to their first token, from the page cache and without it, and their memory (load.py).
Part `sums`: the work between two products on two ranks (all_reduce, residual and RMSNorm of 8 KB) as one step,
compared with three steps (sums.py) and with the hand-written sum of two ranks alone (collectives/bound.cpp), which
shows how far apart the cores are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from bench import report
from bench.contender import Contender, rank_environments
from bench.engine import language, llama, load, sums

# The gain required of a second rank on its own core, at batch 8, length 128.
GAIN_OF_SECOND_RANK = 1.5
PARTS = ["sentences", "sums", "language", "load"]
# Limit for all_reduce, residual and norm of 8 KB together, in us.
SUMS_LIMIT = 1.5
SUMS_RUNS = 100
SUMS_BYTES = 8192
SHAPES = ["1x7", "1x128", "8x7", "8x128", "8x512"]


def contenders(build: Path, package: Path, directory: Path) -> dict[str, Contender]:
    """Returns accord on one rank, accord on two, and PyTorch."""
    program = [str(build / "bin/bench_engine_accord"), str(package)]
    commands = {f"TP {ranks}": [(program, env) for env in rank_environments(ranks)] for ranks in (1, 2)}
    found = {name: Contender(lines, len(lines), directory / name.replace(" ", "_")) for name, lines in commands.items()}
    torch_peer = [([sys.executable, "-m", "bench.engine.torch_rank"], {})]
    found["torch eager"] = Contender(torch_peer, 1, directory / "torch")
    return found


def iterations_for(shape: str) -> int:
    batch, length = map(int, shape.split("x"))
    return max(2, 2000 // (batch * length))


def measure_sentences(build: Path, package: Path, rounds: int, shapes: list[str]) -> list[dict]:
    """Returns the report lines of the sentence embeddings."""
    one_rank, two_ranks = [], []
    with tempfile.TemporaryDirectory() as directory:
        peers = contenders(build, package, Path(directory))
        for done, shape in enumerate(shapes):
            report.progress(done, len(shapes), shape)
            iterations = iterations_for(shape)
            measures = {
                name: lambda peer=peer, shape=shape, n=iterations: peer.measure(shape, 0, n)
                for name, peer in peers.items()
            }
            medians = report.in_turn(measures, rounds)
            torch_time = {"torch eager": medians["torch eager"]}
            with_torch = {"accord": medians["TP 1"], **torch_time}
            one_rank.append(report.result("engine", f"TP 1, {shape}", "ms", with_torch, medians["torch eager"]))
            with_one = {"accord": medians["TP 2"], "accord TP 1": medians["TP 1"], **torch_time}
            limit = medians["TP 1"] / GAIN_OF_SECOND_RANK if shape == "8x128" else None
            two_ranks.append(report.result("engine", f"TP 2, {shape}", "ms", with_one, limit))
        report.progress(len(shapes), len(shapes), "done")
        for peer in peers.values():
            peer.close()
    return one_rank + two_ranks


def measure_sums(build: Path, rounds: int) -> list[dict]:
    """Returns the report lines of sums over the ranks."""
    lines = []
    cases = [("float32", 2048), ("bfloat16", 4096)]
    for done, (dtype, width) in enumerate(cases):
        report.progress(done, len(cases), f"sums {dtype}")
        with tempfile.TemporaryDirectory() as directory:
            ranks = {}
            for name, whole in (("accord", True), ("three steps", False)):
                package = Path(directory) / f"{whole}.accord"
                sums.export_sums(package, width, getattr(torch, dtype), whole=whole)
                program = [str(build / "bin/bench_engine_accord"), str(package)]
                ranks[name] = Contender(
                    [(program, env) for env in rank_environments(2)], 2, Path(directory) / f"{whole}"
                )
            measures = {name: lambda peer=peer: peer.measure("sums", 0, SUMS_RUNS) for name, peer in ranks.items()}
            bound = Contender([([str(build / "bin/bench_collectives_bound")], {})], 2, Path(directory) / "bound")
            measures["sum by hand"] = lambda bound=bound: bound.measure("private", SUMS_BYTES, SUMS_RUNS * sums.LAYERS)
            medians = report.in_turn(measures, rounds)
            for peer in (*ranks.values(), bound):
                peer.close()
        lines.append(report.result("engine", f"sum and norm of {width} x {dtype}", "us", medians, SUMS_LIMIT))
    report.progress(len(cases), len(cases), "done")
    return lines


def measure_language(options: language.Options, models: list[str], precisions: list[str]) -> list[dict]:
    """Returns the report lines of the language models."""
    options.files.mkdir(parents=True, exist_ok=True)
    cases = [(model, precision) for model in models for precision in precisions]
    lines = []
    for done, (model, precision) in enumerate(cases):
        report.progress(done, len(cases), f"{model} {precision}")
        with tempfile.TemporaryDirectory() as directory:
            lines += language.measure(model, precision, options, Path(directory))
    report.progress(len(cases), len(cases), "done")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/engine.json"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--package", type=Path, default=Path("build/demo/minilm.accord"), help="as examples/export_minilm.py writes it"
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="of sentences: batch x length")
    parser.add_argument("--models", nargs="+", choices=list(llama.MODELS), default=list(llama.MODELS))
    parser.add_argument("--precisions", nargs="+", choices=llama.PRECISIONS, default=llama.PRECISIONS)
    parser.add_argument("--cases", nargs="+", choices=list(language.CASES), default=list(language.CASES))
    parser.add_argument("--files", type=Path, default=Path("build/bench/models"), help="the folder of the Llamas")
    parser.add_argument("--peers", nargs="*", choices=list(language.PEERS), default=list(language.PEERS))
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers")
    arguments = parser.parse_args()

    lines = []
    if "sentences" in arguments.parts:
        lines += measure_sentences(arguments.build, arguments.package, arguments.rounds, arguments.shapes)
    if "sums" in arguments.parts:
        lines += measure_sums(arguments.build, arguments.rounds)
    if "language" in arguments.parts:
        options = language.Options(
            arguments.build,
            arguments.files,
            arguments.rounds,
            arguments.python,
            arguments.peers,
            arguments.cases,
        )
        lines += measure_language(options, arguments.models, arguments.precisions)
    if "load" in arguments.parts:
        arguments.files.mkdir(parents=True, exist_ok=True)
        for model in arguments.models:
            for precision in arguments.precisions:
                lines += load.measure(model, precision, arguments.files, arguments.rounds)
    report.write("engine", lines, arguments.output)


if __name__ == "__main__":
    main()
