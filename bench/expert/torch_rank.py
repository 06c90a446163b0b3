"""The same mixture of experts by torch.distributed over gloo.

    python -m bench.expert.torch_rank PATH     PATH as in worker.hpp, cases as in cases.hpp

Rows are put in the order of their experts, sent by all_to_all_single, and grouped by expert where they arrive; on the
way back, they are added in fp32.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from bench.collectives.torch_rank import Call, keep_to_one_core, serve

EXPERTS, TOP_K = 32, 8


class Experts:
    def __init__(self, tokens: int, hidden: int) -> None:
        generator = torch.Generator().manual_seed(1234 + dist.get_rank())
        self.chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(tokens)])
        self.tokens, self.hidden = torch.ones(tokens, hidden, dtype=torch.bfloat16), hidden
        self.prepare()
        self.slots = torch.ones(sum(self.received), hidden, dtype=torch.bfloat16)

    def prepare(self) -> None:
        size = dist.get_world_size()
        flat = self.chosen.flatten()
        self.order = flat.argsort(stable=True)
        mine = flat.bincount(minlength=EXPERTS)
        theirs = torch.empty_like(mine)  # [source, local expert]
        dist.all_to_all_single(theirs, mine)
        self.sent = mine.view(size, -1).sum(1).tolist()
        self.received = theirs.view(size, -1).sum(1).tolist()
        # Converts the order of arrival, by source and expert, to the order of experts.
        experts = torch.arange(EXPERTS // size).repeat(size).repeat_interleave(theirs)
        self.by_expert = experts.argsort(stable=True)

    def exchange(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        arrived = torch.empty(sum(received), self.hidden, dtype=rows.dtype)
        dist.all_to_all_single(arrived.view(torch.uint8), rows.view(torch.uint8), received, sent)
        return arrived

    def dispatch(self) -> None:
        rows = self.tokens[self.order // TOP_K]
        self.slots = self.exchange(rows, self.sent, self.received)[self.by_expert]

    def combine(self) -> None:
        rows = torch.empty_like(self.slots)
        rows[self.by_expert] = self.slots
        rows = self.exchange(rows, self.received, self.sent)
        of_choices = torch.empty_like(rows)
        of_choices[self.order] = rows
        self.result = of_choices.view(-1, TOP_K, self.hidden).float().sum(1).to(torch.bfloat16)

    def step(self) -> None:
        self.prepare()
        self.dispatch()
        self.combine()


def main() -> None:
    rank = int(os.environ["RANK"])
    keep_to_one_core(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    instances: dict[tuple[str, str], Experts] = {}

    def operation(case: str, _size: int, _ranks: int) -> Call:
        kind, tokens, hidden = case.split("/")
        if (tokens, hidden) not in instances:
            instances.clear()
            instances[tokens, hidden] = Experts(int(tokens), int(hidden))
        return getattr(instances[tokens, hidden], kind)

    serve(sys.argv[1], rank, operation)


if __name__ == "__main__":
    main()
