"""From the tokens of a choice to its text, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from accord.serve.generation import NewToken
from accord.serve.texts import Texts

__all__ = ["Choice", "Piece", "StopSearch", "TokenLogprobs"]


class StopSearch:
    """Searches a text that arrives in pieces for stop texts, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Returns the text that is certain not to belong to a stop text. After a find, nothing."""
        if not self._stops or self.found:
            return "" if self.found else text
        text = self._held + text
        begins = [begin for begin in (text.find(stop) for stop in self._stops) if begin >= 0]
        if begins:
            self.found = True
            self._held = ""
            return text[: min(begins)]
        kept = len(text) - self._open_length(text)
        self._held = text[kept:]
        return text[:kept]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _open_length(self, text: str) -> int:
        """Returns the length of the longest end of the text with which a stop text begins."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class Piece:
    """More of a choice: text, and the log probabilities of the tokens since the last piece."""

    text: str = ""
    finish: str = ""  # OpenAI's finish_reason once the choice has ended
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def extend(self, later: Piece) -> None:
        self.text += later.text
        self.finish = later.finish
        self.logprobs += later.logprobs


class Choice:
    """One of the answers to a request."""

    def __init__(self, texts: Texts, stops: Sequence[str]):
        self._decoder = texts.tokenizer.streaming_decoder()
        self._search = StopSearch(stops)
        self.tokens = 0
        self.ended = False

    def push(self, new: NewToken, piece: Piece) -> None:
        """Adds a token to the piece. Ignores what follows the end."""
        if self.ended:
            return
        if new.token is not None:
            self.tokens += 1
            if new.logprobs is not None and new.finish != "stop_token":
                piece.logprobs.append(TokenLogprobs(new.token, *new.logprobs))
            if new.finish != "stop_token":
                piece.text += self._search.push(self._decoder.push(new.token))
        if new.finish and not self._search.found:
            piece.text += self._search.push(self._decoder.finish())
            if not self._search.found:
                piece.text += self._search.finish()
        if self._search.found or new.finish:
            self.ended = True
            piece.finish = "length" if new.finish == "length" and not self._search.found else "stop"
