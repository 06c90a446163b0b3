"""A torch.distributed program that knows nothing of accord, for test_route.py. It makes more than twenty of
torch's calls and is written for gloo.

It writes the results of each call on every rank as JSON, together with the accord modules that are loaded.
"""

import inspect
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp, init_process_group, new_group

torch.set_num_threads(1)
init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()


def own(*shape):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) * (rank + 1)


def all_reduce():
    tensor = own(5)
    dist.all_reduce(tensor)
    return tensor


def all_reduce_async_of_integers():
    tensor = own(4).long()
    dist.all_reduce(tensor, op=ReduceOp.MAX, async_op=True).wait()
    return tensor


def all_reduce_coalesced():
    tensors = [own(2), own(3, 2)]
    dist.all_reduce_coalesced(tensors)
    return tensors


def broadcast():
    tensor = own(3)
    dist.broadcast(tensor, src=size - 1)
    return tensor


def reduce():
    tensor = own(3)
    dist.reduce(tensor, dst=0, op=ReduceOp.PRODUCT)
    return tensor if rank == 0 else None


def all_gather():
    tensors = [torch.empty(2, 2) for _ in range(size)]
    dist.all_gather(tensors, own(2, 2))
    return tensors


def all_gather_into_tensor():
    tensor = torch.empty(size * 3)
    dist.all_gather_into_tensor(tensor, own(3))
    return tensor


def gather():
    tensors = [torch.empty(3) for _ in range(size)] if rank == 0 else None
    dist.gather(own(3), tensors, dst=0)
    return tensors


def scatter():
    tensor = torch.empty(2)
    dist.scatter(tensor, list(own(size, 2)) if rank == 0 else None, src=0)
    return tensor


def reduce_scatter():
    tensor = torch.empty(2)
    dist.reduce_scatter(tensor, list(own(size, 2)))
    return tensor


def reduce_scatter_tensor():
    tensor = torch.empty(2)
    dist.reduce_scatter_tensor(tensor, own(size * 2))
    return tensor


def all_to_all_single():
    tensor = torch.empty(size)
    dist.all_to_all_single(tensor, own(size))
    return tensor


def all_to_all_with_splits():
    sent = [rank + 1] * size
    received = list(range(1, size + 1))
    tensor = torch.empty(sum(received), 2)
    dist.all_to_all_single(tensor, own(sum(sent), 2), received, sent)
    return tensor


def send_and_recv():
    tensor = torch.empty(4)
    if rank == 0:
        dist.send(own(4), dst=1)
    elif rank == 1:
        dist.recv(tensor, src=0)
    return tensor if rank == 1 else None


def isend_and_irecv_with_tags():
    tensors = [torch.empty(2), torch.empty(2)]
    works = [dist.isend(own(2) + tag, (rank + 1) % size, tag=tag) for tag in (0, 1)]
    works += [dist.irecv(tensors[tag], (rank - 1) % size, tag=tag) for tag in (1, 0)]
    for work in works:
        work.wait()
    return tensors


def batch_isend_irecv():
    tensor = torch.empty(3)
    ops = [
        dist.P2POp(dist.isend, own(3), (rank + 1) % size),
        dist.P2POp(dist.irecv, tensor, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return tensor


def objects_of_all():
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    return found


def objects_at_one():
    found = [None] * size if rank == 0 else None
    dist.gather_object(["a", rank], found, dst=0)
    return found


def objects_from_one():
    found = [{"of": rank}, rank]
    dist.broadcast_object_list(found, src=1)
    return found


def objects_scattered():
    found = [None]
    dist.scatter_object_list(found, [f"for {i}" for i in range(size)] if rank == 0 else None, src=0)
    return found


def barriers():
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    return True


def a_group_of_some():
    group = new_group([0, size - 1], timeout=timedelta(seconds=30))
    if rank not in (0, size - 1):
        return None
    tensor = own(3)
    dist.all_reduce(tensor, group=group)
    return [tensor, dist.get_rank(group), dist.get_process_group_ranks(group), str(dist.get_backend(group))]


def subgroups():
    group, groups = dist.new_subgroups(group_size=1)
    tensor = own(2)
    dist.all_reduce(tensor, group=group)
    return [tensor, len(groups)]


def functional_collectives():
    found = functional.all_reduce(own(3), "sum", dist.group.WORLD)
    return [
        found.wait() if hasattr(found, "wait") else found,
        functional.all_gather_tensor(own(2), 0, dist.group.WORLD) + 0,
    ]


def replicas():
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    # Scaled by `size`, so that the mean is an exact whole number and does not depend on the order of the sums.
    (size * model(own(4, 3)).sum()).backward()
    return [parameter.grad for parameter in model.parameters()]


CALLS = [
    all_reduce, all_reduce_async_of_integers, all_reduce_coalesced, broadcast, reduce, all_gather, all_gather_into_tensor,
    gather, scatter, reduce_scatter, reduce_scatter_tensor, all_to_all_single, all_to_all_with_splits, send_and_recv,
    isend_and_irecv_with_tags, batch_isend_irecv, objects_of_all, objects_at_one, objects_from_one, objects_scattered,
    barriers, a_group_of_some, subgroups, functional_collectives, replicas,
]  # fmt: skip


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, list) else value


results = {call.__name__: plain(call()) for call in CALLS}
torchs = Path(torch.__file__).parent
functions = [f for _, f in inspect.getmembers(dist, inspect.isfunction)]
outcome = {
    "results": results,
    "backend": str(dist.get_backend()),
    "modules": sorted(name for name in sys.modules if name.split(".")[0].startswith("accord")),
    "functions_of_others": sorted(f.__name__ for f in functions if torchs not in Path(inspect.getfile(f)).parents),
    "replaced": [f.__name__ for f in functions if getattr(dist.distributed_c10d, f.__name__, f) is not f],
}
if "accord.torch.route" in sys.modules:
    outcome["report"] = sys.modules["accord.torch.route"].report()
dist.destroy_process_group()
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(outcome))
