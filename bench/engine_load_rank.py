"""A rank of engine_load.py. Commands come line by line: "connect", "load" (its answer: seconds until the first token), "prompt"."""

from __future__ import annotations

import sys
import time

import numpy as np
from engine_language_rank import BLOCK, CACHE_DTYPE, MOST_TOKENS, ids

import accord

PROMPT = 512


def main() -> None:
    package = sys.argv[1]
    comm = context = None

    def run(tokens: int) -> None:
        blocks = list(range(MOST_TOKENS // BLOCK))
        given = np.array(ids(tokens))
        context.run_sequences([(tokens, 0, blocks)], given, np.arange(tokens), np.array([tokens - 1]))

    for line in sys.stdin:
        if line.strip() == "connect":
            comm = accord.Communicator.from_environment()
            answer = "connected"
        elif line.strip() == "load":
            comm.barrier()
            start = time.perf_counter()
            context = accord.load(package, {"tp": comm}).create_context()
            context.create_cache(MOST_TOKENS // BLOCK, block_tokens=BLOCK, dtype=CACHE_DTYPE)
            run(1)
            answer = str(time.perf_counter() - start)
        else:
            run(PROMPT)
            answer = "computed"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
