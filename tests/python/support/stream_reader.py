"""Clients that read a streamed answer while something happens to the server."""

from __future__ import annotations

import threading

import pytest
from served_model import ServedModel

openai = pytest.importorskip("openai")
TOKENS = 4000  # which take longer than the beginning of all streams
OPTIONS = {"max_tokens": TOKENS, "temperature": 1.5, "stream": True}


def client_of(server: ServedModel) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


class Reader(threading.Thread):
    """Reads one streamed answer."""

    def __init__(self, server: ServedModel, **options: object):
        super().__init__(daemon=True)
        self.server = server
        self.options = OPTIONS | {"model": server.name, "prompt": "One"} | options
        self.texts = [""] * self.options.get("n", 1)
        self.ends: list[str] = []
        self.error: Exception | None = None
        self.events = 0
        self.start()

    def run(self) -> None:
        try:
            with client_of(self.server) as client:
                for event in client.completions.create(**self.options):
                    (choice,) = event.choices
                    self.texts[choice.index] += choice.text
                    self.events += 1
                    if choice.finish_reason:
                        self.ends.append(choice.finish_reason)
        except Exception as error:
            self.error = error

    def result(self) -> list[str]:
        self.join(120)
        assert not self.is_alive()
        assert self.error is None, self.error
        assert self.ends == ["length"] * len(self.texts)
        return self.texts
