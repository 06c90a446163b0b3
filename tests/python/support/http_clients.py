"""Requests to a server that no client library would send, or not in that way."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from served_model import ServedModel

LONG = {"prompt": "One", "max_tokens": 8000, "stream": True}


def ask(server: ServedModel, path: str, body: dict | None = None, *, context=None, **headers: str):
    """Returns the status, the headers and the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def connect(server: ServedModel) -> socket.socket:
    host, _, port = server.url.rpartition("//")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def send_request(connection: socket.socket, body: dict, **headers: object) -> None:
    data = json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in {"Content_Length": len(data), **headers}.items()]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


def metric(server: ServedModel, name: str, model: str | None = None, **headers: str) -> float:
    """Returns a metric of a model; without `model`, of the first one."""
    begin = f'{name}{{model="{model or server.name}"}} '
    lines = ask(server, "/metrics", **headers)[2].splitlines()
    return float(next(line for line in lines if line.startswith(begin)).removeprefix(begin))


def free_port() -> int:
    """Returns a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def free_ports(count: int) -> int:
    """Returns the first of consecutive ports on which nothing listens. They are not those that the kernel gives to
    outgoing connections."""
    while True:
        first = random.randrange(15000, 30000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Creates a certificate for 127.0.0.1; returns its file and that of its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def endless_streams(server: ServedModel, count: int, **options: object) -> list[socket.socket]:
    """Starts streams, and returns their connections once all have begun."""
    connections = [connect(server) for _ in range(count)]
    for connection in connections:
        send_request(connection, LONG | {"model": server.name} | options)
        assert connection.recv(1) == b"H"
    return connections
