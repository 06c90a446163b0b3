"""The language models of the engine benchmark: prompts and decoding of two Llamas on one rank and two, compared with
llama.cpp, transformers and others, and with a plain read of the bytes that a decoded token needs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import report
from bench.contender import Contender, memory_of, rank_environments
from bench.engine import llama

# The files that each peer reads, written by llama_graph.py; transformers creates its model itself.
PEERS = {
    "llama.cpp": ".gguf",
    "openvino": ".xml",
    "onnxruntime": ".onnx",
    "aotinductor": ".pt2",
    "transformers": "",
}
PRECISIONS = {  # the other peers have all
    "onnxruntime": ["fp32"],
    "aotinductor": ["fp32", "bf16"],
    "transformers": ["fp32", "bf16"],
}
QUANTIZED = ["int8", "int4"]
# accord's promises: the fraction of a plain read's speed in decoding, and the gain of two ranks of one thread each
# over one.
OF_READ = {"fp32": 0.85, "bf16": 0.85, "int8": 0.85, "int4": 0.8}
GAIN_OF_SECOND_RANK = {"prefill": 1.8, "decode": 1.6}
CASES = {"decode": llama.CONTEXT, "prefill": llama.PREFILL}  # with their numbers of tokens
ITERATIONS = {"60M": {"prefill": 3, "decode": 30}, "1.2B": {"prefill": 1, "decode": 5}}


@dataclass(frozen=True)
class Options:
    build: Path
    files: Path  # models are kept there between runs
    rounds: int
    python: str  # an interpreter with the peers installed
    peers: list[str]
    cases: list[str]  # of CASES


def decoded_bytes(package: Path) -> int:
    """Returns the bytes of the weights that every decoded token reads: all but a separate embedding table, of which
    it reads one row.
    """
    import accord

    held = accord.inspect(package)["weight_bytes"]
    name, precision = package.stem.rsplit("-", 1)
    config = llama.MODELS[name]
    if config["tie_word_embeddings"]:
        return held
    return held - config["vocab_size"] * config["hidden_size"] * (4 if precision == "fp32" else 2)


def contenders(name: str, precision: str, options: Options, directory: Path) -> dict[str, Contender]:
    """Starts the available contenders, and prints which are not available and why."""
    program = ["-m", "bench.engine.language_rank"]
    package = llama.package(name, precision, options.files)
    cores = report.cores()
    found = {}

    def start(as_name: str, python: str, kind: str, file: Path | str, ranks: int, threads: int) -> None:
        commands = [([python, *program, kind, str(file), str(threads)], env) for env in rank_environments(ranks)]
        found[as_name] = Contender(commands, ranks, directory / as_name.replace(" ", "_"))

    start("accord", sys.executable, "accord", package, 1, cores)
    if precision in QUANTIZED:
        start("accord, wide rows", sys.executable, "accord-wide", package, 1, cores)
    start("accord, one thread", sys.executable, "accord", package, 1, 1)
    start("accord, two ranks", sys.executable, "accord", package, 2, 1)
    for peer in options.peers:
        if precision not in PRECISIONS.get(peer, llama.PRECISIONS):
            continue
        command = [options.python, *program, "--missing", peer, "", ""]
        why = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if why:
            print(f"left out: {peer}: {why}")
            continue
        file = f"{name}-{precision}"
        if PEERS[peer]:
            file = str(options.files / (file + PEERS[peer]))
            if not Path(file).exists():
                graph = [options.python, "-m", "bench.engine.llama_graph"]
                subprocess.run([*graph, name, precision, file], check=True)
        start(peer, options.python, peer, file, 1, cores)
    read = [str(options.build / "bin/bench_engine_read"), str(next(package.glob("weights-*.safetensors")))]
    found["read"] = Contender([(read, {"THREADS": str(cores)})], 1, directory / "read")
    return found


def memory(contender: Contender) -> float:
    """Returns the resident MiB of its processes. Not Pss: contenders that map the same weights would share pages."""
    return sum(memory_of(process.pid, "Rss") for process in contender.processes)


def measure(name: str, precision: str, options: Options, directory: Path) -> list[dict]:
    """Returns the report lines of one model in one precision."""
    found = contenders(name, precision, options, directory)
    read_bytes = decoded_bytes(llama.package(name, precision, options.files))
    lines = []
    try:
        for case in options.cases:
            tokens, steps = CASES[case], ITERATIONS[name][case]
            requested = {
                as_name: ("read", read_bytes) if as_name == "read" else (case, tokens)
                for as_name in found
                if case == "decode" or as_name != "read"
            }
            medians = report.in_turn(
                {
                    as_name: partial(found[as_name].measure, kind, size, steps, 900)
                    for as_name, (kind, size) in requested.items()
                },
                options.rounds,
            )
            of_read = medians.pop("read", None)
            limit = of_read / OF_READ[precision] if of_read else None
            alone, both = medians.pop("accord, one thread"), medians.pop("accord, two ranks")
            title = f"{name} {precision}, {case} of {tokens}" if case == "prefill" else f"{name} {precision}, {case}"
            wide = medians.pop("accord, wide rows", None)
            lines.append(report.result("engine", title, "ms", medians, limit))
            if wide is not None:
                lines.append(report.result("engine", f"{title}, wide rows", "ms", {**medians, "accord": wide}))
            two = {"accord": both, "one thread": alone}
            lines.append(report.result("engine", f"{title}, two ranks", "ms", two, alone / GAIN_OF_SECOND_RANK[case]))
        held = {as_name: memory(peer) for as_name, peer in found.items() if as_name != "read"}
        two = held.pop("accord, two ranks")
        for variant in ("accord, one thread", "accord, wide rows"):
            held.pop(variant, None)
        lines.append(report.result("engine", f"{name} {precision}, memory", "MiB", held))
        lines.append(report.result("engine", f"{name} {precision}, memory, two ranks", "MiB", {"accord": two}))
    finally:
        for peer in found.values():
            peer.close()
    return lines
