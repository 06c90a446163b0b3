"""Models with an encoder, and requests with a source, answered on ranks that are threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from thread_ranks import on_threads

import accord


def exporter_of_families(folder: Path, make: Callable[[str], torch.nn.Module]) -> Callable[[str], tuple]:
    """Returns a function that returns the model of a family, and its package in `folder`, exported on first use."""

    @functools.cache
    def exported(name: str) -> tuple[torch.nn.Module, Path]:
        model = make(name)
        return model, accord.export(model, path=folder / f"{name}.accord", sharding="auto")

    return exported


def answers(model: accord.LanguageModel, requests: Sequence[tuple]) -> list[list[list[int]]]:
    """Returns the tokens of each sample of each request (prompt, source, options), all submitted together."""
    streams = [model.submit(prompt, source=source, **options) for prompt, source, options in requests]
    found = []
    for stream in streams:
        tokens = {}
        for event in stream:
            assert event.error is None, event.error
            if event.token is not None:
                tokens.setdefault(event.sample, []).append(event.token)
        found.append([tokens[sample] for sample in sorted(tokens)])
    return found


def served(
    path: Path, ranks: int, requests: Sequence[tuple], load: dict | None = None, group: str = "tp", **options: object
) -> list:
    """Returns the answers of rank 0. `load`: options of accord.load(); `group`: of the ranks; others are those of
    LanguageModel.create()."""

    def run(comm):
        with accord.load(path, {group: comm}, **(load or {})) as engine:
            model = accord.LanguageModel.create(engine, **options)
            if comm.rank != 0:
                return model.follow()
            found = answers(model, requests)
            model.stop()
            return found

    return on_threads(ranks, run)[0]
