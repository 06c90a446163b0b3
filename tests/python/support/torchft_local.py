"""One of two replicas that train by themselves and exchange parameters now and then, with torchft's LocalSGD or DiLoCo.
Prints the parameters at the end.

python torchft_local.py NAME LIGHTHOUSE KIND"""

import sys

import torch
import torch.distributed as dist
from local_rounds import ROUNDS, STEPS, inner_optimizer, loss, make_model, outer_optimizer
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft_manager import make_manager

name, lighthouse, kind = sys.argv[1:]
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
model = make_model()
optimizer = inner_optimizer(model)
manager = make_manager(
    name,
    lighthouse,
    store.port,
    load_state_dict=model.load_state_dict,
    state_dict=model.state_dict,
    min_replica_size=2,
    init_sync=False,  # the models are equal
)
if kind == "LocalSGD":
    exchange = LocalSGD(manager, model, optimizer, sync_every=STEPS)
else:
    exchange = DiLoCo(manager, [model], optimizer, outer_optimizer(model), sync_every=STEPS, pin_memory=False)
with exchange:
    step = 0
    while manager.current_step() < ROUNDS:
        optimizer.zero_grad()
        loss(model, step, name).backward()
        optimizer.step()
        step += 1
print(f"{name} parameters {torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()}", flush=True)
manager.shutdown(wait=False)
