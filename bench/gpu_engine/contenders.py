"""The contenders in the benchmark of engines on GPUs: an engine with its paged cache, and torch with a cache of fixed
length, eager and compiled.

All take token ids on the CPU and return logits there, so that a step of each contender is a step of a complete
decoding loop. A prompt is computed at once. step() may be called again for an earlier position, which discards the
tokens after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from bench.gpu_engine import plain_llama

BLOCK = 16  # tokens, of accord's cache
LENGTHS = 64  # lengths of static caches are multiples of it


class Decoder(Protocol):
    def prompt(self, ids: Tensor) -> Tensor:
        """Takes ids [batch, tokens] and returns the logits [batch, vocabulary] of the last token."""

    def step(self, ids: Tensor, position: int) -> Tensor:
        """Takes ids [batch] that follow `position` other tokens and returns logits [batch, vocabulary]."""


class Accord:
    """The blocks of the sequences are interleaved, as after some time of serving."""

    def __init__(self, engine: object, batch: int, length: int, dtype: str):
        self.batch = batch
        each = -(-length // BLOCK)
        self.blocks = [list(range(sequence, batch * each, batch)) for sequence in range(batch)]
        self.context = engine.create_context()
        self.context.create_cache(batch * each, block_tokens=BLOCK, dtype=dtype)
        self.rows = torch.arange(batch)

    def prompt(self, ids: Tensor) -> Tensor:
        count = ids.shape[1]
        sequences = [(count, 0, blocks) for blocks in self.blocks]
        positions = torch.arange(count).repeat(self.batch)
        return self.run(sequences, ids.reshape(-1), positions, (self.rows + 1) * count - 1)

    def step(self, ids: Tensor, position: int) -> Tensor:
        sequences = [(1, position, blocks) for blocks in self.blocks]
        return self.run(sequences, ids, torch.full((self.batch,), position), self.rows)

    def run(self, sequences: list, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        (logits,) = self.context.run_sequences(sequences, ids, positions, rows)
        return torch.from_dlpack(logits)


class Torch:
    def __init__(self, model: plain_llama.Llama, batch: int, length: int):
        self.cache = plain_llama.StaticCache(model, batch, -(-length // LENGTHS) * LENGTHS)
        self.run, self.run_prompt = self.cache, self.cache.prompt
        self.ids = self.cache.places.new_zeros((batch, 1))
        self.position = self.cache.places.new_zeros(1)

    def prompt(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            return self.run_prompt(ids.to(self.ids.device)).cpu()

    def step(self, ids: Tensor, position: int) -> Tensor:
        with torch.no_grad():
            self.ids.copy_(ids[:, None])
            self.position.fill_(position)
            return self.run(self.ids, self.position).cpu()


class Compiled(Torch):
    """A step is compiled by its first use, which may fail; prompts likewise, after compile_prompts()."""

    def __init__(self, model: plain_llama.Llama, batch: int, length: int):
        super().__init__(model, batch, length)
        torch._dynamo.reset()  # discards code for other batches
        self.compiles_prompts = False
        self.run = self.compiled(self.cache)

    def compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        mode = "reduce-overhead" if self.ids.is_cuda else "default"
        return torch.compile(function, mode=mode, dynamic=False, fullgraph=True)

    def compile_prompts(self) -> None:
        self.run_prompt = self.compiled(self.cache.prompt)
        self.compiles_prompts = True

    def keep_eager_prompts(self) -> None:
        self.run_prompt = self.cache.prompt
        self.compiles_prompts = False

    def prompt(self, ids: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return super().prompt(ids)

    def step(self, ids: Tensor, position: int) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return super().step(ids, position)
