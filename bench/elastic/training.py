"""The training that ranks leave and join: a small transformer, and a global batch that any number of ranks can share.

A step computes the same loss and the same mean gradient whatever the number of ranks, but for rounding. In float64
rounding stays far below what one lost or doubled sample changes, so a wrong step is visible in the loss.
"""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Sequence

import torch
from torch import nn

TEXT = "".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
ALPHABET = sorted(set(TEXT))
NUMBERS = {character: number for number, character in enumerate(ALPHABET)}
LENGTH, WIDTH, HEADS, LAYERS = 32, 32, 4, 2
GLOBAL_BATCH = 12
# Relative. Sums in another order change the loss by less than 1e-14 in a block; one sample that is lost in one step
# changes the next loss by more than 1e-5.
TOLERANCE = 1e-9


class Model(nn.Module):
    """Predicts the next character. All ranks create it with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.characters, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(ALPHABET))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)
        self.double()

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.characters(numbers) + self.places.weight
        return self.head(self.layers(x, mask=self.mask, is_causal=True))


def samples(step: int, numbers: Sequence[int]) -> torch.Tensor:
    """Returns these samples of the step's global batch: pieces of the text, [len(numbers), LENGTH + 1]."""
    starts = torch.randint(len(TEXT) - LENGTH, (GLOBAL_BATCH,), generator=torch.Generator().manual_seed(step))
    pieces = (TEXT[int(starts[number]) :][: LENGTH + 1] for number in numbers)
    return torch.tensor([[NUMBERS[character] for character in piece] for piece in pieces])


def share(rank: int, size: int) -> range:
    """Returns the samples of the global batch that a rank computes."""
    return range(rank, GLOBAL_BATCH, size)


def loss_of(model: nn.Module, pieces: torch.Tensor) -> torch.Tensor:
    """Returns the part that these samples have in the mean loss of the global batch."""
    predicted = model(pieces[:, :-1])
    total = nn.functional.cross_entropy(predicted.flatten(0, 1), pieces[:, 1:].flatten(), reduction="sum")
    return total / (GLOBAL_BATCH * LENGTH)


class Training:
    """A model and its optimizer after a number of finished steps."""

    def __init__(self) -> None:
        self.step = 0
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        for parameter in self.model.parameters():  # created by the first step otherwise, which new ranks have not made
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def state(self) -> torch.Tensor:
        """Returns a copy of all that changes from step to step, with one dimension."""
        return torch.cat([tensor.flatten() for tensor in self._tensors()])

    def load_state(self, state: torch.Tensor) -> None:
        tensors = self._tensors()
        for tensor, values in zip(tensors, state.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(values.view_as(tensor))

    def _tensors(self) -> list[torch.Tensor]:
        momenta = [self.optimizer.state[parameter]["momentum_buffer"] for parameter in self.model.parameters()]
        return [*(parameter.detach() for parameter in self.model.parameters()), *momenta]


class Reference:
    """The losses of the same steps in one process, without kills."""

    def __init__(self) -> None:
        self._training = Training()
        self._losses: list[float] = []

    def loss(self, step: int) -> float:
        while len(self._losses) <= step:
            training = self._training
            training.optimizer.zero_grad()
            loss = loss_of(training.model, samples(len(self._losses), range(GLOBAL_BATCH)))
            loss.backward()
            training.optimizer.step()
            self._losses.append(loss.item())
        return self._losses[step]

    def difference(self, step: int, loss: float) -> float:
        """Returns by how much `loss` differs from this step's, relative to it."""
        return abs(loss - self.loss(step)) / abs(self.loss(step))
