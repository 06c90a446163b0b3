"""The prompts of a measurement: random words of a given number of tokens, or the questions of a data set.

Lengths are given in tokens, and the tokenizer is the server's. So a first request measures how many characters a token
has in such texts, and the results contain the numbers of tokens that the server has counted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Prompt", "Workload", "read_conversations"]

_WORDS = (
    "the of and to in that was his with for had you not but which have from they all were this when said what there "
    "about into time other some only more people over little down after house before great could first would long "
    "where good never water through every under another small while found still between mother should world being "
    "again night country light always state without government system number question program during company order "
    "power small place right point large family water morning picture letter garden window evening road river"
).split()
_MOST_SAMPLE_WORDS = 200


@dataclass(frozen=True)
class Prompt:
    text: str
    answer_tokens: int


def read_conversations(path: Path) -> list[tuple[str, str]]:
    """Returns the first question and its answer of each conversation of a file in the form of ShareGPT: a list of
    {"conversations": [{"from": "human", "value": TEXT}, {"from": "gpt", "value": TEXT}, ...]}. Raises ValueError."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        turns = [entry["conversations"][:2] for entry in entries]
        found = [(turn[0]["value"], turn[1]["value"]) for turn in turns if len(turn) == 2 and turn[0]["from"] != "gpt"]
        found = [(question, answer) for question, answer in found if question.strip() and answer.strip()]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has no conversations in the form of ShareGPT: {error!r}") from error
    if not found:
        raise ValueError(f"{path} has no conversation with a question and an answer")
    return found


class Workload:
    """Any number of prompts, the same ones for the same seed."""

    def __init__(
        self,
        prompt_tokens: tuple[int, int],
        answer_tokens: tuple[int, int] | None,
        conversations: Sequence[tuple[str, str]] | None,
    ):
        self._prompt_tokens = prompt_tokens
        self._answer_tokens = answer_tokens
        self._conversations = conversations

    def sample(self, draw: random.Random) -> str:
        """Returns a text from whose tokens the length of the others is computed."""
        if self._conversations is None:
            return " ".join(draw.choices(_WORDS, k=min(_MOST_SAMPLE_WORDS, self._prompt_tokens[0])))
        return draw.choice(self._conversations)[0]

    def prompts(self, draw: random.Random, characters: float) -> Callable[[], Prompt]:
        """Returns a function that draws the next prompt. `characters`: of a token."""
        conversations = self._conversations
        if conversations is not None:
            order = draw.sample(conversations, len(conversations))
            position = 0

            def next_conversation() -> Prompt:
                nonlocal position
                question, answer = order[position % len(order)]
                position += 1
                return Prompt(question, self._answer_limit(draw, max(1, round(len(answer) / characters))))

            return next_conversation
        return lambda: Prompt(self._words(draw, characters), self._answer_limit(draw, 1))

    def _answer_limit(self, draw: random.Random, otherwise: int) -> int:
        return otherwise if self._answer_tokens is None else draw.randint(*self._answer_tokens)

    def _words(self, draw: random.Random, characters: float) -> str:
        """Returns a text of about as many tokens as asked. No two have a long common beginning, which a server could
        compute once."""
        length = draw.randint(*self._prompt_tokens) * characters
        words: list[str] = []
        total = 0
        while total < length:
            words.append(draw.choice(_WORDS))
            total += len(words[-1]) + 1
        return " ".join(words)
