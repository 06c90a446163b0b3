"""Generations as the server keeps them: enough to submit each of them again to ranks that know nothing of it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from accord.serve.errors import ApiError

__all__ = ["Generation", "Mailbox", "NewToken", "Sample", "Submission"]


@dataclass(slots=True)
class NewToken:
    """One more token of a choice, or its end, or both."""

    choice: int  # among all choices of an HTTP request
    token: int | None
    finish: str  # "" until the choice ends; then "stop_token" or "length"
    logprobs: tuple[float, list[tuple[int, float]]] | None = None  # of the token, and of the best tokens


class Mailbox:
    """The new tokens of all generations of one HTTP request, for the task that answers it."""

    def __init__(self) -> None:
        self._tokens: deque[NewToken] = deque()
        self._changed = asyncio.Event()
        self._error: ApiError | None = None

    def put(self, token: NewToken) -> None:
        self._tokens.append(token)
        self._changed.set()

    def fail(self, error: ApiError) -> None:
        if self._error is None:
            self._error = error
            self._changed.set()

    async def arrival(self) -> None:
        """Waits for tokens. Raises the failure of the request."""
        await self._changed.wait()
        if self._error is not None:
            raise self._error

    async def take(self) -> list[NewToken]:
        """Waits for tokens and returns those that have arrived."""
        await self.arrival()
        tokens = list(self._tokens)
        self._tokens.clear()
        self._changed.clear()
        return tokens


@dataclass(slots=True)
class Sample:
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    last_time: float = 0  # when its last token arrived


@dataclass(frozen=True)
class Submission:
    """A request for rank 0."""

    prompt: list[int]
    options: dict[str, object]


@dataclass(eq=False, slots=True)
class Generation:
    """The continuations of one prompt."""

    prompt: list[int]
    options: dict[str, object]  # of LanguageModel.submit(); "seed" is among them
    mailbox: Mailbox
    first_choice: int  # the choice of its first sample
    samples: list[Sample]
    start_time: float
    client: str = ""
    started: bool = False  # its first token has arrived since it was sent to the ranks
    numbers: set[int] = field(default_factory=set)  # of its submissions to the ranks
    stalled_restarts: int = 0  # restarts since it received a token

    @property
    def ended(self) -> bool:
        return all(sample.ended for sample in self.samples)

    def submissions(self) -> list[Submission]:
        """Returns the requests that continue it: the first one, or one for each sample that has begun and not ended.

        A draw depends only on the seed, the sample and the position, so each sample gets the tokens that would have
        followed.
        """
        if not any(sample.tokens or sample.ended for sample in self.samples):
            return [Submission(self.prompt, self.options)]
        return [self._resumed(index, sample) for index, sample in enumerate(self.samples) if not sample.ended]

    def _resumed(self, index: int, sample: Sample) -> Submission:
        options = self.options | {"samples": 1, "first_sample": index, "generated": len(sample.tokens)}
        limit = self.options.get("max_new_tokens")
        if isinstance(limit, int):
            options["max_new_tokens"] = limit - len(sample.tokens)
        return Submission(self.prompt + sample.tokens, options)
