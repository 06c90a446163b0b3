"""Attention with rotary embeddings, its heads divided among the ranks.

accord run -n 2 examples/compile/rotary_attention.py
"""

import torch
import torch.distributed as dist
from small_models import report
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HIDDEN, HEAD = 64, 16


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotates [batch, length, heads, HEAD] by the position of each row."""
    turns = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = torch.outer(torch.arange(x.shape[1]), turns)[:, None]
    one, other = x.chunk(2, dim=-1)
    return torch.cat((one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()), dim=-1)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
        self.out = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (layer(x).view(batch, length, -1, HEAD) for layer in (self.query, self.key, self.value))
        query, key, value = rotated(query).transpose(1, 2), rotated(key).transpose(1, 2), value.transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Attention().eval()
inputs = [torch.rand(2, 9, HIDDEN), torch.rand(3, 14, HIDDEN)]
with torch.no_grad():
    expected = [model(x) for x in inputs]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan = {name: ColwiseParallel() for name in ("query", "key", "value")} | {"out": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    compiled = torch.compile(model, backend="accord", dynamic=True, options={"strict_collectives": True})
    for x, y in zip(inputs, expected, strict=True):
        report(f"attention over {x.shape[1]} rows", compiled(x), y)
