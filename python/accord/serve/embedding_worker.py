"""The ranks of an encoder: rank 0 receives texts as tokens, all ranks compute their embeddings together, and rank 0
sends them back.

Before each run, rank 0 broadcasts the sizes of the batch and then its tokens. While there is nothing to do, it
broadcasts sizes of 0 every half second, so that no rank waits for longer than a collective may take.
"""

from __future__ import annotations

import base64
import contextlib
import queue
import threading

import numpy as np

import accord
from accord.serve.frames import BlockingLink

__all__ = ["is_encoder", "run_encoder"]

_IDLE_SECONDS = 0.5
_INPUTS = {"input_ids", "attention_mask"}


def is_encoder(inspected: dict) -> bool:
    """Returns whether a package, as accord.inspect() describes it, computes embeddings of texts."""
    inputs = {one["name"]: one["shape"] for one in inspected["inputs"]}
    outputs = [one["shape"] for one in inspected["outputs"]]
    return inputs.keys() == _INPUTS and len(outputs) == 1 and len(outputs[0]) == 2 and isinstance(outputs[0][1], int)


def run_encoder(engine: accord.Engine, inspected: dict, comm: accord.Communicator, link: BlockingLink) -> int:
    """Runs until the server ends it; returns the exit code."""
    if comm.rank == 0:
        return _Leader(engine, comm, link).run(_limits(inspected))
    link.close()
    while (tokens := _receive_batch(comm)) is not None:
        if len(tokens):
            with contextlib.suppress(accord.InvalidArgument):  # such as an unknown token; rank 0 reports it
                engine.run(input_ids=tokens[0], attention_mask=tokens[1])
    return 0


def _limits(inspected: dict) -> dict[str, object]:
    largest = {one["name"]: one["max"] for one in inspected["symbols"]}
    (batch, length) = next(one["shape"] for one in inspected["inputs"] if one["name"] == "input_ids")
    ((_, size),) = (one["shape"] for one in inspected["outputs"])
    limits = {"max_batch": largest.get(batch, batch), "max_context": largest.get(length, length)}
    return limits | {"dimensions": size, "vocabulary": 0, "stop_tokens": []}


def _receive_batch(comm: accord.Communicator) -> np.ndarray | None:
    """Returns ids and mask [2, batch, length], an empty array if there is nothing to do, None at the end."""
    sizes = np.zeros(2, np.int64)
    comm.broadcast(sizes, 0)
    if sizes[0] < 0:
        return None
    tokens = np.zeros((2, *sizes) if sizes[0] else 0, np.int64)
    if sizes[0]:
        comm.broadcast(tokens, 0)
    return tokens


class _Leader:
    def __init__(self, engine: accord.Engine, comm: accord.Communicator, link: BlockingLink):
        self._engine = engine
        self._comm = comm
        self._link = link
        self._messages: queue.SimpleQueue[dict | None] = queue.SimpleQueue()

    def run(self, limits: dict[str, object]) -> int:
        self._link.send({"ready": limits})
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            try:
                message = self._messages.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                self._announce(0, 0)
                self._link.send({"events": []})
                continue
            if message is None or "stop" in message:
                self._announce(-1, 0)
                return 0 if message else 1
            try:
                self._link.send({"embedded": message["embed"], "vectors": self._embed(message["tokens"])})
            except accord.InvalidArgument as error:
                self._link.send({"refused": message["embed"], "error": str(error)})

    def _receive(self) -> None:
        while (message := self._link.receive()) is not None:
            self._messages.put(message)
        self._messages.put(None)

    def _announce(self, batch: int, length: int) -> None:
        self._comm.broadcast(np.array([batch, length], np.int64), 0)

    def _embed(self, texts: list[list[int]]) -> str:
        """Returns the embeddings as float32, one after the other, in base64."""
        tokens = np.zeros((2, len(texts), max(map(len, texts))), np.int64)
        for row, text in enumerate(texts):
            tokens[0, row, : len(text)] = text
            tokens[1, row, : len(text)] = 1
        self._announce(*tokens.shape[1:])
        self._comm.broadcast(tokens, 0)
        (vectors,) = self._engine.run(input_ids=tokens[0], attention_mask=tokens[1])
        return base64.b64encode(np.asarray(vectors, np.float32).tobytes()).decode()
