"""From the tokens of a choice to its text, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from accord.serve.generation import NewToken
from accord.serve.texts import Texts
from accord.serve.tool_calls import CallDelta, ToolCallParser

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
    calls: list[CallDelta] = field(default_factory=list)  # of tools

    @property
    def empty(self) -> bool:
        return not (self.text or self.finish or self.logprobs or self.calls)

    def extend(self, later: Piece) -> None:
        self.text += later.text
        self.calls += later.calls
        self.finish = later.finish
        self.logprobs += later.logprobs


class Choice:
    """One of the answers to a request."""

    def __init__(self, texts: Texts, stops: Sequence[str], parser: ToolCallParser | None = None):
        """parser: finds calls of tools, and is used for this answer alone."""
        self._tokenizer = texts.tokenizer
        self._decoder = texts.tokenizer.streaming_decoder(skip_special_tokens=parser is None)
        self._search = StopSearch(stops)
        self._parser = parser
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
            if new.finish != "stop_token" and not self._is_hidden(new.token):
                self._add(self._search.push(self._decoder.push(new.token)), piece)
        if new.finish and not self._search.found:
            self._add(self._search.push(self._decoder.finish()), piece)
            if not self._search.found:
                self._add(self._search.finish(), piece)
        parser = self._parser
        if self._search.found or new.finish or (parser is not None and parser.ended):
            self.ended = True
            piece.finish = "length" if new.finish == "length" and not self._search.found else "stop"
            if parser is not None:
                piece.text += parser.finish()
                if parser.calls and (piece.finish == "stop" or parser.ended):
                    piece.finish = "tool_calls"

    def _is_hidden(self, token: int) -> bool:
        """True for a special token that calls of tools do not consist of."""
        if self._parser is None or self._tokenizer.bytes_of(token) is not None:
            return False
        return self._tokenizer.token_of(token) not in self._parser.special_texts

    def _add(self, text: str, piece: Piece) -> None:
        if self._parser is None:
            piece.text += text
        else:
            content, calls = self._parser.push(text)
            piece.text += content
            piece.calls += calls
