"""One rank of the benchmark `torch_windows`.

python -m bench.torch_windows.rank accord|gloo|copy PATH     PATH as in worker.hpp
"""

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from bench.collectives.torch_rank import Call, keep_to_one_core, serve

Make = Callable[[str, int], Call]


def windows() -> Make:
    """Puts and signals of accord."""
    rank, made = dist.get_rank(), {}
    other = 1 - rank

    def signal(window) -> None:
        window.signal(other, async_op=False)

    def wait(window) -> None:
        window.wait_signal(other, async_op=False)

    def put(window, values: torch.Tensor) -> None:
        window.put(values, other, 0, async_op=False)

    def call(name: str, size: int) -> Call:
        values = torch.ones(size // 4)
        if size not in made:
            made[size] = dist._new_window(torch.zeros(size // 4))
        window = made[size]
        both = {"signal": (signal,), "put": (lambda w: put(w, values), signal)}.get(name)
        if name == "stream":
            return {0: lambda: (put(window, values), signal(window)), 1: lambda: wait(window)}[rank]
        order = (*both, wait) if rank == 0 else (wait, *both)
        return lambda: [step(window) for step in order]

    return call


def messages() -> Make:
    """The same by messages of gloo. A signal is a message of 4 B."""
    rank = dist.get_rank()
    other = 1 - rank

    def call(name: str, size: int) -> Call:
        values = torch.ones(max(1, size // 4))
        if name == "stream":
            return {0: lambda: dist.send(values, other), 1: lambda: dist.recv(values, other)}[rank]
        calls = {0: (dist.send, dist.recv), 1: (dist.recv, dist.send)}[rank]
        return lambda: [step(values, other) for step in calls]

    return call


def copies() -> Make:
    """As many bytes from memory to memory, in one process."""

    def call(name: str, size: int) -> Call:
        source, target = torch.ones(size // 4), torch.zeros(size // 4)
        if name == "stream":
            return lambda: target.copy_(source)
        return lambda: (target.copy_(source), source.copy_(target))

    return call


def main() -> None:
    kind, path = sys.argv[1:]
    rank = int(os.environ["RANK"])
    keep_to_one_core(rank)
    torch.set_num_threads(1)
    if kind != "copy":
        dist.init_process_group(kind)
    make = {"accord": windows, "gloo": messages, "copy": copies}[kind]()
    serve(path, rank, lambda name, size, ranks: make(name, size))


if __name__ == "__main__":
    main()
