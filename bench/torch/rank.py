"""One rank of a backend of torch.distributed, for the benchmark `torch`.

python -m bench.torch.rank BACKEND PATH     PATH as in worker.hpp
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import accord.torch
from bench.collectives.torch_rank import Call, gloo, keep_to_one_core, serve

WIDTH = 1448  # five such layers have 10.5 million parameters
BATCH = 8


def training_step(kind: str) -> Call:
    """Returns a step of SGD on a model of 10.5 million parameters in fp32, on 8 samples, so that communication is a
    visible part of it.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(5)])
    if kind == "ddp_step":
        model = DistributedDataParallel(model)
    elif kind == "ddp_view_step":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if dist.get_backend() == "accord":
            accord.torch.in_window(model)
    else:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    samples = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(samples).sum().backward()
        optimizer.step()

    return step


def main() -> None:
    backend, path = sys.argv[1:]
    keep_to_one_core(int(os.environ["RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    collective = gloo()

    def operation(name: str, size: int, ranks: int) -> Call:
        if name.endswith("_step"):
            return training_step(name)
        if name == "ping_pong":
            values, rank = torch.ones(size // 4), dist.get_rank()
            calls = {0: (dist.send, dist.recv), 1: (dist.recv, dist.send)}.get(rank, ())
            return lambda: [call(values, 1 - rank) for call in calls]
        if name == "all_reduce_async":
            values = torch.ones(size // 4)
            return lambda: dist.all_reduce(values, async_op=True).wait()
        return collective(name, size, ranks)

    serve(path, int(os.environ["RANK"]), operation)


if __name__ == "__main__":
    main()
