"""A rank of load.py. Commands are read line by line: "connect", "load" (answered with the seconds until the first
token), "prompt".
"""

from __future__ import annotations

import sys
import time

import numpy as np  # noqa: F401 used by run_accord: its import time is not measured

import accord
from bench.engine.language_rank import accord_context, run_accord

PROMPT = 512


def main() -> None:
    package = sys.argv[1]
    comm = context = None

    for line in sys.stdin:
        if line.strip() == "connect":
            comm = accord.Communicator.from_environment()
            answer = "connected"
        elif line.strip() == "load":
            comm.barrier()
            start = time.perf_counter()
            context = accord_context(package, comm)
            run_accord(context, 0, 1)
            answer = str(time.perf_counter() - start)
        else:
            run_accord(context, 0, PROMPT)
            answer = "computed"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
