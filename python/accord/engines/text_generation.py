"""Generates text with a language model in one call, on one rank or on all ranks of a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accord._core import Communicator, Engine, InvalidArgument, LanguageModel, TextStream, Unsupported, inspect
from accord.engines.loading import load

__all__ = ["GeneratedText", "generate"]

Prompt = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class GeneratedText:
    """The continuation of a prompt."""

    text: str
    finish: str  # "stop_token", "stop_sequence", "length"
    prompt_tokens: int
    completion_tokens: int

    def __str__(self) -> str:
        return self.text


def generate(
    model: str | os.PathLike[str] | Engine | LanguageModel,
    prompt: Prompt | Sequence[Prompt] | None = None,
    *,
    comm: Communicator | None = None,
    stream: bool = False,
    threads: int = 0,
    cache_dtype: str = "float32",
    **options: Any,
) -> GeneratedText | list[GeneratedText] | Iterator[str] | None:
    """Continues a text or answers a conversation, or several of them together if `prompt` is a list of these.

    model: a package, an engine loaded from one, or a LanguageModel.
    prompt: "Once upon a time", or messages: [{"role": "user", "content": "Hello"}].
    comm: the ranks that share the package, all of which call this; by default the ranks of the job (accord run,
    torchrun), or this process alone. Rank 0 gets the answers. The other ranks compute with it and get None, or an
    empty iterator: they need no prompt.
    stream: returns an iterator over pieces of the single answer as they are generated.
    threads, cache_dtype: for an engine and a cache that are created here, same as for load() and
    LanguageModel.create().
    options: stop (texts that end an answer), max_new_tokens, temperature (0: the best token), top_k, top_p, min_p,
    repetition_penalty, seed and all other options of LanguageModel.generate() except samples.

    Raises the errors of load(), LanguageModel.create() and LanguageModel.generate(), and any error that ends an
    answer early.
    """
    if options.get("samples", 1) != 1:
        raise InvalidArgument("samples: LanguageModel.generate() gives several continuations of a prompt")
    prompts = [] if prompt is None else prompt
    several = not isinstance(prompts, str) and not all(isinstance(message, Mapping) for message in prompts)
    pieces = _pieces(model, list(prompts) if several else [prompt], comm, threads, cache_dtype, options)
    if stream:
        if several:
            raise InvalidArgument("stream: one prompt at a time; LanguageModel.generate() gives a stream for each")
        return (text for text in pieces if isinstance(text, str))
    answers = [answer for answer in pieces if isinstance(answer, GeneratedText)]
    return answers if several and answers else answers[0] if answers else None


def _pieces(model, prompts, comm, threads, cache_dtype, options) -> Iterator[str | GeneratedText]:
    """Yields, for each prompt in turn, its text as it is generated, then the complete answer. All are answered
    together.
    """
    with contextlib.ExitStack() as stack:
        if not isinstance(model, LanguageModel):
            model = _language_model(stack, model, comm, threads, cache_dtype)
            if not model.leads:
                model.follow()
                return
            stack.callback(model.stop)
        if prompts == [None]:
            raise InvalidArgument("the rank that leads needs a prompt")
        for stream in [model.generate(prompt, **options) for prompt in prompts]:
            yield from _pieces_of(stream)


def _language_model(stack, model, comm, threads, cache_dtype) -> LanguageModel:
    """Returns a model over the engine, which is loaded first if `model` is a package."""
    if not isinstance(model, Engine):
        if comm is None:
            comm = stack.enter_context(Communicator.from_environment(name="generate"))
        description = inspect(model)
        if "program" in description:
            raise Unsupported(
                f"{os.fspath(model)} is a program of several parts; a language model is exported as one engine"
            )
        groups = description["groups"]
        if len(groups) > 1:
            raise InvalidArgument(
                f"{os.fspath(model)} has the groups {', '.join(groups)}: load() it, giving each its ranks"
            )
        model = stack.enter_context(load(model, dict.fromkeys(groups, comm), threads=threads))
    return LanguageModel.create(model, cache_dtype=cache_dtype, all_ranks=comm)


def _pieces_of(stream: TextStream) -> Iterator[str | GeneratedText]:
    text = []
    for event in stream:
        if event.error is not None:
            raise event.error
        if event.text:
            text.append(event.text)
            yield event.text
        if event.finish:
            yield GeneratedText("".join(text), event.finish, stream.prompt_tokens, stream.completion_tokens)
