"""The model that the examples train: a small transformer that reads Python's documentation character by character."""

from __future__ import annotations

import pydoc_data.topics

import torch
from torch import nn
from torch.nn import functional

TEXT = "".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
ALPHABET = sorted(set(TEXT))
NUMBER_OF = {character: number for number, character in enumerate(ALPHABET)}
LENGTH = 32  # characters that the model sees at once
WIDTH = 64
HEADS = 4


def batch(step: int, part: int = 0, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns pieces of the text and the characters that follow each of theirs: [rows, LENGTH] both. part: e.g. the
    rank.
    """
    generator = torch.Generator().manual_seed(1000 * step + part)
    starts = torch.randint(len(TEXT) - LENGTH - 1, (rows,), generator=generator).tolist()
    pieces = torch.tensor([[NUMBER_OF[c] for c in TEXT[start : start + LENGTH + 1]] for start in starts])
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def loss_of(logarithms: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(logarithms.flatten(0, 1), following.flatten())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        # As many heads as this rank has columns for: all of them, unless the layers are sharded.
        heads = [
            layer(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.mlp_norm(x))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.characters(numbers) + self.places(torch.arange(numbers.shape[1]))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.log_softmax(self.linear(self.norm(x)), -1)


def make_model(blocks: int = 2) -> nn.Sequential:
    """Maps characters [rows, length] to log probabilities [rows, length, alphabet] of the next; the same on every
    rank.
    """
    torch.manual_seed(0)
    return nn.Sequential(Embedding(), *[Block() for _ in range(blocks)], Head())


@torch.no_grad()
def generate(model: nn.Module, start: str, count: int) -> str:
    """Returns `start` and the `count` characters that the model considers most likely after it."""
    numbers = [NUMBER_OF[c] for c in start]
    for _ in range(count):
        logarithms = model(torch.tensor([numbers[-LENGTH:]]))
        numbers.append(int(logarithms[0, -1].argmax()))
    return "".join(ALPHABET[number] for number in numbers)
