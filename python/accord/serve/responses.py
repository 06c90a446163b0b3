"""Answers as responses: at once, or as a stream of server-sent events."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from accord.serve.answer import Piece
from accord.serve.schemas import SamplingRequest
from accord.serve.service import Answers, Service
from accord.serve.streams import EventStream, event, unless_disconnected

__all__ = ["Form", "respond"]


_SLOW_CLIENT_SECONDS = 10.0


class Form(Protocol):
    """How an endpoint writes a choice."""

    id_prefix: str
    whole_object: str  # the response's "object", and that of each event of a stream
    event_object: str

    def whole(self, index: int, piece: Piece) -> dict:
        """Returns a choice with all of its text."""
        ...

    def part(self, index: int, piece: Piece) -> dict:
        """Returns a choice with the text since the last one."""
        ...


async def respond(request: Request, body: SamplingRequest, answers: Answers, form: Form) -> Response:
    """Answers the request and releases the answers."""
    writer = _Writer(request, body, answers, form)
    try:
        if body.stream:
            await unless_disconnected(request, answers.started())
            # The request's own time limit comes first, if the client reads.
            return EventStream(writer.events(), writer.end, writer.seconds + _SLOW_CLIENT_SECONDS)
        whole = await unless_disconnected(request, writer.whole())
    except BaseException:
        writer.end()
        raise
    writer.end()
    return JSONResponse(whole)


class _Writer:
    def __init__(self, request: Request, body: SamplingRequest, answers: Answers, form: Form):
        service: Service = request.app.state.service
        self._facts: dict = request.scope["facts"]
        self._keeps_text = service.options.log_prompts
        self.seconds = service.options.request_seconds
        self._answers = answers
        self._form = form
        self._with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._head = {
            "id": f"{form.id_prefix}-{secrets.token_hex(12)}",
            "object": form.event_object if body.stream else form.whole_object,
            "created": int(time.time()),
            "model": service.options.model_name,
        }

    async def events(self) -> AsyncIterator[bytes]:
        usage = {"usage": None} if self._with_usage else {}
        async for pieces in self._answers.pieces():
            choices = [self._form.part(index, piece) for index, piece in pieces.items()]
            if self._keeps_text:
                self._keep({index: piece.text for index, piece in pieces.items()})
            yield b"".join(event(self._head | {"choices": [choice]} | usage) for choice in choices)
        if self._with_usage:
            yield event(self._head | {"choices": [], "usage": self._answers.usage()})

    async def whole(self) -> dict:
        whole = [Piece() for _ in self._answers.choices]
        async for pieces in self._answers.pieces():
            for index, piece in pieces.items():
                whole[index].extend(piece)
        if self._keeps_text:
            self._keep({index: piece.text for index, piece in enumerate(whole)})
        choices = [self._form.whole(index, piece) for index, piece in enumerate(whole)]
        return self._head | {"choices": choices, "usage": self._answers.usage()}

    def _keep(self, texts: dict[int, str]) -> None:
        """Keeps text of the choices for the log."""
        kept: list[str] = self._facts.setdefault("answers", [""] * len(self._answers.choices))
        for index, text in texts.items():
            kept[index] += text

    def end(self) -> None:
        self._answers.release()
        self._facts.update(self._answers.usage())
