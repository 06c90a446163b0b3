"""One rank of the soak test of requests: an engine, and random requests to it.

Rank 0 submits requests from several threads and compares every answer with that of transformers; the other ranks
follow. A rank that gets an error releases everything, and the next episode creates it again.
"""

from __future__ import annotations

import json
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

from member import send, serve

import accord

THREADS = 4
# Greedy answers are known from transformers. Sampled answers must be the same every time.
WAYS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
    "top_k": {"temperature": 1.3, "top_k": 20, "repetition_penalty": 1.1},
}


@dataclass
class Counts:
    finished: int = 0
    cancelled: int = 0
    lost: int = 0  # because a rank died
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[list] = field(default_factory=list)  # of requests: type, lost ranks, text
    sampled: dict[str, list[int]] = field(default_factory=dict)  # the longest answer to each request


class RequestRunner:
    """The requests of one episode. `known` has the ids of each prompt and the tokens that follow."""

    def __init__(self, model: accord.LanguageModel, episode: dict, known: list[dict]) -> None:
        self.model, self.episode, self.known = model, episode, known
        self.lock = threading.Lock()
        self.next = 0
        self.counts = Counts()

    def run(self) -> None:
        """Submits requests until all have ended or one has failed."""
        while True:
            with self.lock:
                number, self.next = self.next, self.next + 1
            if number >= self.episode["requests"]:
                return
            if number == self.episode["notify_at"]:
                send({"reached": True})
            choice = random.Random(f"{self.episode['seed']}/{number}")
            index = choice.randrange(len(self.known))
            way = choice.choice(list(WAYS))
            most = choice.randrange(1, len(self.known[index]["answer"]) + 1)
            cancel_at = choice.randrange(most) if choice.random() < 0.2 else None
            try:
                if not self.submit(index, way, most, cancel_at):
                    return
            except accord.Error as error:
                self.failed(error)
                return

    def submit(self, index: int, way: str, most: int, cancel_at: int | None) -> bool:
        """Submits one request. Returns whether more may follow."""
        stream = self.model.submit(
            self.known[index]["prompt"], max_new_tokens=most, seed=index, stop_tokens=[], **WAYS[way]
        )
        tokens: list[int] = []
        for event in stream:
            if event.token is not None:
                tokens.append(event.token)
            if len(tokens) - 1 == cancel_at:
                stream.cancel()
        with self.lock:
            self.check(index, way, tokens)
            self.counts.tokens += len(tokens)
            if event.finish == "length" and len(tokens) == most:
                self.counts.finished += 1
            elif event.finish == "cancelled" and cancel_at is not None:
                self.counts.cancelled += 1
            elif event.finish == "error":
                self.counts.lost += 1
            else:
                self.counts.wrong.append(f"{way} {index}: {event.finish!r} after {len(tokens)} of {most} tokens")
        if event.finish == "error":
            self.failed(event.error)
            return False
        return True

    def check(self, index: int, way: str, tokens: list[int]) -> None:
        name = f"{way} {index}"
        other = self.known[index]["answer"] if way == "greedy" else self.counts.sampled.get(name, [])
        common = min(len(tokens), len(other))
        if tokens[:common] != other[:common]:
            self.counts.wrong.append(f"{name}: {tokens} instead of {other}")
        if way != "greedy" and len(tokens) > len(other):
            self.counts.sampled[name] = tokens

    def failed(self, error: accord.Error) -> None:
        with self.lock:
            self.counts.errors.append([type(error).__name__, list(getattr(error, "ranks", ())), str(error)])


def submit_all(model: accord.LanguageModel, episode: dict) -> dict:
    runner = RequestRunner(model, episode, json.loads(Path(episode["known"]).read_text()))
    threads = [threading.Thread(target=runner.run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runner.counts.__dict__


def play(episode: dict) -> dict:
    store = accord.FileStore(episode["store"])
    with accord.Communicator.create(store, episode["rank"], episode["size"], timeout=60) as comm:
        send({"began": True})
        try:
            with accord.load(episode["package"], {"tp": comm}) as engine:
                model = accord.LanguageModel.create(engine, cache_tokens=600, max_sequences=12, max_rows=64)
                if episode["rank"] == 0:
                    result = submit_all(model, episode)
                    if not result["errors"]:
                        model.stop()
                    return result
                model.follow()
                return {"errors": []}
        except accord.Error as error:
            return {"errors": [[type(error).__name__, list(getattr(error, "ranks", ())), str(error)]]}


if __name__ == "__main__":
    serve(play)
