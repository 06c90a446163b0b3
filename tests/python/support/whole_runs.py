"""The output of a transformers language model that recomputes the whole sequence for each token."""

import torch


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], tokens: int) -> list[int]:
    """Returns the best tokens, with one whole run of the model for each."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
