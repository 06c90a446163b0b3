"""Compares the answers of a language model, served in batches, in pieces and with reused prefixes, with greedy decoding
by transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from thread_ranks import on_threads

import accord

BLOCK = 16
NEW = 8


def prompts() -> list[list[int]]:
    """Shorter than a block, longer, and one that begins as another one does."""
    made = [np.random.default_rng(length).integers(3, 64, length).tolist() for length in (5, 16, 53)]
    return [*made, [*made[-1][: 2 * BLOCK], 7, 8, 9]]


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW):
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def answers(language_model: accord.LanguageModel, given: list[list[int]]) -> list[list[list[int]]]:
    """Returns the tokens of two samples of each given prompt. All are computed together."""
    streams = [language_model.submit(prompt, max_new_tokens=NEW, samples=2) for prompt in given]
    found = []
    for stream in streams:
        tokens = [[], []]
        for event in stream:
            if event.token is not None:
                tokens[event.sample].append(event.token)
        found.append(tokens)
    return found


def check_answers(model: torch.nn.Module, path: Path, ranks: int, **options: object) -> None:
    """`options`: of the load."""
    expected = [[greedy(model, prompt)] * 2 for prompt in prompts()]

    def run(comm: accord.Communicator) -> list | None:
        with accord.load(path, {"tp": comm}, **options) as engine:
            # 12 blocks: some sequences wait, lose their blocks and are computed again.
            made = accord.LanguageModel.create(
                engine, block_tokens=BLOCK, cache_tokens=12 * BLOCK, max_sequences=8, max_rows=20
            )
            if comm.rank != 0:
                return made.follow()
            found = [answers(made, prompts()) for _ in range(2)]  # the second time, the prompts' blocks are there
            made.stop()
            return found

    for found in on_threads(ranks, run)[0]:
        assert found == expected
