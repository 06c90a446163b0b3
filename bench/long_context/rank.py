"""One rank of a contender: an engine whose ranks divide the tokens of each sequence, the weights, or nothing.

    python -m bench.long_context.rank PACKAGE GROUP PATH

GROUP is "cp" or "tp". Commands ("prefill 8192 1": case, tokens, iterations) are read from PATH.RANK.in, and
milliseconds are written to PATH.RANK.out. "prefill N" computes a prompt of N tokens in steps of STEP, and the logits of
the last one; "decode N" computes one token after N others; "logits N" writes those of both to PATH.npy instead of a
time; "cache N" returns the bytes of the cache.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import accord
from bench.engine.language_rank import ids, measure

STEP = 512  # tokens


class Prompt:
    """A context with a cache for one sequence of `tokens` tokens and one more."""

    def __init__(self, package: str, group: str, tokens: int):
        comm = accord.Communicator.from_environment()
        self.rank, self.tokens = comm.rank, tokens
        self.block = 16 * comm.size if group == "cp" else 16
        self.blocks = list(range(tokens // self.block + 1))
        self.context = accord.load(package, {group: comm}, threads=1).create_context()
        self.context.create_cache(len(self.blocks), block_tokens=self.block, dtype="bfloat16")
        self.is_filled = False

    def step(self, first: int, count: int) -> np.ndarray:
        """Returns the logits of the last row."""
        given = np.array(ids(first + count)[first:])
        positions = np.arange(first, first + count)
        run = self.context.run_sequences([(count, first, self.blocks)], given, positions, np.array([count - 1]))
        return np.array(run[0])

    def prefill(self) -> np.ndarray:
        self.is_filled = True
        steps = [self.step(first, min(STEP, self.tokens - first)) for first in range(0, self.tokens, STEP)]
        return steps[-1]

    def decode(self) -> np.ndarray:
        if not self.is_filled:
            self.prefill()
        return self.step(self.tokens, 1)


def main() -> None:
    package, group, path = sys.argv[1:]
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    prompt = None
    with open(f"{path}.{rank}.in") as commands, open(f"{path}.{rank}.out", "w") as answers:
        for line in commands:
            case, tokens, iterations = line.split()
            prompt = prompt or Prompt(package, group, int(tokens))
            if case == "cache":
                answer = prompt.context.cache_bytes
            elif case == "logits":
                logits = np.concatenate([prompt.prefill(), prompt.decode()])
                if rank == 0:
                    np.save(f"{path}.npy", logits)
                answer = 0
            else:
                answer = measure(getattr(prompt, case), int(iterations))
            print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
