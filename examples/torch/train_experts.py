"""Trains a small transformer whose feed-forward layers are experts that are divided among the ranks.

    accord run -n 2 examples/torch/train_experts.py

Every rank reads its part of a batch. Its tokens are sent to the experts that they choose, wherever these are, and
sent back. The result is the same as with one rank that has all experts.
"""

import argparse

import torch
import torch.distributed as dist
from character_model import WIDTH, Block, Embedding, Head, batch, loss_of
from torch import nn
from torch.nn import functional

import accord.torch
from accord import moe

EXPERTS, TOP_K, INNER, ROWS = 8, 2, 128, 16


def expert_matrix(expert: int, rows: int, columns: int) -> torch.Tensor:
    """Returns the matrix of an expert, which is the same on whichever rank holds it."""
    generator = torch.Generator().manual_seed(1000 + expert)
    return torch.randn(rows, columns, generator=generator) / rows**0.5


class MoELayer(nn.Module):
    """Each token is sent to its TOP_K likeliest experts, some of which are on this rank."""

    def __init__(self, group: moe.ExpertGroup) -> None:
        super().__init__()
        self.group, self.handle = group, group.handle()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        mine = group.local_experts
        self.up = nn.Parameter(torch.stack([expert_matrix(e, WIDTH, INNER) for e in mine]))
        self.down = nn.Parameter(torch.stack([expert_matrix(e, INNER, WIDTH) for e in mine]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens).softmax(-1).topk(TOP_K)
        self.group.prepare(self.handle, chosen)
        received, received_weights = moe.dispatch(self.group, self.handle, tokens, weights)
        of_experts = received.split(self.handle.counts)
        made = [
            functional.gelu(rows @ up) @ down for rows, up, down in zip(of_experts, self.up, self.down, strict=True)
        ]
        return moe.combine(self.group, self.handle, torch.cat(made) * received_weights[:, None]).view_as(x)


class ExpertBlock(Block):
    def __init__(self, group: moe.ExpertGroup) -> None:
        super().__init__()
        del self.up, self.down
        self.experts = MoELayer(group)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    arguments = parser.parse_args()
    dist.init_process_group("accord")
    rank, size = dist.get_rank(), dist.get_world_size()
    if EXPERTS % size or ROWS % size:
        raise SystemExit(f"{EXPERTS} experts cannot be divided among {size} ranks: start 1, 2, 4 or 8")
    torch.set_default_dtype(getattr(torch, arguments.dtype))

    group = moe.ExpertGroup(
        accord.torch.communicator(),
        experts=EXPERTS,
        top_k=TOP_K,
        hidden=WIDTH,
        max_tokens_per_rank=1024,
        dtype="float64",
    )
    torch.manual_seed(0)
    model = nn.Sequential(Embedding(), ExpertBlock(group), ExpertBlock(group), Head())
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for step in range(1, arguments.steps + 1):
        characters, following = (part.chunk(size)[rank] for part in batch(step, rows=ROWS))
        loss = loss_of(model(characters), following)
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            # An expert's gradient already includes all ranks.
            if name.endswith((".experts.up", ".experts.down")):
                parameter.grad /= size
            else:
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step} loss {mean.item():.12f}", flush=True)
    group.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
