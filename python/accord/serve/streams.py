"""HTTP around an answer: the body of a request, server-sent events, and clients that go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from accord.serve.errors import ApiError
from accord.serve.logs import log

__all__ = ["EventStream", "event", "read_body", "unless_disconnected"]

_BODY_SECONDS = 60.0

Result = TypeVar("Result")


async def read_body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {_BODY_SECONDS:g} s", code="timeout") from None


async def unless_disconnected(request: Request, result: Awaitable[Result]) -> Result:
    """Returns the result. If the client goes before, cancels the work and raises ClientDisconnect."""
    work = asyncio.ensure_future(result)
    gone = asyncio.ensure_future(_disconnection(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientDisconnect
    finally:
        work.cancel()
        gone.cancel()


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(data: dict) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(StreamingResponse):
    """Server-sent events, `done` after them or the event of an error, and in any case a call of `release` at the end,
    which comes after `seconds` at the latest: a client that does not read may stop the events.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        error_event: Callable[[ApiError], bytes],
        done: bytes,
        release: Callable[[], None],
        seconds: float,
    ):
        super().__init__(
            self._until_done(events, error_event, done),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},  # a proxy must not collect the events
        )
        self._release = release
        self._seconds = seconds

    @staticmethod
    async def _until_done(
        events: AsyncIterator[bytes], error_event: Callable[[ApiError], bytes], done: bytes
    ) -> AsyncIterator[bytes]:
        try:
            async for data in events:
                yield data
        except ApiError as error:  # too late for a status
            yield error_event(error)
            return
        if done:
            yield done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            log("slow_client", "warning", seconds=self._seconds)
        finally:
            self._release()
