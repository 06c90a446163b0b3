"""An MLP whose layers are sharded over the ranks, compiled just in time.

accord run -n 2 examples/compile/mlp_tensor_parallel.py
"""

import torch
import torch.distributed as dist
from small_models import report
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import accord

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(10, 3200),
    torch.nn.ReLU(),
    torch.nn.Linear(3200, 1600),
    torch.nn.ReLU(),
    torch.nn.Linear(1600, 500),
    torch.nn.ReLU(),
    torch.nn.Linear(500, 100),
).eval()
inputs = [torch.rand(rows, 10) for rows in (20, 7)]
with torch.no_grad():
    expected = [model(x) for x in inputs]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(), "6": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    compiled = torch.compile(model, backend="accord", dynamic=True, options={"strict_collectives": True})
    for x, y in zip(inputs, expected, strict=True):
        report(f"a batch of {len(x)}", compiled(x), y)
if dist.get_rank() == 0:
    print(*accord.compilation_report(model), sep="\n")
