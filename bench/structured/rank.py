"""A rank of the measurement: python -m bench.structured.rank PACKAGE TOKENS ROUNDS. Rank 0 prints JSON.

Alternates runs with and without a mask, for 1 and 8 sequences that draw as many tokens each. The grammar cannot end
before. Also measures how long the thread of masks computes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import accord
from accord import grammar
from bench.structured.schemas import SCHEMAS

SEQUENCES = (1, 8)
LONG = {"type": "array", "minItems": 500, "items": {"anyOf": [SCHEMAS["order"], SCHEMAS["city"], SCHEMAS["points"]]}}
PROMPT = "A list of orders and cities as JSON:"


def run(model: accord.LanguageModel, prompt: list[int], count: int, tokens: int, seed: int, mask: object) -> float:
    """Returns the seconds of a step."""
    options = {"samples": count, "max_new_tokens": tokens, "temperature": 1.0, "seed": seed, "stop_tokens": []}
    first = last = 0.0
    for event in model.submit(prompt, mask=mask, **options):
        if event.error is not None:
            raise event.error
        last = time.perf_counter()
        first = first or last
    return (last - first) / (tokens - 1)


class Timed:
    """A mask, and how long its thread computed."""

    def __init__(self, mask: grammar.Mask):
        self._mask = mask
        self.seconds = 0.0
        self.calls = 0

    def __call__(self, sample: int, generated: object) -> bytes:
        begin = time.thread_time()
        bits = self._mask(sample, generated)
        self.seconds += time.thread_time() - begin
        self.calls += 1
        return bits


def main() -> None:
    package, tokens, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    comm = accord.Communicator.from_environment(name="structured")
    engine = accord.load(package, dict.fromkeys(accord.inspect(package)["groups"], comm))
    model = accord.LanguageModel.create(engine, all_ranks=comm, cache_tokens=8 * (tokens + 64))
    if not model.leads:
        model.follow()
        return
    tokenizer = accord.Tokenizer.load(f"{package}/tokenizer.json")
    masks = grammar.Masks(tokenizer, model.vocabulary, model.stop_tokens)
    prompt = tokenizer.encode(PROMPT)
    compiled = grammar.json_schema(LONG)
    results = []
    for count in SEQUENCES:
        plain, masked, timed = [], [], Timed(masks.mask(compiled))
        for seed in range(rounds + 1):
            pair = [run(model, prompt, count, tokens, seed, None)]
            timed = Timed(masks.mask(compiled))
            pair.append(run(model, prompt, count, tokens, seed, timed))
            if seed > 0:  # the first round warms up
                plain.append(pair[0])
                masked.append(pair[1])
        results.append(
            {
                "sequences": count,
                "plain": statistics.median(plain),
                "masked": statistics.median(masked),
                "ratio": statistics.median(b / a for a, b in zip(plain, masked, strict=True)),
                "mask": timed.seconds / timed.calls,
            }
        )
    print(json.dumps(results), flush=True)
    model.stop()


if __name__ == "__main__":
    main()
