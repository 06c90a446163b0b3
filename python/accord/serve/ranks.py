"""Supervises the ranks of node 0, and gives them the generations.

The ranks are started again whenever they end: after a death, after an error that ends the model, and when they make no
progress. Then all generations are submitted again with the tokens that they have. A generation that the ranks do not
survive several times in a row, without a token in between, is ended with an error: it may be the reason.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
from dataclasses import dataclass

from accord.serve.clients import FairQueue, current_client
from accord.serve.errors import ApiError, invalid, unavailable
from accord.serve.generation import Generation, Mailbox, NewToken, Sample
from accord.serve.job import Job
from accord.serve.logs import log
from accord.serve.metrics import ModelMetrics
from accord.serve.options import ModelOptions
from accord.serve.supervisor import State, Supervisor

__all__ = ["ModelFacts", "Ranks"]

_MAX_STALLED_RESTARTS = 5
_STEPS_AHEAD = 2  # steps' worth of prompts that the ranks have in advance
_FEW_PROMPTS = 2  # or so many prompts, if they are long
_TURN_SECONDS = 0.005  # for messages of fast ranks, before the tasks that answer clients run


@dataclass(frozen=True)
class ModelFacts:
    """The sizes and stop tokens that rank 0 reports."""

    max_context: int
    vocabulary: int
    stop_tokens: list[int]
    dimensions: int | None = None  # of embeddings; None: the model generates tokens
    max_batch: int = 1  # texts that an encoder takes at a time


class Ranks(Supervisor):
    def __init__(self, options: ModelOptions, metrics: ModelMetrics):
        super().__init__(options, metrics)
        self.facts: ModelFacts | None = None
        self._live: dict[Generation, None] = {}  # in the order of submission
        self._waiting: FairQueue[Generation] = FairQueue()  # those of _live that are not in _sent
        self._sent: dict[Generation, None] = {}  # to the ranks
        self._by_number: dict[int, Generation] = {}
        self._embeddings: dict[int, tuple[list[list[int]], asyncio.Future[str]]] = {}  # texts and vectors, by number
        self._numbers = itertools.count(1)
        self._last_message = 0.0
        self._last_progress = 0.0
        self._last_steps = -1
        self._new_tokens = 0  # of the current message

    @property
    def open_requests(self) -> int:
        return len(self._live) + len(self._embeddings)

    def submit(
        self, prompt: list[int], options: dict[str, object], samples: int, mailbox: Mailbox, first_choice: int
    ) -> Generation:
        """Starts a generation, whose tokens arrive in the mailbox. Ended by cancel(), which may come at any time."""
        now = asyncio.get_running_loop().time()
        states = [Sample() for _ in range(samples)]
        generation = Generation(
            prompt, options | {"samples": samples}, mailbox, first_choice, states, now, current_client.get()
        )
        if not self._live:
            self._last_progress = now
        self._live[generation] = None
        self._metrics.open_requests.set(len(self._live))
        self._metrics.prompt_tokens.inc(len(prompt))
        self._waiting.push(generation.client, generation)
        self._send_waiting()
        return generation

    async def embed(self, texts: list[list[int]]) -> str:
        """Returns the embeddings of at most max_batch texts, as rank 0 sends them. Survives restarts of the ranks."""
        number = next(self._numbers)
        result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if not self.open_requests:
            self._last_progress = asyncio.get_running_loop().time()
        self._embeddings[number] = texts, result
        try:
            if self.state is State.READY:
                self._send_embedding(number)
            return await result
        finally:
            del self._embeddings[number]

    def _send_embedding(self, number: int) -> None:
        assert self._job is not None
        self._job.send({"embed": number, "tokens": self._embeddings[number][0]})

    def open_requests_by_client(self) -> collections.Counter[str]:
        return collections.Counter(generation.client for generation in self._live)

    def cancel(self, generation: Generation) -> None:
        """Ends a generation. Does nothing if it has ended."""
        for number in generation.numbers:
            if self._job is not None and number in self._by_number:
                self._job.send({"cancel": number})
        self._forget(generation)

    async def stop(self) -> None:
        self._note_stop()
        for generation in list(self._live):
            generation.mailbox.fail(unavailable("the server is shutting down"))
            self.cancel(generation)
        for _, result in self._embeddings.values():
            if not result.done():
                result.set_exception(unavailable("the server is shutting down"))
        if self._job is not None:
            await self._job.stop()

    async def _follow(self, job: Job) -> bool:
        self._last_steps = -1  # not ready
        clock = asyncio.get_running_loop().time
        turn_end = clock() + _TURN_SECONDS
        async for message in job.messages():
            self._handle(message)
            if clock() > turn_end:
                await asyncio.sleep(0)  # messages that have arrived are read without a pause
                turn_end = clock() + _TURN_SECONDS
        return self._last_steps >= 0

    def _stall(self) -> str | None:
        """Also if rank 0 is silent, or if there is work and no step ends."""
        if self._last_steps < 0:
            return super()._stall()
        now, limit = asyncio.get_running_loop().time(), self._options.stall_seconds
        silent = now - self._last_message > limit
        if silent or (self.open_requests and now - self._last_progress > limit):
            return f"no progress for {limit:g} s" + (": rank 0 is silent" if silent else "")
        return None

    def _handle(self, message: dict) -> None:
        now = self._last_message = asyncio.get_running_loop().time()
        if "events" in message:
            self._new_tokens = 0
            for event in message["events"]:
                self._deliver(now, *event)
            self._metrics.generated_tokens.inc(self._new_tokens)
            stats = message.get("stats")
            if message["events"] or (stats is not None and stats["steps"] != self._last_steps):
                self._last_progress = now
            if stats is not None:
                self._last_steps = stats["steps"]
                self._metrics.set_stats(stats)
        elif self._handle_loading(message):
            pass  # rank 0 is ready once all ranks are
        elif "embedded" in message:
            self._last_progress = now
            _, result = self._embeddings.get(message["embedded"], (None, None))
            if result is not None and not result.done():
                result.set_result(message["vectors"])
        elif "refused" in message:
            self._refuse(message["refused"], message["error"])
        elif "ready" in message:
            if self.state is State.STOPPED:
                return
            self._become_ready(now, ModelFacts(**message["ready"]))
        else:
            self._failure = self._failure or message["failed"]

    def _become_ready(self, now: float, facts: ModelFacts) -> None:
        self._set_ready()
        self.facts = facts
        self._last_steps = 0
        self._last_progress = now
        log("ready", model=self._options.name, max_context=facts.max_context, resumed=len(self._sent))
        self._metrics.resumed.inc(len(self._sent))
        for generation in self._sent:
            self._send(generation)
        self._send_waiting()
        for number in self._embeddings:
            self._send_embedding(number)

    def _send_waiting(self) -> None:
        """Sends generations that wait, as long as the ranks can begin with them. The others wait here, where clients
        take turns: the ranks serve requests in the order in which they arrive."""
        if self.state is not State.READY:
            return
        while (generation := self._waiting.first()) is not None and self._has_room(generation):
            self._waiting.pop()
            self._sent[generation] = None
            self._send(generation)
        self._metrics.queued_requests.set(len(self._waiting))

    def _has_room(self, generation: Generation) -> bool:
        samples = sum(len(sent.samples) for sent in self._sent)
        if self._sent and samples + len(generation.samples) > self._options.max_sequences:
            return False
        unstarted = [len(sent.prompt) for sent in self._sent if not sent.started]
        ahead = _STEPS_AHEAD * self._options.max_rows
        return len(unstarted) < _FEW_PROMPTS or sum(unstarted) + len(generation.prompt) <= ahead

    def _send(self, generation: Generation) -> None:
        assert self._job is not None
        for submission in generation.submissions():
            number = next(self._numbers)
            generation.numbers.add(number)
            self._by_number[number] = generation
            self._job.send({"submit": number, "prompt": submission.prompt, "options": submission.options})

    def _deliver(self, now: float, number: int, sample: int, token: int | None, finish: str, more=None) -> None:
        generation = self._by_number.get(number)
        if generation is None or finish == "cancelled":
            return
        if finish == "error":
            generation.mailbox.fail(ApiError(500, f"the model could not continue: {more}", code="generation_failed"))
            self.cancel(generation)
            return
        state = generation.samples[sample]
        if token is not None:
            self._count(now, generation, state)
            state.tokens.append(token)
        if not generation.started:
            generation.started = True
            self._send_waiting()
        state.ended = finish != ""
        generation.mailbox.put(NewToken(generation.first_choice + sample, token, finish, more))
        if finish and generation.ended:
            self._forget(generation)

    def _count(self, now: float, generation: Generation, state: Sample) -> None:
        generation.stalled_restarts = 0
        self._new_tokens += 1
        if state.last_time:
            self._metrics.next_token.observe(now - state.last_time)
        else:
            self._metrics.first_token.observe(now - generation.start_time)
        state.last_time = now

    def _refuse(self, number: int, error: str) -> None:
        if number in self._embeddings:
            _, result = self._embeddings[number]
            if not result.done():
                result.set_exception(invalid(error, "input"))
        generation = self._by_number.get(number)
        if generation is not None:
            generation.mailbox.fail(invalid(error))
            self.cancel(generation)

    def _forget(self, generation: Generation) -> None:
        self._live.pop(generation, None)
        for number in generation.numbers:
            self._by_number.pop(number, None)
        generation.numbers.clear()
        self._metrics.open_requests.set(len(self._live))
        self._waiting.remove(generation.client, generation)
        self._sent.pop(generation, None)
        self._send_waiting()

    def _prepare_restart(self, code: int) -> None:
        facts = {"reason": self._failure, "exit_code": code, "running": len(self._live)}
        log("ranks_ended", "error", model=self._options.name, **facts)
        self._by_number.clear()
        for generation in list(self._sent):
            generation.numbers.clear()
            generation.started = False
            generation.stalled_restarts += 1
            if generation.stalled_restarts > _MAX_STALLED_RESTARTS:
                generation.mailbox.fail(unavailable("the ranks ended several times while they computed this request"))
                self._forget(generation)
