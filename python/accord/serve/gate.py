"""The first and last thing that happens to a request: API keys, the size of its body, and its line in the log."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accord.serve.clients import current_client
from accord.serve.errors import ApiError
from accord.serve.logs import log
from accord.serve.metrics import Metrics

__all__ = ["ApiKeys", "Gate"]

_OPEN_PATHS = frozenset({"/", "/health", "/ready"})  # need no key: a browser's first request, and supervisors
_UNLOGGED_PATHS = frozenset({"/health", "/ready", "/metrics"})  # asked every few seconds
_CLIENT_GONE = 499  # the status in log and metrics if the client did not wait for one


class ApiKeys:
    """The keys of a file: one a line; empty lines and those that begin with # are skipped. Keeps only their hashes."""

    def __init__(self, path: Path):
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        self._hashes = [self._hash(line) for line in lines if line and not line.startswith("#")]
        if not self._hashes:
            raise ValueError(f"{path} has no key")

    def client(self, authorization: str) -> str | None:
        """Returns the name of the key's client, None if there is no such key. Compares with every key, in a time that
        does not depend on the keys."""
        scheme, _, key = authorization.partition(" ")
        given = self._hash(key.strip())
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        return f"key {given.hex()}" if scheme.lower() == "bearer" and any(matches) else None

    @staticmethod
    def _hash(key: str) -> bytes:
        return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


class Gate:
    def __init__(
        self, app: ASGIApp, *, keys: ApiKeys | None, max_body_bytes: int, metrics: Metrics, paths: frozenset[str]
    ):
        self._app = app
        self._keys = keys
        self._max_body_bytes = max_body_bytes
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts = scope["facts"] = {}  # for the log
        begin = time.monotonic()
        identity = secrets.token_hex(8)
        status = _CLIENT_GONE

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, self._limited(receive), send_noting_status)
        except ApiError as error:
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send_noting_status)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.responses.labels(facts.get("model", ""), path, str(status)).inc()
            if scope["path"] not in _UNLOGGED_PATHS:
                facts |= {"id": identity, "client": scope["client"][0] if scope.get("client") else None}
                facts |= {"method": scope["method"], "path": scope["path"], "status": status}
                log("request", **facts, seconds=round(time.monotonic() - begin, 6))

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        client: str | None = scope["client"][0] if scope.get("client") else ""
        if self._keys is not None and scope["path"] not in _OPEN_PATHS:
            client = self._keys.client(headers.get("authorization", ""))
        if client is None:
            raise ApiError(
                401,
                "a valid API key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        current_client.set(client)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Callable:
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body_bytes:
                raise self._too_large()
            return message

        return receive_limited

    def _too_large(self) -> ApiError:
        message = f"the body is larger than {self._max_body_bytes} bytes"
        return ApiError(413, message, code="body_too_large")
