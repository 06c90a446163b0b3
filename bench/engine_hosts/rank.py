"""A rank of the benchmark `engine_hosts`: ROUNDS SUMS LLAMA... measures every case of every package with each set of
options in turn.

Rank 0 prints a JSON object: milliseconds by case and options.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np

import accord

PROMPT = 512
WIDTH = 2048
ROWS = {"128 KB": 16, "2 MB": 256}  # of float32
SUM_OPTIONS = {"accord": {}, "int8": {"all_reduce_dtype": "int8"}}
PROMPT_OPTIONS = {**SUM_OPTIONS, "overlap": {"overlap_rows": 64}}


def measure(comm: accord.Communicator, runs: dict, rounds: int) -> dict[str, float]:
    """Returns medians of the slower rank's milliseconds, measured A B C A B C ..."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            comm.barrier()
            begin = time.perf_counter()
            run()
            took = np.array([time.perf_counter() - begin])
            comm.all_reduce(took, "max")
            if turn > 0:
                times[name].append(1e3 * float(took[0]))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    rounds, sums, llamas = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    at = np.arange(PROMPT)
    prompt, found = (at * 7919 % 32000, at, at[-1:]), {}
    with accord.Communicator.from_environment() as comm:
        engines = {name: accord.load(sums, {"tp": comm}, **options) for name, options in SUM_OPTIONS.items()}
        for case, rows in ROWS.items():
            x = np.random.default_rng(0).standard_normal((rows, WIDTH)).astype(np.float32)
            runs = {name: lambda engine=engine, x=x: engine.run(x) for name, engine in engines.items()}
            found[f"sums of {case} and their norms"] = measure(comm, runs, rounds)
        for path in llamas:
            engines = {name: accord.load(path, {"tp": comm}, **options) for name, options in PROMPT_OPTIONS.items()}
            runs = {name: lambda engine=engine: engine.run(*prompt) for name, engine in engines.items()}
            found[f"prompt of {PROMPT}, {path.rsplit('/', 1)[-1]}"] = measure(comm, runs, rounds)
        if comm.rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
