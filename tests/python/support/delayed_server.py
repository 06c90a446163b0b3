"""A server with OpenAI's interface that answers at known times, and records what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class DelayedServer(ThreadingHTTPServer):
    """Every word is a token. The n-th answer fails if `fails(n)` is true, from 0."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, first_seconds: float = 0.1, next_seconds: float = 0.02, fails=lambda number: False):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.first_seconds = first_seconds
        self.next_seconds = next_seconds
        self.fails = fails
        self.lock = threading.Lock()
        self.requests: list[dict] = []  # the path, the body, the headers and the time of each
        self.running = self.most_running = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self) -> list[dict]:
        """Returns the requests without the first one, by which the load generator learns the length of a token."""
        return self.requests[1:]


class _Handler(BaseHTTPRequestHandler):
    server: DelayedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": "delayed", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            number = len(server.requests) - 1
            server.requests.append(
                {"path": self.path, "body": body, "headers": dict(self.headers), "time": time.monotonic()}
            )
            server.running += 1
            server.most_running = max(server.running, server.most_running)
        try:
            if number >= 0 and server.fails(number):
                self._answer(429, {"error": {"message": "too many", "code": "too_many_requests"}})
            else:
                self._stream(body)
        finally:
            with server.lock:
                server.running -= 1

    def _answer(self, status: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, body: dict) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        if chat:
            self._event({"choices": [{"delta": {"role": "assistant", "content": None}}]})
        for index in range(body["max_tokens"]):
            time.sleep(self.server.next_seconds if index else self.server.first_seconds)
            self._event({"choices": [{"delta": {"content": " a"}} if chat else {"text": " a"}]})
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": body["max_tokens"]}
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextlib.contextmanager
def delayed_server(**options) -> Iterator[DelayedServer]:
    with DelayedServer(**options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
