"""The gloo peer of the collectives benchmark: one rank of torch.distributed over gloo."""

import os
import sys
import time

import torch
import torch.distributed as dist


def operation(collective: str, size: int, ranks: int):
    """A call of `collective` on `size` bytes, ready to be repeated."""
    count = size // 4
    values, gathered = torch.ones(count), torch.ones(count * ranks)
    part, parts = torch.ones(count // ranks), torch.ones(count // ranks * ranks)
    return {
        "all_reduce": lambda: dist.all_reduce(values),
        "all_gather": lambda: dist.all_gather_into_tensor(gathered, values),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, parts),
        "broadcast": lambda: dist.broadcast(values, 0),
        "barrier": dist.barrier,
    }[collective]


def main() -> None:
    rank, ranks, path = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(f"{path}.{rank}.in") as commands, open(f"{path}.{rank}.out", "w") as answers:
        for line in commands:
            collective, size, iterations = line.split()[0], *map(int, line.split()[1:])
            call = operation(collective, size, ranks)
            for _ in range(iterations // 10 + 2):
                call()
            start = time.perf_counter()
            for _ in range(iterations):
                call()
            print((time.perf_counter() - start) / iterations * 1e6, file=answers, flush=True)


if __name__ == "__main__":
    main()
