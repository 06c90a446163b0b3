"""Messages between the server and the ranks of its node, over a pair of connected sockets: the length in 4 bytes, then
JSON. Rank 0 has them all; other ranks report their start only.

From the server:
    {"submit": ID, "prompt": TOKENS, "options": {...}}    ID is a number that was not used before; the options are
                                                          those of LanguageModel.submit(), with "grammar" for "mask"
    {"cancel": ID}
    {"embed": ID, "tokens": [TOKENS, ...]}    for an encoder
    {"stop": true}
From rank 0:
    {"rank": R, "process": ID}    from each rank, when it starts
    {"follows": R}    from each rank but 0, when it has loaded the model
    {"ready": {"max_context": N, "vocabulary": N, "stop_tokens": TOKENS}}    of an encoder, also "dimensions" and
                                                                             "max_batch"
    {"events": [EVENT, ...], "stats": {...}}    the events of a step, or none: sent at least every second
    {"embedded": ID, "vectors": TEXT}    float32 in base64
    {"refused": ID, "error": TEXT}    the request is invalid
    {"failed": TEXT}    the ranks could not start, or cannot go on
An EVENT is [ID, sample, token or null, finish or ""], followed by [logprob, [[token, logprob], ...]] if they were
requested, or by the error's text if finish is "error".
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct

__all__ = ["BlockingLink", "frame", "read_frame"]

_LENGTH = struct.Struct("<I")


def frame(message: dict) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> dict | None:
    """Returns the next message, None at the end of the connection."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class BlockingLink:
    """The ranks' end, which only rank 0 uses once the model is loaded. One thread receives; any thread may send if the
    others wait for it."""

    def __init__(self, descriptor: int):
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._input = self._socket.makefile("rb")

    def send(self, message: dict) -> None:
        self._socket.sendall(frame(message))

    def close(self) -> None:
        self._input.close()
        self._socket.close()

    def receive(self) -> dict | None:
        """Returns the next message, None at the end of the connection."""
        try:
            head = self._input.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            body = self._input.read(length)
        except ConnectionError:
            return None
        return json.loads(body) if len(body) == length else None
