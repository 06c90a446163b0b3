"""The program of each rank: python -m accord.serve.worker OPTIONS.

Rank 0 takes requests from the server and sends back the events of each step in one message; the other ranks follow it,
also those on other nodes. Two threads serve rank 0: one receives messages, the other sends events. When the server
closes the connection, or dies, rank 0 ends, and with it the job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from dataclasses import dataclass

import accord
from accord.engines.loading import load
from accord.grammar import Grammar, Masks
from accord.serve import embedding_worker
from accord.serve.frames import BlockingLink
from accord.serve.groups import axes, communicators

__all__ = ["WorkerOptions"]

_LOADING_SECONDS = 0.5  # between two messages of a rank that loads the model
_EVENT_SECONDS = 0.5  # the longest time between two messages of rank 0, about
_STATS_SECONDS = 0.2  # the shortest time between two messages with counters


@dataclass(frozen=True)
class WorkerOptions:
    """The settings of a rank, as JSON in its command line."""

    package: str
    descriptor: int  # of the connection; all ranks of the node inherit it
    shape: dict[str, object]  # arguments of groups.axes()
    load: dict[str, object]
    model: dict[str, object]


class _Loading:
    """Tells the node, again and again, that this rank loads the model: a rank that stands still does not."""

    def __init__(self, rank: int, link: BlockingLink):
        self._message = {"loads": rank}
        self._link = link
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the node has ended; the launcher ends this rank
            while not self._ended.wait(_LOADING_SECONDS):
                self._link.send(self._message)


class _Leader:
    """Rank 0's side of the connection."""

    def __init__(self, model: accord.LanguageModel, link: BlockingLink):
        self._model = model
        self._queue = model.queue()
        self._link = link
        self._sending = threading.Lock()
        self._submitting = threading.Lock()  # held until the number of a new request is known
        self._numbers: dict[int, int] = {}  # the server's number of each request, by the queue's
        self._requests: dict[int, int] = {}  # the reverse
        self._unfinished: dict[int, int] = {}  # samples, by the queue's number
        self._with_logprobs: set[int] = set()

    def run(self) -> int:
        self._send(
            {
                "ready": {
                    "max_context": self._model.max_context,
                    "vocabulary": self._model.vocabulary,
                    "stop_tokens": self._model.stop_tokens,
                }
            }
        )
        threading.Thread(target=self._send_events, daemon=True).start()
        while (message := self._link.receive()) is not None:
            if "submit" in message:
                self._submit(message["submit"], message["prompt"], message["options"])
            elif "cancel" in message:
                request = self._requests.get(message["cancel"])
                if request is not None:
                    self._queue.cancel(request)
            else:
                self._model.stop()
                return 0
        return 1

    @functools.cached_property
    def _masks(self) -> Masks:
        """Created for the first request that needs it: that takes up to a second."""
        return Masks(self._model.tokenizer, self._model.vocabulary, self._model.stop_tokens)

    def _send(self, message: dict) -> None:
        with self._sending:
            self._link.send(message)

    def _submit(self, number: int, prompt: list[int], options: dict) -> None:
        biases = options.get("biases")
        if biases is not None:
            options["biases"] = {int(token): bias for token, bias in biases.items()}  # JSON's keys are texts
        try:
            if "grammar" in options:
                options["mask"] = self._masks.mask(Grammar(options.pop("grammar")))
            with self._submitting:
                request = self._queue.submit(prompt, **options)
                self._numbers[request], self._requests[number] = number, request
                self._unfinished[request] = options.get("samples", 1)
                if "logprobs" in options:
                    self._with_logprobs.add(request)
        except (accord.InvalidArgument, accord.ResourceExhausted, TypeError) as error:
            self._send({"refused": number, "error": str(error)})
        except accord.Error:
            pass  # the model has ended; the other thread reports that

    def _send_events(self) -> None:
        next_stats = 0.0
        try:
            while True:
                events = self._queue.next(_EVENT_SECONDS)
                if self._model.error is not None:
                    return self._fail(self._model.error)
                with self._submitting:
                    message: dict = {"events": [self._event(event) for event in events]}
                now = time.monotonic()
                if not events or now >= next_stats:
                    message["stats"] = self._stats()
                    next_stats = now + _STATS_SECONDS
                self._send(message)
        except OSError:
            os._exit(1)  # the server has died

    def _event(self, event: accord.GenerationEvent) -> list:
        number = self._numbers[event.request]
        sent: list = [number, event.sample, event.token, event.finish]
        if event.error is not None:
            sent.append(str(event.error))
        elif event.request in self._with_logprobs and event.token is not None:
            sent.append([event.logprob, event.top])
        if event.finish:
            self._unfinished[event.request] -= 1
            if self._unfinished[event.request] == 0:
                del self._numbers[event.request], self._requests[number], self._unfinished[event.request]
                self._with_logprobs.discard(event.request)
        return sent

    def _stats(self) -> dict[str, int]:
        stats = self._model.stats
        names = ("requests", "waiting", "running", "blocks", "available_blocks", "steps", "computed_tokens")
        return {name: getattr(stats, name) for name in (*names, "reused_tokens", "preemptions")}

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, accord.Closed):
            self._send({"failed": str(error)})
            os._exit(1)


def _on_this_rank(load_options: dict[str, object]) -> dict[str, object]:
    """Replaces the device "cuda" by a GPU of this rank's own."""
    if load_options.get("device") != "cuda":
        return load_options
    return load_options | {"device": f"cuda:{os.environ['LOCAL_RANK']}"}


def main() -> int:
    options = WorkerOptions(**json.loads(sys.argv[1]))
    link = BlockingLink(options.descriptor)
    try:
        rank = int(os.environ["RANK"])
        link.send({"rank": rank, "process": os.getpid()})
        with _Loading(rank, link):
            comm = accord.Communicator.from_environment(name="serve")
            inspected = accord.inspect(options.package)
            groups = communicators(comm, inspected["groups"], axes(inspected["groups"], comm.size, **options.shape))
            engine = load(options.package, groups, **_on_this_rank(options.load))
            encodes = embedding_worker.is_encoder(inspected)
            model = None if encodes else accord.LanguageModel.create(engine, all_ranks=comm, **options.model)
        if comm.rank != 0:
            link.send({"follows": comm.rank})
    except (accord.Error, OSError, TypeError, ValueError) as error:
        link.send({"failed": str(error)})  # from any rank: the first one to end ends the others
        return 1
    if model is None:
        return embedding_worker.run_encoder(engine, inspected, comm, link)
    if model.leads:
        return _Leader(model, link).run()
    link.close()
    try:
        model.follow()
    except accord.Error:
        return 1  # rank 0 reports it
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # at once: a thread may be waiting for the connection
