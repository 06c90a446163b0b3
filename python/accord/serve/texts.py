"""Between text and tokens: the package's tokenizer and chat format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accord._core import ChatFormat, InvalidArgument, NotFound, Tokenizer, Unsupported
from accord.chat_format import ChatTemplate
from accord.serve.errors import invalid
from accord.serve.tool_formats import FORMATS, ToolFormat, format_of

__all__ = ["Texts", "printable"]

_LONG_TEXT = 1 << 15  # characters that are encoded on another thread


class Texts:
    def __init__(self, package: Path):
        """Raises NotFound if the package has no tokenizer, and the errors of Tokenizer.load()."""
        self.tokenizer = Tokenizer.load(package / "tokenizer.json")
        self._chat_format: ChatFormat | None = None
        self._template: ChatTemplate | None = None
        self._no_chat = "the package has no chat format: export it with tokenizer="
        self._no_template = self._no_chat
        file = package / "chat_format.json"
        if file.exists():
            try:
                self._chat_format = ChatFormat.load(file)
            except Unsupported as error:
                self._no_chat = str(error)
            try:
                self._template = ChatTemplate(file.read_text(encoding="utf-8"))
            except (NotFound, Unsupported) as error:
                self._no_template = str(error)

    async def encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        try:
            if len(text) < _LONG_TEXT:
                return self._encode(text, add_special_tokens)
            return await asyncio.to_thread(self._encode, text, add_special_tokens)
        except (InvalidArgument, TypeError) as error:  # an unknown character; a lone surrogate
            raise invalid(str(error), param) from error

    async def tokens_of(self, texts: str | list, param: str) -> list[list[int]]:
        """Returns the tokens of a text or of several, or these themselves, as requests give them."""
        if isinstance(texts, str):
            texts = [texts]
        if isinstance(texts[0], int):
            texts = [texts]
        if isinstance(texts[0], list):
            return texts
        return [await self.encode(text, param, add_special_tokens=True) for text in texts]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens, whole=True)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Returns the text of a conversation: by the chat format's table, or by the template itself if the table does
        not have what the conversation needs."""
        needs_template = bool(tools) or any(
            message["role"] == "tool" or "tool_calls" in message for message in messages
        )
        try:
            if self._chat_format is not None and not needs_template:
                return self._chat_format.render(messages, add_generation_prompt=add_generation_prompt)
            if self._template is None:
                raise invalid(self._no_template if needs_template else self._no_chat, "messages", "unsupported_value")
            return self._template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        except (InvalidArgument, TypeError) as error:
            raise invalid(str(error), "messages") from error

    def tool_format(self) -> ToolFormat:
        """Returns how the model writes calls of tools. Raises ApiError if it has no tools."""
        if self._template is None:
            raise invalid(self._no_template, "tools", "unsupported_value")
        if not self._template.takes_tools:
            raise invalid("the model's chat template does not take tools", "tools", "unsupported_value")
        form = format_of(self._template.source)
        if form is None:
            known = ", ".join(one.name for one in FORMATS)
            raise invalid(
                f"the model's format of tool calls is not known (known are: {known})", "tools", "unsupported_value"
            )
        return form

    def piece(self, token: int) -> str:
        """Returns the text of a single token, with special tokens."""
        return self.tokenizer.decode([token], skip_special_tokens=False)


def printable(logprob: float) -> float:
    """Returns a log probability that JSON can express; OpenAI's interface has this number for -inf."""
    return max(logprob, -9999.0)
