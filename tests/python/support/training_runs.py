"""Training runs that torch/test_training.py executes on every rank, over two backends of torch.distributed in turn.

Each takes no argument and returns numbers (losses, norms, values), which must not depend on the backend.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

STEPS = 20
WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make_model(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*[Block() for _ in range(blocks)], nn.Linear(WIDTH, WIDTH))


def batch_of(step: int, rank: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(rows, WIDTH, generator=generator)
    return x, x.flip(1)


def loss_of(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(found, wanted)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, rank: int | None = None) -> list[float]:
    """Returns the loss of each of STEPS steps. rank: the rank whose batches are used; by default this rank."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, wanted = batch_of(step, dist.get_rank() if rank is None else rank)
        loss = loss_of(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sharded(mesh: object = None, **options: object) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = make_model()
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp2() -> list[float]:
    model = sharded()
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    total = torch.stack([p.full_tensor().sum() for p in model.parameters()]).sum()
    return [*losses, total.item()]


def fsdp2_kept_and_clipped() -> list[float]:
    model = sharded(reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        model.set_requires_gradient_sync(step % 2 == 1)
        x, wanted = batch_of(step, dist.get_rank())
        loss = loss_of(model(x), wanted)
        loss.backward()
        losses.append(loss.item())
        if step % 2 == 1:
            losses.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


def fsdp2_bfloat16() -> list[float]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return train(sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)))


def fsdp2_divide_factor() -> list[float]:
    """Trains with a custom divide factor. accord implements it with PREMUL_SUM; gloo lacks that and needs the sum."""
    model = sharded()
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(4.0)
            module.set_force_sum_reduction_for_comms(dist.get_backend() == "gloo")
    return train(model)


def hsdp() -> list[float]:
    mesh = dist.device_mesh.init_device_mesh(
        "cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards")
    )
    model = sharded(mesh)
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def fsdp1() -> list[float]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        make_model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu")
    )
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def split_by_tensor(model: nn.Module, mesh: object, *, sequence: bool = False) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    for block in model[:-1]:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(sequence_dim=0),
                "up": ColwiseParallel(input_layouts=Shard(0)),
                "down": RowwiseParallel(output_layouts=Shard(0)),
            }
        parallelize_module(block, mesh, plan)
        if sequence:
            parallelize_module(
                block,
                mesh,
                PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=True)
                if block is model[0]
                else PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Shard(0), use_local_output=True),
            )
    if sequence:
        parallelize_module(model[-1], mesh, ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()))
    return model


def tensor_parallel() -> list[float]:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    return train(split_by_tensor(make_model(), mesh), rank=0)


def sequence_parallel() -> list[float]:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    return train(split_by_tensor(make_model(), mesh, sequence=True), rank=0)


def fsdp2_of_tensor_parallel() -> list[float]:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    from torch.distributed.fsdp import fully_shard

    model = split_by_tensor(make_model(), mesh["tp"])
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.01), rank=mesh["dp"].get_local_rank())


def sharded_tensors() -> list[float]:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    size = dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    whole = torch.randn(4 * size + 1, 6)  # the last shard is shorter
    found = []
    for layout in (Shard(0), Shard(1), Replicate()):
        tensor = distribute_tensor(whole, mesh, [layout])
        for other in (Shard(0), Shard(1), Replicate()):
            moved = tensor.redistribute(mesh, [other])
            assert torch.equal(moved.full_tensor(), whole)
            found.append(moved.to_local().sum().item())
    product = distribute_tensor(whole.t(), mesh, [Shard(1)]) @ distribute_tensor(whole, mesh, [Shard(0)])
    assert isinstance(product.placements[0], Partial)
    found += product.full_tensor().flatten().tolist()
    found += product.redistribute(mesh, [Shard(0)]).to_local().flatten().tolist()
    return found


def meshes() -> list[float]:
    """Returns sums over each axis of a two-dimensional mesh, over both axes at once, and over some of the ranks."""
    size = dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("rows", "columns"))
    found = []
    for group in (
        mesh["rows"].get_group(),
        mesh["columns"].get_group(),
        mesh["rows", "columns"]._flatten().get_group(),
    ):
        x = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(x, group=group)
        found.append(x.item())
    return found


def pipeline(schedule: type, stages_each: int = 1) -> list[float]:
    from torch.distributed.pipelining import PipelineStage

    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model(blocks=2 * size * stages_each - 1)
    mine = []
    for number in range(rank, size * stages_each, size):
        mine.append(copy.deepcopy(model[2 * number : 2 * number + 2]))
    stages = [
        PipelineStage(part, rank + size * i, size * stages_each, torch.device("cpu")) for i, part in enumerate(mine)
    ]
    run = schedule(stages if stages_each > 1 else stages[0], n_microbatches=4, loss_fn=loss_of)
    optimizer = torch.optim.SGD([p for part in mine for p in part.parameters()], lr=0.1)
    means = []
    for step in range(STEPS):
        x, wanted = batch_of(step, 0)
        losses: list[torch.Tensor] = []
        given = (x,) if rank == 0 else ()
        if rank == size - 1:
            run.step(*given, target=wanted, losses=losses)
        else:
            run.step(*given)
        optimizer.step()
        optimizer.zero_grad()
        means.append(sum(loss.item() for loss in losses))
    return [*means, *[p.sum().item() for part in mine for p in part.parameters()]]


def pipeline_gpipe() -> list[float]:
    from torch.distributed.pipelining import ScheduleGPipe

    return pipeline(ScheduleGPipe)


def pipeline_1f1b() -> list[float]:
    from torch.distributed.pipelining import Schedule1F1B

    return pipeline(Schedule1F1B)


def pipeline_interleaved() -> list[float]:
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    return pipeline(ScheduleInterleaved1F1B, stages_each=2)


def functional_collectives(x: torch.Tensor) -> torch.Tensor:
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    size = dist.get_world_size()
    y = functional.all_reduce(x * 2, "sum", group)
    y = y + functional.all_reduce(x, "avg", group)
    parts = functional.reduce_scatter_tensor(y, "sum", 0, group)
    whole = functional.all_gather_tensor(parts + 1, 0, group)
    turned = functional.all_to_all_single(
        whole, [whole.shape[0] // size] * size, [whole.shape[0] // size] * size, group
    )
    return turned + functional.broadcast(turned, 1, group)


def compiled(backend: str) -> list[float]:
    x = torch.arange(24.0).reshape(12, 2) + dist.get_rank()
    torch._dynamo.reset()
    found = torch.compile(functional_collectives, backend=backend, fullgraph=True)(x)
    assert torch.equal(found, functional_collectives(x))
    return found.flatten().tolist()


def compiled_aot() -> list[float]:
    return compiled("aot_eager")


def compiled_inductor() -> list[float]:
    return compiled("inductor")
