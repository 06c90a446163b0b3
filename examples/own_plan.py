"""Defines an all_gather plan, registers it, and calls all_gather: accord run -n 3 examples/own_plan.py"""

import numpy as np

import accord


def two_ways_round(ranks: int) -> accord.plan.Program:
    """A ring in both directions: half of each part is sent one way, half the other."""
    program = accord.plan.Program("all_gather", ranks=ranks, name="two_ways_round", chunks=2)
    for index in range(ranks):
        mine = program.rank(index)
        for way, half in ((1, 0), (-1, 1)):
            previous, following = program.rank((index - way) % ranks), program.rank((index + way) % ranks)
            own = 2 * index + half
            mine.copy(mine.input[half], [mine.output[own], mine.scratch[own]]).signal(following, half)
            for step in range(1, ranks):
                chunk = 2 * ((index - way * step) % ranks) + half
                mine.wait(previous, 2 * (step - 1) + half)
                if step < ranks - 1:
                    mine.copy(previous.scratch[chunk], [mine.output[chunk], mine.scratch[chunk]])
                    mine.signal(following, 2 * step + half)
                else:
                    mine.copy(previous.scratch[chunk], mine.output[chunk])
    return program


with accord.Communicator.from_environment() as comm:
    if comm.size > 1:
        two_ways_round(comm.size).register(bytes="0-inf")  # verified first; every rank registers the same plan
    mine, all_parts = np.full(4, comm.rank, dtype=np.float32), np.empty(4 * comm.size, dtype=np.float32)
    comm.all_gather(mine, all_parts)
    print(f"rank {comm.rank} of {comm.size}: {all_parts[::4]}")
