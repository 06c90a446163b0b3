"""One replica of a fault-tolerant training job with torchft: each step averages the gradients of the replicas that are
alive. Prints a line for each step, and the parameters at the end: after the step that the file LAST names, once it is
there.

python torchft_replica.py NAME LIGHTHOUSE LAST SEED"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Optimizer
from torchft_manager import make_manager

name, lighthouse, last = sys.argv[1], sys.argv[2], Path(sys.argv[3])
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
torch.manual_seed(int(sys.argv[4]))
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

manager = make_manager(
    name,
    lighthouse,
    store.port,
    load_state_dict=lambda state: (
        model.load_state_dict(state["model"]),
        optimizer.load_state_dict(state["optimizer"]),
    ),
    state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    min_replica_size=1,
)
replicated, managed = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
while not last.exists() or manager.current_step() < int(last.read_text()):
    managed.zero_grad()
    inputs = torch.full((2, 4), float(manager.current_step() % 7) / 7)  # as on every replica
    replicated(inputs).square().mean().backward()
    managed.step()
    print(f"{name} step {manager.current_step()} with {manager.num_participants()}", flush=True)
print(
    f"{name} parameters {[round(value, 5) for value in torch.cat([p.flatten() for p in model.parameters()]).tolist()]}"
)
manager.shutdown(wait=False)
