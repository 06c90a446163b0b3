"""Adds an array over all ranks: accord run -n 2 examples/hello_communicator.py"""

import numpy as np

import accord

with accord.Communicator.from_environment() as comm:
    values = np.full(4, comm.rank + 1, dtype=np.float32)
    comm.all_reduce(values)  # in place; every rank ends with the same bits
    print(f"rank {comm.rank} of {comm.size}: {values}")
