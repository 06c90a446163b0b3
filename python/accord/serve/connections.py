"""Connections with limits that uvicorn does not have: their number, the time for headers, for the rest of a body that
nobody reads, and for clients to take what is sent to them.
"""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from accord.serve.errors import error_object
from accord.serve.logs import log
from accord.serve.options import ServeOptions

__all__ = ["limited_connection"]

_LINGER_SECONDS = 5.0  # for the rest of a body after its answer; to close at once could destroy the answer


def limited_connection(options: ServeOptions) -> type[Connection]:
    """Returns the class of connections with the limits of these options."""
    limits = {
        "max_connections": options.max_connections,
        "header_seconds": options.header_seconds,
        "send_seconds": options.send_seconds,
    }
    return type("LimitedConnection", (Connection,), limits)


class Connection(H11Protocol):
    max_connections: int
    header_seconds: float
    send_seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1)  # writing is paused whenever the client does not take everything
        self._idle_since = self.loop.time()
        self._header_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.max_connections and not self._close_idlest():
            self._refuse(503, f"the server has {self.max_connections} connections")
        else:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._send_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        """True while a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _close_idlest(self) -> bool:
        """Closes the connection that has been without a request for longest, if there is one besides this."""
        idle = [other for other in self.connections if isinstance(other, Connection) and not other._busy]
        idle = [other for other in idle if other is not self and not other.transport.is_closing()]
        if not idle:
            return False
        min(idle, key=lambda other: other._idle_since).transport.abort()
        return True

    # Headers that do not arrive

    def data_received(self, data: bytes) -> None:
        if self._header_timer is None and not self._busy:
            self._expect_headers()
        super().data_received(data)
        if self._busy:
            self._cancel_header_timer()

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_seconds, self._end_slow_headers)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end_slow_headers(self) -> None:
        self._header_timer = None
        if self.conn.our_state is h11.IDLE:
            self._refuse(408, f"the headers did not arrive within {self.header_seconds:g} s")

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        self._cancel_header_timer()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self._busy:
            self._linger_timer = self.loop.call_later(_LINGER_SECONDS, self._end_lingering)

    def _end_lingering(self) -> None:
        if self.conn.their_state is h11.SEND_BODY and not self._busy:
            self.transport.abort()

    # Clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _watch_sending(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self.send_seconds, self._check_sending, unsent)

    def _check_sending(self, unsent_before: int) -> None:
        if self.transport.get_write_buffer_size() < unsent_before:
            self._watch_sending()
            return
        log("slow_client", "warning", client=self.client[0] if self.client else None, seconds=self.send_seconds)
        self.transport.abort()

    # Answers without a request

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answers with an error and closes the connection, if that is still possible."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = json.dumps(error_object(status, message)).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        if status == 503:
            headers.append(("Retry-After", "1"))
        events = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()
