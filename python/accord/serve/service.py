"""The service of one model, which the endpoints share: it turns the options of a request into the engine's, and gives
the request to the model's ranks.
"""

from __future__ import annotations

import array
import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request

import accord
from accord.grammar import Grammar
from accord.serve.answer import Choice, Piece
from accord.serve.clients import current_client
from accord.serve.embedding_worker import is_encoder
from accord.serve.errors import ApiError, invalid, too_late, unavailable
from accord.serve.generation import Generation, Mailbox
from accord.serve.metrics import ModelMetrics
from accord.serve.options import ModelOptions
from accord.serve.ranks import ModelFacts, Ranks
from accord.serve.schemas import SamplingRequest
from accord.serve.supervisor import StartError, State
from accord.serve.texts import Texts
from accord.serve.tools import ToolUse

__all__ = ["Answers", "Limits", "Service", "batches"]

_BATCH_TOKENS = 16384  # the attention of a batch takes memory for each pair of tokens
# Options of the engine that have the same names in requests.
_SAME_NAMES = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class Limits:
    """The tokens that a request asks for, and the names of the fields for errors."""

    max_tokens: int | None
    param: str
    logprobs: int | None  # how many of the best tokens' log probabilities, besides that of the token


def batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Returns batches of at most `most` texts of similar lengths, as the texts' indices. With padding, a batch has at
    most _BATCH_TOKENS tokens, or one text."""
    made: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if made and len(made[-1]) < most and (len(made[-1]) + 1) * lengths[index] <= _BATCH_TOKENS:
            made[-1].append(index)
        else:
            made.append([index])
    return made


class Answers:
    """The choices that answer one HTTP request."""

    def __init__(self, ranks: Ranks, mailbox: Mailbox, choices: list[Choice], seconds: float):
        self._ranks = ranks
        self._mailbox = mailbox
        self._generations: list[Generation] = []
        self.choices = choices
        self._timer = asyncio.get_running_loop().call_later(seconds, mailbox.fail, too_late(seconds))

    def add(self, generation: Generation) -> None:
        self._generations.append(generation)

    def usage(self) -> dict[str, int]:
        prompt = sum(len(generation.prompt) for generation in self._generations)
        completion = sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    async def started(self) -> None:
        """Waits until the first tokens have arrived. Raises the error of a request that is refused."""
        await self._mailbox.arrival()

    async def pieces(self) -> AsyncIterator[dict[int, Piece]]:
        """Yields what arrives, by the index of the choice, until all choices have ended."""
        running = len(self.choices)
        while running > 0:
            pieces: dict[int, Piece] = {}
            for new in await self._mailbox.take():
                if self.choices[new.choice].ended:
                    continue
                piece = pieces.setdefault(new.choice, Piece())
                self.choices[new.choice].push(new, piece)
                running -= self.choices[new.choice].ended
            self._cancel_ended()
            pieces = {index: piece for index, piece in pieces.items() if not piece.empty}
            if pieces:
                yield pieces

    def _cancel_ended(self) -> None:
        """Ends generations whose choices have all been ended by stop texts."""
        for generation in self._generations:
            if not generation.ended:
                first = generation.first_choice
                if all(choice.ended for choice in self.choices[first : first + len(generation.samples)]):
                    self._ranks.cancel(generation)

    def release(self) -> None:
        """Ends everything that still runs, whatever the reason. May be called again."""
        self._timer.cancel()
        for generation in self._generations:
            self._ranks.cancel(generation)


class Service:
    def __init__(self, options: ModelOptions, metrics: ModelMetrics):
        """Raises StartError if the package cannot be served."""
        self.options = options
        try:
            inspected = accord.inspect(options.package)
            self.is_encoder = is_encoder(inspected)
            self.adapters: list[str] = inspected.get("adapters", [])
            self.texts = Texts(options.package)
        except (accord.Error, OSError, ValueError) as error:
            raise StartError(options.package, str(error)) from error
        self.metrics = metrics
        self.ranks = Ranks(options, metrics)
        self.draining = False

    @property
    def state(self) -> str:
        return "draining" if self.draining else self.ranks.state.value

    def note_prompt(self, request: Request, prompt: object) -> None:
        """Puts the prompt into the log's line for this request, if prompts are logged."""
        if self.options.log_prompts:
            request.scope["facts"]["prompt"] = prompt

    def _model_facts(self) -> ModelFacts:
        """Raises an error if the server takes no requests now."""
        if self.draining or self.ranks.state is State.STOPPED:
            raise unavailable("the server is shutting down")
        if self.ranks.facts is None:
            raise unavailable("the model is being loaded")
        return self.ranks.facts

    def admit(self, generations: int) -> ModelFacts:
        """Raises an error if the server takes no further generations now."""
        facts = self._model_facts()
        if self.is_encoder:
            raise invalid("the model computes embeddings, and generates no text", "model", "unsupported_value")
        self._check_places(generations)
        return facts

    async def embed(self, texts: list[list[int]], dimensions: int | None) -> list[array.array]:
        """Returns the embedding of each text. They are computed in batches of similar lengths."""
        facts = self._model_facts()
        if facts.dimensions is None:
            raise invalid("the model generates text, and computes no embeddings", "model", "unsupported_value")
        if dimensions is not None and dimensions > facts.dimensions:
            raise invalid(f"{dimensions} dimensions; the embeddings have {facts.dimensions}", "dimensions")
        if (longest := max(map(len, texts))) > facts.max_context:
            message = f"a text of {longest} tokens exceeds the context of {facts.max_context} tokens"
            raise invalid(message, "input", "context_length_exceeded")
        self._check_places(1)
        self.metrics.prompt_tokens.inc(sum(map(len, texts)))
        vectors: dict[int, array.array] = {}
        for batch in batches([len(text) for text in texts], facts.max_batch):
            numbers = array.array("f", base64.b64decode(await self.ranks.embed([texts[index] for index in batch])))
            for place, index in enumerate(batch):
                vectors[index] = numbers[place * facts.dimensions : (place + 1) * facts.dimensions]
        return [vectors[index] for index in range(len(texts))]

    def _check_places(self, generations: int) -> None:
        if generations > self.options.max_requests:
            raise invalid(f"{generations} prompts; this server takes {self.options.max_requests} at a time", "prompt")
        if self.ranks.open_requests + generations > self.options.max_requests and not self._below_share(generations):
            message = f"{self.ranks.open_requests} requests are running or waiting; try again later"
            raise ApiError(429, message, code="too_many_requests", headers={"Retry-After": "1"})

    def _below_share(self, generations: int) -> bool:
        """Returns whether the current client has less than an equal share of the requests. Then it is served although
        others have taken all places."""
        by_client = self.ranks.open_requests_by_client()
        own = by_client.pop(current_client.get(), 0)
        return own + generations <= self.options.max_requests // (len(by_client) + 1)

    def start(
        self,
        body: SamplingRequest,
        prompts: Sequence[list[int]],
        limits: Limits,
        grammar: Grammar | None,
        *,
        tools: ToolUse | None = None,
        adapter: str | None,
    ) -> Answers:
        """Submits the prompts. The answers must be released.

        tools: those that answers may call; their grammar takes the place of `grammar`. adapter: one of self.adapters, or None.
        """
        facts = self.admit(len(prompts))
        samples = body.n or 1
        wanted = [self._engine_options(body, prompt, limits, facts) for prompt in prompts]
        if tools is not None:
            grammar = tools.grammar
        if grammar is not None:
            if not facts.stop_tokens:
                raise invalid("this model has no stop token, so its answers cannot end where a grammar ends")
            wanted = [options | {"grammar": grammar.source} for options in wanted]
        if adapter is not None:
            wanted = [options | {"adapter": adapter} for options in wanted]
        mailbox = Mailbox()
        stops = body.stops()
        make_parser = tools.make_parser if tools else lambda: None
        choices = [Choice(self.texts, stops, make_parser()) for _ in range(samples * len(prompts))]
        answers = Answers(self.ranks, mailbox, choices, self.options.request_seconds)
        for index, (prompt, options) in enumerate(zip(prompts, wanted, strict=True)):
            answers.add(self.ranks.submit(prompt, options, samples, mailbox, index * samples))
        return answers

    def _engine_options(
        self, body: SamplingRequest, prompt: list[int], limits: Limits, facts: ModelFacts
    ) -> dict[str, object]:
        if body.stream_options is not None and not body.stream:
            raise invalid("stream_options needs stream", "stream_options")
        options: dict[str, object] = {
            "temperature": 1.0 if body.temperature is None else body.temperature,
            # Restarted ranks need the same seed.
            "seed": secrets.randbits(64) if body.seed is None else body.seed & (1 << 64) - 1,
            "stop_tokens": [] if body.ignore_eos else facts.stop_tokens,
            "max_new_tokens": self._max_new_tokens(prompt, limits, facts),
        }
        options |= {name: value for name in _SAME_NAMES if (value := getattr(body, name)) is not None}
        if biases := body.biases():
            options["biases"] = biases
        if limits.logprobs is not None:
            options["logprobs"] = limits.logprobs
        return options

    def _max_new_tokens(self, prompt: list[int], limits: Limits, facts: ModelFacts) -> int:
        left = facts.max_context - len(prompt)
        if left < 1 or (limits.max_tokens is not None and limits.max_tokens > left):
            asked = "" if limits.max_tokens is None else f" and {limits.max_tokens} tokens of an answer"
            raise invalid(
                f"a prompt of {len(prompt)} tokens{asked} exceed the context of {facts.max_context} tokens",
                limits.param,
                "context_length_exceeded",
            )
        most = self.options.max_tokens
        if limits.max_tokens is not None and most is not None and limits.max_tokens > most:
            raise invalid(f"{limits.max_tokens} tokens; this server generates at most {most}", limits.param)
        return min(limit for limit in (left, limits.max_tokens, most) if limit is not None)
