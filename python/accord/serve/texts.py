"""Between text and tokens: the package's tokenizer and chat format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from accord._core import ChatFormat, InvalidArgument, Tokenizer, Unsupported
from accord.serve.errors import invalid

__all__ = ["Texts", "printable"]

_LONG_TEXT = 1 << 15  # characters that are encoded on another thread


class Texts:
    def __init__(self, package: Path):
        """Raises NotFound if the package has no tokenizer, and the errors of Tokenizer.load()."""
        self.tokenizer = Tokenizer.load(package / "tokenizer.json")
        self._chat_format: ChatFormat | None = None
        self._no_chat = "the package has no chat format: export it with tokenizer="
        if (package / "chat_format.json").exists():
            try:
                self._chat_format = ChatFormat.load(package / "chat_format.json")
            except Unsupported as error:
                self._no_chat = str(error)

    async def encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        try:
            if len(text) < _LONG_TEXT:
                return self._encode(text, add_special_tokens)
            return await asyncio.to_thread(self._encode, text, add_special_tokens)
        except (InvalidArgument, TypeError) as error:  # an unknown character; a lone surrogate
            raise invalid(str(error), param) from error

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens, whole=True)

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        if self._chat_format is None:
            raise invalid(self._no_chat, "messages", "unsupported_value")
        try:
            return self._chat_format.render(messages, add_generation_prompt=add_generation_prompt)
        except (InvalidArgument, TypeError) as error:
            raise invalid(str(error), "messages") from error

    def piece(self, token: int) -> str:
        """Returns the text of a single token, with special tokens."""
        return self.tokenizer.decode([token], skip_special_tokens=False)


def printable(logprob: float) -> float:
    """Returns a log probability that JSON can express; OpenAI's interface has this number for -inf."""
    return max(logprob, -9999.0)
