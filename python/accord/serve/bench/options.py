"""The options of the load generator. `accord bench serve` in src/cli/bench/serve.cpp describes them to users."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from accord.serve.options import Parser

__all__ = ["LoadOptions", "parse_load_options"]

_DEFAULT_TOKENS = (128, 128)
_REQUESTS_OF_A_CLIENT = 10
_FEWEST_REQUESTS = 30

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class LoadOptions:
    url: SplitResult
    clients: tuple[int, ...]  # of each measurement; empty if rates are given
    rates: tuple[float, ...]  # requests per second
    requests: int | None
    seconds: float
    prompt_tokens: tuple[int, int]  # shortest and longest
    answer_tokens: tuple[int, int] | None  # None: as in the data set
    dataset: Path | None
    chat: bool
    model: str | None
    body: dict
    seed: int
    timeout: float
    json: str | None
    plot: Path | None

    def requests_of(self, clients: int | None) -> int:
        """Returns the number of requests of one measurement."""
        return self.requests or max(_FEWEST_REQUESTS, _REQUESTS_OF_A_CLIENT * (clients or 1))


def parse_load_options(words: list[str]) -> LoadOptions:
    parser = Parser(prog="accord bench serve", allow_abbrev=False)
    add = parser.add_argument
    add("url")
    for name in ("clients", "rate", "prompt-tokens", "answer-tokens", "model", "body", "json"):
        add(f"--{name}")
    for name in ("dataset", "plot"):
        add(f"--{name}", type=Path)
    add("--requests", type=int)
    add("--seed", type=int, default=0)
    add("--seconds", type=float, default=math.inf)
    add("--timeout", type=float, default=600)
    add("--chat", action="store_true")
    given = parser.parse_args(words)
    try:
        if given.clients is not None and given.rate is not None:
            raise ValueError("--rate: give either clients or rates")
        if given.dataset is not None and given.prompt_tokens is not None:
            raise ValueError("--prompt-tokens: the prompts are those of --dataset")
        rates = _numbers("--rate", given.rate or "", float)
        answer_tokens = None if given.dataset is not None else _DEFAULT_TOKENS
        if given.answer_tokens is not None:
            answer_tokens = _range("--answer-tokens", given.answer_tokens)
        return LoadOptions(
            url=_url(given.url),
            clients=() if rates else _numbers("--clients", given.clients or "1", int),
            rates=rates,
            requests=given.requests,
            seconds=given.seconds,
            prompt_tokens=_range("--prompt-tokens", given.prompt_tokens) if given.prompt_tokens else _DEFAULT_TOKENS,
            answer_tokens=answer_tokens,
            dataset=given.dataset,
            chat=given.chat,
            model=given.model,
            body=_body(given.body),
            seed=given.seed,
            timeout=given.timeout,
            json=given.json,
            plot=given.plot,
        )
    except ValueError as error:
        parser.error(str(error))


def _url(text: str) -> SplitResult:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f'"{text}" is not the address of a server, such as http://127.0.0.1:8000')
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"))


def _numbers(option: str, text: str, kind: type[Number]) -> tuple[Number, ...]:
    try:
        numbers: tuple[Number, ...] = tuple(kind(word) for word in filter(None, text.split(",")))
    except ValueError:
        numbers = ()
    if text and (not numbers or not all(0 < number < math.inf for number in numbers)):
        raise ValueError(f"{option} {text}: expected numbers above 0, between commas")
    return numbers


def _range(option: str, text: str) -> tuple[int, int]:
    words = text.split(":")
    if len(words) > 2 or not all(word.isdecimal() for word in words) or not 0 < int(words[0]) <= int(words[-1]):
        raise ValueError(f"{option} {text}: expected a number, or a range such as 32:512")
    return int(words[0]), int(words[-1])


def _body(text: str | None) -> dict:
    if text is None:
        return {}
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--body: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("--body: expected a JSON object")
    return body
