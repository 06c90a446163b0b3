"""A model whose weights each rank shards by hand, compiled and saved by two ranks, and loaded by two others. Start it
twice:

    accord run -n 2 examples/compile/save_and_load.py FOLDER

The first run saves, the second one loads. One package contains the parts of all ranks; exactly as many ranks load it,
also from C++.
"""

import sys
from pathlib import Path

import small_models
import torch
import torch.distributed as dist

import accord

HIDDEN, INNER = 64, 256


class Part(torch.nn.Module):
    """An MLP of which this rank has its columns of the first layer and its rows of the second."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.whole = torch.nn.Sequential(
            torch.nn.Linear(HIDDEN, INNER), torch.nn.ReLU(), torch.nn.Linear(INNER, HIDDEN)
        )
        self.group = group.group_name
        mine = slice(*(INNER * place // group.size() for place in (group.rank(), group.rank() + 1)))
        up, down = self.whole[0], self.whole[2]
        self.up, self.up_bias = (torch.nn.Parameter(one[mine].clone()) for one in (up.weight, up.bias))
        self.down, self.down_bias = torch.nn.Parameter(down.weight[:, mine].clone()), down.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(torch.nn.functional.linear(x, self.up, self.up_bias))
        part = torch.nn.functional.linear(inner, self.down)
        ops = torch.ops._c10d_functional
        return ops.wait_tensor(ops.all_reduce(part, "sum", self.group)) + self.down_bias


def save(package: Path, x: torch.Tensor) -> None:
    model = Part(dist.group.WORLD).eval()
    batch = torch.export.Dim("batch", max=64)
    compiled = accord.compile(model, (x,), {"min_block_size": 1}, dynamic_shapes=({0: batch},))
    small_models.report("the compiled model", compiled(x), model.whole(x))
    compiled.save(package)
    torch.save(model.whole(x), package.with_suffix(f".{dist.get_rank()}.pt"))


def load(package: Path, x: torch.Tensor) -> None:
    with accord.Communicator.from_environment() as comm:
        module = accord.load(package, {"world": comm}).module()
        small_models.report("the loaded model", module(x), torch.load(package.with_suffix(f".{dist.get_rank()}.pt")))


dist.init_process_group("gloo")
package = Path(sys.argv[1]) / "mlp.accord"
there = package.exists()
dist.barrier()
with torch.no_grad():
    (load if there else save)(package, torch.rand(5, HIDDEN, generator=torch.Generator().manual_seed(1)))
