"""One rank of a replica whose ranks share out the model (FSDP2), while torchft's manager averages the gradients of the
replicas (HSDP). Prints the parameters at the end.

accord run -n 2 torchft_sharded.py REPLICA LIGHTHOUSE STEPS"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchft import Optimizer
from torchft_manager import make_manager

replica, lighthouse, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("accord")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(4, 6)
manager = make_manager(
    f"replica {replica}",
    lighthouse,
    int(os.environ["MASTER_PORT"]),
    rank=rank,
    world_size=ranks,
    min_replica_size=2,
    init_sync=False,  # the models are equal
)
fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
model.set_all_reduce_hook(lambda gradients: manager.allreduce(gradients).wait())
optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), 0.1))
while manager.current_step() < steps:
    inputs = torch.full((2, 4), (1 + manager.current_step() + 10 * (ranks * replica + rank)) / 40)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
print("parameters", torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]).tolist(), flush=True)
manager.shutdown(wait=False)
dist.destroy_process_group()
