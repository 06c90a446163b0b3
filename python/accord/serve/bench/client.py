"""Streamed answers over HTTP/1.1, with the times at which their parts arrive. h11 does the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import SplitResult

import h11

__all__ = ["Client", "Outcome", "ServerError"]

_CHUNK = 1 << 16
_CONTENT = ("content", "reasoning_content", "tool_calls")  # of a delta; a role alone is no token


class ServerError(Exception):
    """The server did not give the answer. The text is short, to be counted."""


@dataclass(slots=True)
class Outcome:
    """One request. Times are those of time.monotonic()."""

    begin: float
    end: float = 0.0
    arrivals: list[float] = field(default_factory=list)  # of the events with text
    prompt_tokens: int = 0
    answer_tokens: int = 0
    error: str = ""


class _Connection:
    """Not for several requests at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT)

    async def send(self, request: h11.Request, body: bytes) -> None:
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._state.send(event) or b"")
        await self._writer.drain()

    async def events(self) -> AsyncIterator[h11.Response | h11.Data]:
        """Yields the response and then its data."""
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(_CHUNK))
            elif isinstance(event, h11.Response | h11.Data):
                yield event
            elif not isinstance(event, h11.InformationalResponse):
                return

    def reusable(self) -> bool:
        """Prepares for another request, if that is possible."""
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        return True

    def close(self) -> None:
        self._writer.close()


class Client:
    """Requests to one server. Connections are used again."""

    def __init__(self, url: SplitResult, timeout: float):
        self._url = url
        self._timeout = timeout
        self._free: list[_Connection] = []
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        self._headers = [
            ("Host", host if url.port is None else f"{host}:{url.port}"),
            ("Content-Type", "application/json"),
        ]
        if key := os.environ.get("OPENAI_API_KEY"):
            self._headers.append(("Authorization", f"Bearer {key}"))

    async def get(self, path: str) -> dict:
        parts = [part async for part in self._exchange("GET", path, b"")]
        return json.loads(b"".join(parts))

    async def stream(self, path: str, body: dict, begin: float | None = None) -> Outcome:
        """Sends a request and reads its answer, errors included. `begin`: when it was due, if not now."""
        outcome = Outcome(time.monotonic() if begin is None else begin)
        try:
            async with asyncio.timeout(self._timeout):
                await self._read(path, body, outcome)
        except ServerError as error:
            outcome.error = str(error)
        except TimeoutError:
            outcome.error = f"no end within {self._timeout:g} s"
        except (OSError, h11.RemoteProtocolError) as error:
            outcome.error = f"connection: {error}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            outcome.error = f"unexpected answer: {error!r}"
        outcome.end = time.monotonic()
        return outcome

    def close(self) -> None:
        for connection in self._free:
            connection.close()
        self._free.clear()

    async def _read(self, path: str, body: dict, outcome: Outcome) -> None:
        stream = body | {"stream": True, "stream_options": {"include_usage": True}}
        rest, ended = b"", False
        async for data in self._exchange("POST", path, json.dumps(stream).encode()):
            *lines, rest = (rest + data).split(b"\n")
            now = time.monotonic()
            for line in lines:
                if line.startswith(b"data:"):
                    payload = line[5:].strip()
                    ended = ended or payload == b"[DONE]"
                    if payload != b"[DONE]":
                        _note(outcome, now, json.loads(payload))
        if not ended:
            raise ServerError("the stream ended early")
        outcome.answer_tokens = outcome.answer_tokens or len(outcome.arrivals)  # a server that gives no usage

    async def _exchange(self, method: str, path: str, body: bytes) -> AsyncIterator[bytes]:
        """Yields the data of a successful answer."""
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=self._url.path + path, headers=headers)
        connection, response, events = await self._begin(request, body)
        try:
            failed = b"" if response.status_code != 200 else None
            async for event in events:
                assert isinstance(event, h11.Data)
                if failed is None:
                    yield bytes(event.data)
                else:
                    failed += event.data
            if failed is not None:
                raise ServerError(f"{response.status_code} {_message(failed)}".strip())
        except BaseException:
            connection.close()
            raise
        if connection.reusable():
            self._free.append(connection)
        else:
            connection.close()

    async def _begin(self, request: h11.Request, body: bytes):
        """Returns a connection, the head of the response and what follows it. A connection that the server has closed
        since its last use is replaced."""
        while True:
            used = self._free.pop() if self._free else None
            connection = used or await self._connect()
            try:
                await connection.send(request, body)
                events = connection.events()
                return connection, await anext(events), events
            except (OSError, StopAsyncIteration, h11.RemoteProtocolError) as error:
                connection.close()
                if used is None:
                    raise ServerError("the server closed the connection") from error
            except BaseException:
                connection.close()
                raise

    async def _connect(self) -> _Connection:
        port = self._url.port or (80 if self._tls is None else 443)
        try:
            return _Connection(*await asyncio.open_connection(self._url.hostname, port, ssl=self._tls))
        except OSError as error:
            reason = (
                os.strerror(error.errno) if (error.errno or 0) > 0 else error
            )  # a name that is not found has no errno
            raise ServerError(f"cannot connect: {reason}") from error


def _note(outcome: Outcome, now: float, event: dict) -> None:
    if "error" in event:
        raise ServerError(_text_of(event["error"]))
    if usage := event.get("usage"):
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.answer_tokens = usage["completion_tokens"]
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(name) for name in _CONTENT):
            outcome.arrivals.append(now)
            return


def _message(body: bytes) -> str:
    """Returns the text of an error object, or the beginning of a body that is none."""
    try:
        return _text_of(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:80].decode(errors="replace")


def _text_of(error: dict | str) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)[:160]
