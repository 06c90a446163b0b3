"""A long prompt on one rank, and on two that divide its tokens (group "cp") or the weights ("tp"), with one thread and
one core each, in interleaved runs.

"accord" are the two that divide the tokens. Reports the time of the prompt and of one token after it, the MiB of the
cache on a rank, and the largest difference of a logit from those of one rank, in millionths of the largest logit. Fails
if a figure is not what accord promises.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from transformers import LlamaConfig, LlamaForCausalLM

import accord
from bench import report
from bench.contender import Contender, rank_environments
from bench.engine import llama

# Promises for two ranks and their group "cp".
PREFILL_GAIN, CACHE_PART, LOGITS_TOLERANCE = 1.7, 0.55, 1e-4
CONTENDERS = {"one rank": ("cp", 1), "accord": ("cp", 2), "two ranks of tp": ("tp", 2)}
TIMEOUT = 600


def package(model: str, tokens: int, folder: Path) -> Path:
    """Returns the package of a Llama with random weights, exported on first use."""
    path = folder / f"{model}-{tokens}.accord"
    if not path.exists():
        config = LlamaConfig(**llama.MODELS[model], max_position_embeddings=tokens, rope_theta=5e5, eos_token_id=None)
        accord.export(LlamaForCausalLM(config).eval(), path=path, sharding="auto", check=False)
    return path


def measure(arguments: argparse.Namespace, folder: Path) -> list[dict]:
    path = package(arguments.model, arguments.tokens + 1, arguments.files or folder)
    contenders = {
        name: Contender(
            [([sys.executable, "-m", "bench.long_context.rank", str(path), group], env) for env in environments],
            ranks,
            folder / name.replace(" ", "_"),
        )
        for name, (group, ranks) in CONTENDERS.items()
        for environments in [rank_environments(ranks)]
    }
    tokens, lines = arguments.tokens, []
    try:
        for case, iterations, rounds in (("prefill", 1, arguments.rounds), ("decode", 10, 2 * arguments.rounds)):
            medians = report.in_turn(
                {name: partial(each.measure, case, tokens, iterations, TIMEOUT) for name, each in contenders.items()},
                rounds,
            )
            limit = medians["one rank"] / PREFILL_GAIN if case == "prefill" else None
            lines.append(report.result("long context", f"{case} {tokens}", "ms", medians, limit))
        cache = {name: each.measure("cache", tokens, 1) / 2**20 for name, each in contenders.items()}
        lines.append(report.result("long context", "cache of a rank", "MiB", cache, CACHE_PART * cache["one rank"]))
        for each in contenders.values():
            each.measure("logits", tokens, 1, TIMEOUT)
        logits = {name: np.load(f"{each.path}.npy") for name, each in contenders.items()}
    finally:
        for each in contenders.values():
            each.kill()
    scale = np.abs(logits["one rank"]).max()
    away = {name: float(np.abs(of - logits["one rank"]).max() / scale * 1e6) for name, of in logits.items()}
    lines.append(report.result("long context", "logits off by", "ppm", away, LOGITS_TOLERANCE * 1e6))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench long_context", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/long_context.json"))
    parser.add_argument("--model", choices=list(llama.MODELS), default="60M")
    parser.add_argument("--tokens", type=int, default=8192, help="of the prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=Path, help="folder that keeps the package")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = measure(arguments, Path(folder))
    report.write("long context", lines, arguments.output)
    if any(line["limit"] is not None and line["accord"] > line["limit"] for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
