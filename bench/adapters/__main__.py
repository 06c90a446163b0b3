"""The cost of adapters: a step of 1 and of 8 sequences, and a prompt of 512 tokens, on one rank with all processors.

The peer is the package without adapters, in interleaved runs. The package with them has 8 adapters of rank 16 on all
linear layers of each block, with random matrices. Requests choose none, all the same one, or each another one.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

import accord
from bench import report

ADAPTERS, RANK = 8, 16
LAYER = re.compile(r"weight\.(.+\.(?:q|k|v|o|gate|up|down)_proj)\.weight")
CONTEXT, TOKENS, PROMPT = 64, 32, 512
_NUMBERS = itertools.count()
SEQUENCES = (1, 8)
WITHOUT = "without adapters"
CHOICES = {
    WITHOUT: lambda index: None,
    "none chosen": lambda index: None,
    "one adapter": lambda index: "adapter-0",
    "eight adapters": lambda index: f"adapter-{index % ADAPTERS}",
}


def make_adapters(package: Path, folder: Path) -> dict[str, Path]:
    """Writes adapters for all projections of the package."""
    graph = json.loads((package / "graph.json").read_text())
    layers = {match[1]: one["shape"] for one in graph["parameters"] if (match := LAYER.fullmatch(one["name"]))}
    generator = torch.Generator().manual_seed(0)
    adapters = {}
    for number in range(ADAPTERS):
        adapters[f"adapter-{number}"] = one = folder / str(number)
        one.mkdir()
        (one / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}))
        tensors = {}
        for module, (out_size, in_size) in layers.items():
            for side, shape in (("A", (RANK, in_size)), ("B", (out_size, RANK))):
                name = f"base_model.model.{module}.lora_{side}.weight"
                tensors[name] = 0.02 * torch.randn(shape, generator=generator)
        save_file(tensors, one / "adapter_model.safetensors")
    return adapters


def events_of(stream: accord.GenerationStream) -> list[float]:
    """Returns when the tokens of an answer arrived."""
    times = []
    for event in stream:
        if event.error is not None:
            raise event.error
        times.append(time.perf_counter())
    return times


def submit(model: accord.LanguageModel, tokens: int, answer: int, adapter: str | None) -> accord.GenerationStream:
    """Submits a prompt of which no other request has computed anything."""
    prompt = [next(_NUMBERS) % 40_000 + 1] * tokens
    return model.submit(prompt, max_new_tokens=answer, stop_tokens=[], adapter=adapter)


def step_seconds(count: int, model: accord.LanguageModel, adapter_of: Callable[[int], str | None]) -> float:
    """Returns the median time of a step of `count` sequences."""
    streams = [submit(model, CONTEXT, TOKENS, adapter_of(index)) for index in range(count)]
    times, *_ = [events_of(stream) for stream in streams]
    return statistics.median(b - a for a, b in itertools.pairwise(times[1:]))


def prompt_seconds(model: accord.LanguageModel, adapter_of: Callable[[int], str | None]) -> float:
    begin = time.perf_counter()
    return events_of(submit(model, PROMPT, 1, adapter_of(0)))[0] - begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench adapters", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/adapters.json"))
    parser.add_argument("--package", type=Path, default=Path("build/demo/smollm2.accord"), help="`make demo` makes it")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory(dir=arguments.package.parent) as folder:
        adapters = make_adapters(arguments.package, Path(folder))
        adapted = accord.export_adapters(arguments.package, adapters, path=Path(folder) / "adapted.accord")
        threads = len(os.sched_getaffinity(0))
        with accord.Communicator.alone() as comm:
            models = []
            for path in (arguments.package, adapted):
                engine = accord.load(path, dict.fromkeys(accord.inspect(path)["groups"], comm), threads=threads)
                models.append(accord.LanguageModel.create(engine, all_ranks=comm, cache_tokens=8192))
            cases = {f"step of {count}": functools.partial(step_seconds, count) for count in SEQUENCES}
            for case, measure in {**cases, "prompt of 512": prompt_seconds}.items():
                contenders = {
                    choice: functools.partial(measure, models[choice != WITHOUT], adapter_of)
                    for choice, adapter_of in CHOICES.items()
                }
                report.in_turn(contenders, 1)  # warms up
                medians = {
                    choice: 1e3 * value for choice, value in report.in_turn(contenders, arguments.rounds).items()
                }
                print(f"{case}:", ", ".join(f"{one} {value / medians[WITHOUT]:.3f}" for one, value in medians.items()))
                medians["accord"] = medians.pop("eight adapters")
                lines.append(report.result("adapters", case, "ms", medians))
            for model in models:
                model.stop()
    report.write("adapters", lines, arguments.output)


if __name__ == "__main__":
    main()
