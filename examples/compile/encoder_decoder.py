"""An encoder and a decoder, both sharded, bound to one group together.

accord run -n 2 examples/compile/encoder_decoder.py
"""

import torch
import torch.distributed as dist
from small_models import report
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import accord

HIDDEN = 32


class Block(torch.nn.Module):
    """Attention to a memory, followed by an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(HIDDEN),
            torch.nn.Linear(HIDDEN, 4 * HIDDEN),
            torch.nn.Linear(4 * HIDDEN, HIDDEN),
        )

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = x + torch.nn.functional.scaled_dot_product_attention(x, memory, memory)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Block(), Block()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.decoder(target, self.encoder(source, source))


dist.init_process_group("gloo")
torch.manual_seed(0)
pair = Pair().eval()
source, target = torch.rand(2, 7, HIDDEN), torch.rand(2, 5, HIDDEN)
with torch.no_grad():
    expected = pair(source, target)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in (pair.encoder, pair.decoder):
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        block.compile(backend="accord", dynamic=True, options={"strict_collectives": True})
    report("the pair", pair(source, target), expected)
    other = dist.new_group(list(range(dist.get_world_size())), group_desc="other")
    with accord.distributed_context(other, [pair.encoder, pair.decoder]):
        report("the pair over another group", pair(source, target), expected)
