"""A Llama exported whole by rank 0, with torch's plan, and loaded sharded.

    accord run -n 2 examples/compile/llama_export.py FOLDER

Any number of ranks that the heads allow can load the package, also from C++.
"""

import sys

import small_models
import torch
import torch.distributed as dist

import accord


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits


dist.init_process_group("gloo")
package = f"{sys.argv[1]}/llama.accord"
model = Logits(small_models.llama()).eval()
if dist.get_rank() == 0:
    sizes = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", max=64)}
    plan = {f"model.{pattern}": style for pattern, style in small_models.PLAN.items()}
    accord.export(model, (small_models.tokens(2, 9),), path=package, sharding=plan, dynamic_shapes=(sizes,))
dist.barrier()
module = accord.Engine.load(package, {"tp": (dist.get_rank(), dist.get_world_size())}).module()
with torch.no_grad(), accord.distributed_context({"tp": dist.group.WORLD}, module):
    for ids in (small_models.tokens(2, 9), small_models.tokens(1, 30)):
        small_models.report(f"logits of {tuple(ids.shape)}", module(ids), model(ids))
