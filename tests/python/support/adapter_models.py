"""Adapters of a small Llama, made and run by the library PEFT, which is the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peft
import torch

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
# Options of peft.LoraConfig.
ADAPTERS = {
    "attention": {"r": 4, "lora_alpha": 32, "target_modules": ATTENTION},
    "all": {"r": 8, "lora_alpha": 64, "target_modules": ALL, "use_rslora": True},
    "patterns": {
        "r": 3,
        "lora_alpha": 20,
        "target_modules": ["gate_proj", "down_proj"],
        "rank_pattern": {"layers.1.mlp.gate_proj": 5},
        "alpha_pattern": {"down_proj": 40},
    },
    "head": {"r": 2, "lora_alpha": 24, "target_modules": ["lm_head", "o_proj"]},
}


def save_adapter(make_model: Callable[[], torch.nn.Module], folder: Path, seed: int, **options: object) -> Path:
    """Saves an adapter with random matrices as PEFT does, and returns its folder."""
    model = peft.get_peft_model(make_model(), peft.LoraConfig(task_type="CAUSAL_LM", **options))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.1, generator=generator)
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def adapted(model: torch.nn.Module, folder: Path | None) -> torch.nn.Module:
    """Returns the model with an adapter, as PEFT loads it; None: the model itself. REQUIRES: the model has no other."""
    return model if folder is None else peft.PeftModel.from_pretrained(model, folder).eval()


@torch.no_grad()
def greedy_answer(model: torch.nn.Module, prompt: list[int], tokens: int) -> list[int]:
    """Returns the best token after each token, one by one and without a cache."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
