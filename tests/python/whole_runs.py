"""What a language model of transformers gives when all of a sequence is computed anew for each token."""

import torch


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], tokens: int) -> list[int]:
    """The best tokens, one whole run of the model for each."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
