"""Answers as responses: at once, or as a stream of server-sent events."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from accord.serve.answer import Piece
from accord.serve.errors import ApiError
from accord.serve.models import Model
from accord.serve.schemas import SamplingRequest
from accord.serve.service import Answers
from accord.serve.streams import EventStream, event, unless_disconnected

__all__ = ["ChoiceWriter", "Form", "Writer"]


_SLOW_CLIENT_SECONDS = 10.0


class Form(Protocol):
    """The form in which an endpoint writes a choice."""

    id_prefix: str
    whole_object: str  # the response's "object", and that of each event of a stream
    event_object: str

    def whole(self, index: int, piece: Piece) -> dict:
        """Returns a choice with all of its text."""
        ...

    def part(self, index: int, piece: Piece) -> dict:
        """Returns a choice with the text since the last one."""
        ...


class Writer(ABC):
    """Writes the answers to a request, and notes for the log what it wrote."""

    done = b"data: [DONE]\n\n"  # after the last event of a stream

    def __init__(self, request: Request, model: Model, answers: Answers):
        options = model.service.options
        self._facts: dict = request.scope["facts"]
        self._keeps_text = options.log_prompts
        self._seconds = options.request_seconds
        self._request = request
        self._answers = answers

    @abstractmethod
    def events(self) -> AsyncIterator[bytes]:
        """Yields the events of a stream."""

    @abstractmethod
    async def whole(self) -> dict:
        """Returns the response."""

    def error(self, error: ApiError) -> bytes:
        """Returns the event of an error."""
        return event(error.body)

    async def respond(self, *, stream: bool) -> Response:
        """Answers the request and releases the answers."""
        try:
            if stream:
                await unless_disconnected(self._request, self._answers.started())
                # The request's own time limit comes first, if the client reads.
                seconds = self._seconds + _SLOW_CLIENT_SECONDS
                return EventStream(self.events(), self.error, self.done, self._end, seconds)
            whole = await unless_disconnected(self._request, self.whole())
        except BaseException:
            self._end()
            raise
        self._end()
        return JSONResponse(whole)

    async def _pieces(self) -> AsyncIterator[dict[int, Piece]]:
        """Yields the pieces of the answers, and keeps their texts if the log has them."""
        async for pieces in self._answers.pieces():
            if self._keeps_text:
                kept: list[str] = self._facts.setdefault("answers", [""] * len(self._answers.choices))
                for index, piece in pieces.items():
                    kept[index] += piece.text
            yield pieces

    def _end(self) -> None:
        self._answers.release()
        self._facts.update(self._answers.usage())


class ChoiceWriter(Writer):
    """Writes choices, as completions and chats have them."""

    def __init__(self, request: Request, model: Model, body: SamplingRequest, answers: Answers, form: Form):
        super().__init__(request, model, answers)
        self._form = form
        self._with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._head = {
            "id": f"{form.id_prefix}-{secrets.token_hex(12)}",
            "object": form.event_object if body.stream else form.whole_object,
            "created": int(time.time()),
            "model": model.name,
        }

    async def events(self) -> AsyncIterator[bytes]:
        usage = {"usage": None} if self._with_usage else {}
        async for pieces in self._pieces():
            choices = [self._form.part(index, piece) for index, piece in pieces.items()]
            yield b"".join(event(self._head | {"choices": [choice]} | usage) for choice in choices)
        if self._with_usage:
            yield event(self._head | {"choices": [], "usage": self._answers.usage()})

    async def whole(self) -> dict:
        whole = [Piece() for _ in self._answers.choices]
        async for pieces in self._pieces():
            for index, piece in pieces.items():
                whole[index].extend(piece)
        choices = [self._form.whole(index, piece) for index, piece in enumerate(whole)]
        return self._head | {"choices": choices, "usage": self._answers.usage()}
