"""The options of the server. `accord serve` in src/cli/serve.cpp describes them to users."""

from __future__ import annotations

import argparse
import functools
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

__all__ = ["ModelOptions", "Parser", "ServeOptions", "parse_options"]


@dataclass(frozen=True)
class ModelOptions:
    """A model, and the options of its service. Models of a server differ in name and package only."""

    name: str  # in requests
    package: Path
    ranks: int
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
    add("--ranks", type=int, default=1)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--model-name")
    for name in ("threads", "canonical-ranks", "cache-tokens"):
        add(f"--{name}", type=int)
    add("--max-sequences", type=int, default=64)
    add("--max-rows", type=int, default=512)
    add("--max-connections", type=int, default=1024)
    add("--header-seconds", type=float, default=20)
    add("--send-seconds", type=float, default=60)
    for name in ("activation-dtype", "memory-limit", "cache-dtype"):
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
        load=chosen("threads", "canonical_ranks", "activation_dtype", "memory_limit"),
        create=chosen("cache_tokens", "cache_dtype", "max_sequences", "max_rows"),
        max_sequences=given.max_sequences,
        max_rows=given.max_rows,
        max_requests=given.max_requests,
        max_tokens=given.max_tokens,
        request_seconds=given.request_seconds,
        stall_seconds=given.stall_seconds,
        log_prompts=given.log_prompts,
    )
    packages = _packages(parser, given.models, given.model_name)
    return ServeOptions(
        models=tuple(model(name=name, package=package) for name, package in packages.items()),
        host=given.host,
        port=given.port,
        max_connections=given.max_connections,
        header_seconds=given.header_seconds,
        send_seconds=given.send_seconds,
        max_body_bytes=given.max_body_bytes,
        drain_seconds=given.request_seconds if given.drain_seconds is None else given.drain_seconds,
        api_keys=given.api_keys,
        tls_certificate=given.tls_certificate,
        tls_key=given.tls_key,
        cors_origins=tuple(filter(None, given.cors_origins.split(","))),
        trusted_proxies=_networks(parser, given.trusted_proxies),
    )


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
