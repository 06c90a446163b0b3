"""Replicas of a Llama, each sharded over two ranks, that share a batch.

    accord run -n 4 examples/compile/llama_in_data_parallel.py

Each replica computes its part over its own group of the mesh, and then all ranks get all logits.
"""

import small_models
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import accord

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
model = small_models.llama()
ids = small_models.tokens(4, 9)
with torch.no_grad():
    expected = model(ids).logits
    parallelize_module(model, mesh["tp"], small_models.PLAN)
    compiled = torch.compile(model, backend="accord", options={"strict_collectives": True})
    replicas = mesh["dp"].get_group()
    mine = ids.chunk(dist.get_world_size(replicas))[dist.get_rank(replicas)].contiguous()
    part = compiled(mine).logits
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(replicas))]
    dist.all_gather(parts, part, group=replicas)
    small_models.report("the whole batch", torch.cat(parts), expected)
    # The same engine over a group created here: the two ranks of this replica.
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    with accord.distributed_context({"tp": pairs[dist.get_rank() // 2]}, model):
        torch.testing.assert_close(compiled(mine).logits, part, rtol=0, atol=0)
