"""Sends the requests of a measurement: a number of clients, each one request at a time, or random arrivals."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from accord.serve.bench.client import Client, Outcome, ServerError
from accord.serve.bench.options import LoadOptions
from accord.serve.bench.workload import Prompt, Workload

__all__ = ["Measurement", "Target", "measure"]


@dataclass
class Measurement:
    """One line of the results. Exactly one of `clients` and `rate` is given."""

    clients: int | None
    rate: float | None
    requests: int
    outcomes: list[Outcome] = field(default_factory=list)  # of the requests that have ended


class Target:
    """The server, and how requests are put to it."""

    def __init__(self, options: LoadOptions, client: Client):
        self._client = client
        self._chat = options.chat
        self._path = "/v1/chat/completions" if options.chat else "/v1/completions"
        self._more = options.body
        self.model = options.model or ""

    async def prepare(self, workload: Workload, draw: random.Random) -> float:
        """Finds the model, and returns the characters of a token. Raises ServerError."""
        if not self.model:
            models = await self._client.get("/v1/models")
            if not models.get("data"):
                raise ServerError("the server lists no model")
            self.model = models["data"][0]["id"]
        sample = workload.sample(draw)
        outcome = await self.ask(Prompt(sample, 1))
        if outcome.error:
            raise ServerError(outcome.error)
        return len(sample) / outcome.prompt_tokens if outcome.prompt_tokens else 4.0

    async def ask(self, prompt: Prompt, begin: float | None = None) -> Outcome:
        text = {"messages": [{"role": "user", "content": prompt.text}]} if self._chat else {"prompt": prompt.text}
        body = {"model": self.model, "max_tokens": prompt.answer_tokens, **text, **self._more}
        return await self._client.stream(self._path, body, begin)


async def measure(
    target: Target, measurement: Measurement, next_prompt: Callable[[], Prompt], draw: random.Random, seconds: float
) -> None:
    """Adds the outcomes to the measurement as they arrive, so that it is complete up to now at any time. Sends nothing
    more after `seconds`."""
    end = time.monotonic() + seconds
    if measurement.rate is None:
        await _closed_loop(target, measurement, next_prompt, end)
    else:
        await _open_loop(target, measurement, next_prompt, draw, end)


async def _closed_loop(target: Target, measurement: Measurement, next_prompt: Callable, end: float) -> None:
    left = measurement.requests

    async def client() -> None:
        nonlocal left
        while left > 0 and time.monotonic() < end:
            left -= 1
            measurement.outcomes.append(await target.ask(next_prompt()))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(measurement.clients or 1, measurement.requests)):
            group.create_task(client())


async def _open_loop(
    target: Target, measurement: Measurement, next_prompt: Callable, draw: random.Random, end: float
) -> None:
    """A request's time begins when it is due, even if the load generator is late."""
    assert measurement.rate is not None
    due = time.monotonic()

    async def request(prompt: Prompt, begin: float) -> None:
        measurement.outcomes.append(await target.ask(prompt, begin))

    async with asyncio.TaskGroup() as group:
        for _ in range(measurement.requests):
            due += -math.log(1 - draw.random()) / measurement.rate
            if due >= end:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(request(next_prompt(), due))
