"""Finds calls of tools in an answer that arrives in pieces."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accord.serve.tool_elements import ElementReader, loose
from accord.serve.tool_formats import ToolFormat

__all__ = ["CallDelta", "ToolCallParser", "joined"]

_LONGEST_HEAD = 1000  # characters from the sign of a call to its arguments
_NAME = r"(?P<name>[\w.-]+)"
_MORE_MEMBERS = r'(\s*,\s*"\w+"\s*:\s*("[^"]*"|[\w.]+))*'


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A new call (with its id and name), or more of the arguments of the last one."""

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


def joined(deltas: list[CallDelta]) -> list[CallDelta]:
    """Returns one delta for each call."""
    calls: dict[int, CallDelta] = {}
    for delta in deltas:
        known = calls.get(delta.index, CallDelta(delta.index))
        calls[delta.index] = CallDelta(
            delta.index, known.arguments + delta.arguments, known.id or delta.id, known.name or delta.name
        )
    return list(calls.values())


class _ObjectReader:
    """Reads a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def push(self, text: str) -> tuple[int, str, bool]:
        """Returns how many characters are part of the object, these, and whether it is complete."""
        for at, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1, text[: at + 1], True
        return len(text), text, False


class ToolCallParser:
    """Separates an answer into text and calls. Text that only looks like a call stays text.

    single: whether the answer ends with its first call. schemas: those of the arguments, by the names of the tools.
    """

    def __init__(self, form: ToolFormat, *, single: bool, schemas: Mapping[str, Mapping[str, Any]]):
        before, middle, after = form.call_parts
        head = f"{loose(before)}{_NAME}{loose(middle)}(?={'<' if form.argument else '{'})"
        begin, end, after = loose(form.begin), loose(form.end), loose(after)
        if form.begin.endswith("["):  # some models write a single call without a list
            begin = begin.removesuffix(r"\[\s*") + r"(\[\s*)?"
            end = end if form.end == "]" else end.replace(r"\]", r"\]?", 1)
        if form.call.endswith("}"):  # some models add members, such as an id
            after = _MORE_MEMBERS + after
        self._form = form
        self._single = single
        self._first_head = re.compile(begin + head)
        self._next_head = re.compile(after + loose(form.between) + head)
        self._end = re.compile(after + end)
        # Without a text that begins calls, only an answer that is a call from its beginning is one.
        self._trigger = form.begin.strip().split(" ")[0].removesuffix("[") or before[:1]
        self._only_at_start = form.begin == ""
        self._next = self._find_trigger
        self._buffer = ""
        self._schemas = schemas
        self._arguments: _ObjectReader | ElementReader = _ObjectReader()
        self.special_texts = form.special_texts
        self.calls = 0
        self.ended = False  # the one call is complete

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """Returns more text of the answer, and more of its calls."""
        self._buffer += text
        texts: list[str] = []
        deltas: list[CallDelta] = []
        while not self.ended and self._next(texts, deltas):
            pass
        return "".join(texts), deltas

    def finish(self) -> str:
        """Returns the text that was held back."""
        is_text = self._next in (self._find_trigger, self._read_head, self._copy)
        rest, self._buffer = self._buffer, ""
        return rest if is_text and (rest.strip() or self.calls == 0) else ""

    # Each step returns whether another one may follow at once.

    def _find_trigger(self, texts: list[str], deltas: list[CallDelta]) -> bool:
        at = self._buffer.find(self._trigger)
        begins = len(self._buffer) - len(self._buffer.lstrip())
        if self._only_at_start and begins < len(self._buffer) and at != begins:
            self._next = self._copy
            return True
        if at >= 0:
            self._emit(self._buffer[:at].rstrip(), texts)
            self._buffer = self._buffer[at:]
            self._next = self._read_head
            return True
        kept = len(self._buffer.rstrip())  # white space before a call is no part of the text
        for length in range(min(len(self._trigger) - 1, kept), 0, -1):
            if self._buffer.endswith(self._trigger[:length]):
                kept = len(self._buffer[:-length].rstrip())
                break
        self._emit(self._buffer[:kept], texts)
        self._buffer = self._buffer[kept:]
        return False

    def _read_head(self, texts: list[str], deltas: list[CallDelta]) -> bool:
        if (match := self._first_head.match(self._buffer)) is not None:
            self._begin_call(match, deltas)
            return True
        if len(self._buffer) < _LONGEST_HEAD:
            return False
        self._next = self._copy
        return True

    def _begin_call(self, match: re.Match[str], deltas: list[CallDelta]) -> None:
        alphabet = string.ascii_letters + string.digits
        identity = "".join(secrets.choice(alphabet) for _ in range(self._form.id_length))
        deltas.append(CallDelta(self.calls, id=identity, name=match["name"]))
        self.calls += 1
        self._buffer = self._buffer[match.end() :]
        self._arguments = self._reader(match["name"])
        self._next = self._read_arguments

    def _reader(self, name: str) -> _ObjectReader | ElementReader:
        if not self._form.argument:
            return _ObjectReader()
        _, _, after = self._form.call_parts
        return ElementReader(
            self._form.argument, (after + self._form.end).strip().split("\n")[0], self._schemas.get(name, {})
        )

    def _read_arguments(self, texts: list[str], deltas: list[CallDelta]) -> bool:
        used, part, complete = self._arguments.push(self._buffer)
        if part:
            deltas.append(CallDelta(self.calls - 1, part))
        self._buffer = self._buffer[used:]
        if not complete:
            return False
        self.ended = self._single
        self._next = self._read_tail
        return True

    def _read_tail(self, texts: list[str], deltas: list[CallDelta]) -> bool:
        if (match := self._next_head.match(self._buffer)) is not None:
            self._begin_call(match, deltas)
            return True
        match = self._end.match(self._buffer)
        if self._form.end and match is not None:
            self._buffer = self._buffer[match.end() :]
            self._next = self._find_trigger
            return True
        return False

    def _copy(self, texts: list[str], deltas: list[CallDelta]) -> bool:
        self._emit(self._buffer, texts)
        self._buffer = ""
        return False

    @staticmethod
    def _emit(text: str, texts: list[str]) -> None:
        if text:
            texts.append(text)
