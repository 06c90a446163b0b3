"""The options of the server. `accord serve` in src/cli/serve.cpp describes them to users."""

from __future__ import annotations

import argparse
import functools
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

__all__ = ["ModelOptions", "Parser", "ServeOptions", "parse_options"]

_RENDEZVOUS_PORT = 29400  # that of `accord run`


@dataclass(frozen=True)
class ModelOptions:
    """A model, and the options of its service. Models of a server differ in name and package only."""

    name: str  # in requests
    package: Path
    ranks: int  # on this node
    launch: tuple[str, ...]  # more options of `accord run`
    shape: dict[str, object]  # how the ranks share the package: arguments of groups.axes()
    load: dict[str, object]  # arguments of accord.load
    create: dict[str, object]  # arguments of LanguageModel.create
    max_sequences: int
    max_rows: int
    max_requests: int
    max_tokens: int | None
    request_seconds: float
    stall_seconds: float
    log_prompts: bool


@dataclass(frozen=True)
class ServeOptions:
    models: tuple[ModelOptions, ...]  # at least one
    node_rank: int  # 0: this node answers requests; others only have ranks
    host: str
    port: int
    max_connections: int
    header_seconds: float
    send_seconds: float
    max_body_bytes: int
    drain_seconds: float
    api_keys: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    cors_origins: tuple[str, ...]
    trusted_proxies: tuple[str, ...]  # addresses and networks


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f'{self.prog}: {message}\nsee "{self.prog} --help"\n')


def parse_options(words: list[str]) -> ServeOptions:
    parser = Parser(prog="accord serve", allow_abbrev=False)
    add = parser.add_argument
    add("models", nargs="+", metavar="model")
    for name in ("ranks", "pp", "cp", "nnodes"):
        add(f"--{name}", type=int, default=1)
    for name in ("group", "device", "rdzv-endpoint"):
        add(f"--{name}")
    add("--node-rank", type=int)
    add("--rdzv-timeout", type=float, default=600)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--model-name")
    for name in ("threads", "canonical-ranks", "cache-tokens", "overlap-rows"):
        add(f"--{name}", type=int)
    add("--max-sequences", type=int, default=64)
    add("--max-rows", type=int, default=512)
    add("--max-connections", type=int, default=1024)
    add("--header-seconds", type=float, default=20)
    add("--send-seconds", type=float, default=60)
    for name in ("activation-dtype", "all-reduce-dtype", "memory-limit", "cache-dtype"):
        add(f"--{name}")
    add("--max-requests", type=int, default=256)
    add("--max-tokens", type=int)
    add("--max-body-bytes", type=int, default=8 << 20)
    add("--request-seconds", type=float, default=600)
    add("--stall-seconds", type=float, default=60)
    add("--drain-seconds", type=float)
    for name in ("api-keys", "tls-certificate", "tls-key"):
        add(f"--{name}", type=Path)
    add("--cors-origins", default="")
    add("--trusted-proxies", default="127.0.0.1,::1")
    add("--log-prompts", action="store_true")
    given = parser.parse_args(words)
    if given.port > 65535:
        parser.error(f"--port {given.port}: expected a number from 0 to 65535")
    if given.tls_key is not None and given.tls_certificate is None:
        parser.error("--tls-key needs --tls-certificate")

    def chosen(*names: str) -> dict[str, object]:
        values = {name: getattr(given, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    model = functools.partial(
        ModelOptions,
        ranks=given.ranks,
        shape=chosen("group", "pp", "cp"),
        load=chosen(
            *("device", "threads", "canonical_ranks", "overlap_rows"),
            *("all_reduce_dtype", "activation_dtype", "memory_limit"),
        ),
        create=chosen("cache_tokens", "cache_dtype", "max_sequences", "max_rows"),
        max_sequences=given.max_sequences,
        max_rows=given.max_rows,
        max_requests=given.max_requests,
        max_tokens=given.max_tokens,
        request_seconds=given.request_seconds,
        stall_seconds=given.stall_seconds,
        log_prompts=given.log_prompts,
    )
    if given.drain_seconds is None:
        given.drain_seconds = 0 if given.node_rank else given.request_seconds
    packages = _packages(parser, given.models, given.model_name)
    launches = _launches(parser, given, list(packages))
    return ServeOptions(
        models=tuple(
            model(name=name, package=package, launch=launch)
            for (name, package), launch in zip(packages.items(), launches, strict=True)
        ),
        node_rank=given.node_rank or 0,
        host=given.host,
        port=given.port,
        max_connections=given.max_connections,
        header_seconds=given.header_seconds,
        send_seconds=given.send_seconds,
        max_body_bytes=given.max_body_bytes,
        drain_seconds=given.drain_seconds,
        api_keys=given.api_keys,
        tls_certificate=given.tls_certificate,
        tls_key=given.tls_key,
        cors_origins=tuple(filter(None, given.cors_origins.split(","))),
        trusted_proxies=_networks(parser, given.trusted_proxies),
    )


def _launches(parser: Parser, given: argparse.Namespace, models: list[str]) -> list[tuple[str, ...]]:
    """Returns the options of `accord run` by which the nodes of each model meet. Each model has a port of its own."""
    if given.nnodes == 1:
        for name in ("node_rank", "rdzv_endpoint"):
            if getattr(given, name):
                parser.error(f"--{name.replace('_', '-')} {getattr(given, name)}: there is one node; give --nnodes")
        return [()] * len(models)
    if given.rdzv_endpoint is None:
        parser.error(f"--nnodes {given.nnodes} needs --rdzv-endpoint HOST[:PORT], where the nodes meet")
    if given.node_rank is None or given.node_rank >= given.nnodes:
        parser.error(f"--node-rank {given.node_rank}: expected a number from 0 to {given.nnodes - 1}")
    host, port = _endpoint(parser, given.rdzv_endpoint, len(models))
    words = (
        "--nnodes",
        str(given.nnodes),
        "--node-rank",
        str(given.node_rank),
        "--rdzv-timeout",
        str(given.rdzv_timeout),
    )
    return [
        (*words, "--rdzv-endpoint", f"{host}:{port + index}", "--rdzv-id", model) for index, model in enumerate(models)
    ]


def _endpoint(parser: Parser, text: str, models: int) -> tuple[str, int]:
    """Returns the host, with brackets if it had them, and the port of the first model."""
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::([0-9]+))?", text)
    port = int(match[2] or _RENDEZVOUS_PORT) if match else 0
    if match is None or not 0 < port <= 65536 - models:
        parser.error(f"--rdzv-endpoint {text}: expected HOST or HOST:PORT, with a port for each model")
    return match[1], port


def _networks(parser: Parser, text: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    for one in found:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            parser.error(f"--trusted-proxies: {error}")
    return found


def _packages(parser: Parser, words: list[str], model_name: str | None) -> dict[str, Path]:
    """Returns the packages by the names of their models. A word is PATH or NAME=PATH."""
    if model_name is not None and len(words) > 1:
        parser.error("--model-name is for a single model; name each of several with NAME=PATH")
    packages: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():  # a path may contain "="
            name, path = model_name or Path(word).resolve().name.removesuffix(".accord"), word
        elif model_name is not None:
            parser.error(f"--model-name {model_name}, and {word}: the model has two names")
        if not name or not path:
            parser.error(f"{word}: expected PATH or NAME=PATH")
        if name in packages:
            parser.error(f'{packages[name]} and {path} have the same name, "{name}"; give one of them as NAME=PATH')
        packages[name] = Path(path)
    return packages
