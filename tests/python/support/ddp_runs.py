"""Training runs with DistributedDataParallel, like those of training_runs.py."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training_runs import STEPS, WIDTH, batch_of, loss_of, make_model, train

#: Keeps gloo's group alive: it must not be destroyed on one of its own threads, which happens if a hook's callback
#: holds the last reference.
_kept: list[dist.ProcessGroup] = []


def ddp(**options: object) -> list[float]:
    return train(DistributedDataParallel(make_model(), **options))


def ddp_small_buckets() -> list[float]:
    return ddp(bucket_cap_mb=0.002)


def ddp_buckets_as_gradients() -> list[float]:
    return ddp(gradient_as_bucket_view=True, bucket_cap_mb=0.002)


def ddp_static_graph() -> list[float]:
    return ddp(static_graph=True)


def ddp_unused_parameters() -> list[float]:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = make_model()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            skipped = (self.calls + dist.get_rank()) % 3
            for number, block in enumerate(self.branches):
                x = x if number == skipped else block(x)
            return x

    return train(DistributedDataParallel(Either(), find_unused_parameters=True))


def ddp_buffers() -> list[float]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
    model = DistributedDataParallel(model)
    losses = train(model)
    return [*losses, *model.module[1].running_mean.tolist()]


def ddp_no_sync() -> list[float]:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        with model.no_sync():
            x, wanted = batch_of(step, dist.get_rank())
            loss_of(model(x), wanted).backward()
        x, wanted = batch_of(step + STEPS, dist.get_rank())
        loss = loss_of(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ddp_uneven_inputs() -> list[float]:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with model.join():
        for step in range(5 + 3 * dist.get_rank()):
            x, wanted = batch_of(step, dist.get_rank())
            loss = loss_of(model(x), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return [*losses, *model.module[2].bias.tolist()]


def ddp_zero() -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    losses = train(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    return [*losses, len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else 0]


def ddp_hook(hook: object, state: object = None, bucket_cap_mb: float = 0.002) -> list[float]:
    _kept.append(dist.group.WORLD)
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket_cap_mb)
    model.register_comm_hook(state, hook)
    return train(model)


def ddp_hook_allreduce() -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp_hook(default_hooks.allreduce_hook)


def ddp_hook_fp16() -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp_hook(default_hooks.fp16_compress_hook)


def ddp_hook_bf16() -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp_hook(default_hooks.bf16_compress_hook)


def ddp_hook_power_sgd() -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)
    # The hook's callbacks communicate, in an arbitrary order of buckets.
    return ddp_hook(powerSGD_hook.powerSGD_hook, state, bucket_cap_mb=25)


def ddp_hook_own() -> list[float]:
    def halves(group, bucket):  # no annotations: DDP reads them, and here they are strings
        """Reduces the gradients in two calls. A callback of the first call starts the second."""
        first, second = bucket.buffer().div_(dist.get_world_size()).chunk(2)

        def then(_: torch.futures.Future) -> torch.Tensor:
            dist.all_reduce(second)
            return bucket.buffer()

        return dist.all_reduce(first, async_op=True).get_future().then(then)

    return ddp_hook(halves, bucket_cap_mb=25)


def ddp_local_sgd() -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = DistributedDataParallel(make_model())
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=dist.group.WORLD, start_localSGD_iter=5)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), PeriodicModelAverager(period=4, warmup_steps=5)
    )
    return train(model, optimizer)


def ddp_compiled() -> list[float]:
    torch._dynamo.reset()
    return train(torch.compile(DistributedDataParallel(make_model()), backend="aot_eager"))
