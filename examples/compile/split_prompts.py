"""Prompts of unequal number and length, split between the ranks.

    accord run -n 2 examples/compile/split_prompts.py

Like accelerate's split_between_processes: each rank answers its own prompts with its own engine, and rank 0
shows all answers.
"""

import small_models
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
prompts = [small_models.tokens(1, 3 + number, seed=number) for number in range(5)]
model = small_models.llama()
compiled = torch.compile(model, backend="accord", dynamic=True)
answers = {}
with torch.no_grad():
    for number in range(rank, len(prompts), size):
        ids = prompts[number]
        for _ in range(4):
            best = compiled(ids).logits[:, -1:].argmax(-1)
            ids = torch.cat((ids, best), dim=1)
        answers[number] = ids[0].tolist()
    number = rank
    small_models.report(f"prompt {number}", compiled(prompts[number]).logits, model(prompts[number]).logits)
gathered = [None] * size
dist.all_gather_object(gathered, answers)
if rank == 0:
    everything = dict(sorted(item for part in gathered for item in part.items()))
    for number, ids in everything.items():
        print(f"prompt {number}: {ids}")
