"""Runs the server, or the ranks of another node: the listening socket, the models with their ranks, uvicorn, and an end
in order.

After SIGTERM or SIGINT the server refuses new requests, finishes the running ones and ends the ranks; a second signal
ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import socket
import ssl
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from accord.serve.app import make_app
from accord.serve.connections import limited_connection
from accord.serve.gate import ApiKeys
from accord.serve.logs import log, redirect_logging
from accord.serve.metrics import Metrics
from accord.serve.models import Models
from accord.serve.node import Node
from accord.serve.options import ServeOptions

__all__ = ["run_server"]

_BACKLOG = 1024  # connections that wait to be accepted
_MAX_HEADER_BYTES = 1 << 16
_KEEP_ALIVE_SECONDS = 75


class _Server(uvicorn.Server):
    """uvicorn, except that it logs its address, and ends with exit code 0 after a signal."""

    def __init__(self, config: uvicorn.Config, models: Models | Node):
        super().__init__(config)
        self._models = models

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            host, port = listening.getsockname()[:2]
            name = f"[{host}]" if ":" in host else host
            scheme = "https" if self.config.is_ssl else "http"
            log("listening", url=f"{scheme}://{name}:{port}", models=self._models.names)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._models.drain()


def run_server(options: ServeOptions) -> None:
    """Serves until a signal ends the server. Raises StartError, OSError and ValueError if it cannot start."""
    keys = None if options.api_keys is None else ApiKeys(options.api_keys)
    if options.tls_certificate is not None:
        _check_certificate(options.tls_certificate, options.tls_key)
    metrics = Metrics()
    models = (Node if options.node_rank else Models)(options.models, metrics)
    with _listen(options.host, options.port) as listening:
        _raise_descriptor_limit()
        redirect_logging()
        asyncio.run(_serve(options, models, make_app(options, models, keys, metrics), listening))


def _check_certificate(certificate: Path, key: Path | None) -> None:
    """Raises an error that names the files, unlike uvicorn's."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise OSError(f"{' and '.join(map(str, filter(None, (certificate, key))))}: {error.strerror}") from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address, family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise OSError(f"--host {host}: {error.strerror}") from error
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {os.strerror(error.errno)}") from error
    # Connections inherit it. asyncio sets it only for sockets whose protocol number says TCP. Without it, the first
    # event of an answer waits for the client's acknowledgement of the headers, 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: ServeOptions, models: Models | Node, app: Starlette, listening: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        http=limited_connection(options),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=list(options.trusted_proxies),
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(options.drain_seconds),
        ssl_certfile=options.tls_certificate,
        ssl_keyfile=options.tls_key,
    )
    server = _Server(config, models)
    ranks = asyncio.create_task(models.run())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await asyncio.wait((ranks, serving), return_when=asyncio.FIRST_COMPLETED)
        if ranks.done():
            server.force_exit = server.should_exit = True
        await serving
        if options.node_rank:  # the server's requests need the ranks of this node until the server ends
            await asyncio.wait([ranks], timeout=options.drain_seconds)
    finally:
        await models.stop()
        await ranks
        log("ended")
