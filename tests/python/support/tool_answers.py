"""Answers with calls of tools: what the parser finds in them, and whether a grammar allows them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Mapping

import pytest

import accord

pytest.importorskip("llguidance")
from accord import grammar
from accord.serve.tool_calls import ToolCallParser, joined
from accord.serve.tool_formats import ToolFormat


def parsed(
    form: ToolFormat, pieces: Iterable[str], *, single: bool = False, schemas: Mapping[str, dict] | None = None
) -> tuple[str, list[tuple[str, str]]]:
    """Returns the text of an answer, and the names and arguments of its calls."""
    parser = ToolCallParser(form, single=single, schemas=schemas or {})
    text, deltas = "", []
    for piece in pieces:
        more, calls = parser.push(piece)
        text += more
        deltas += calls
    text += parser.finish()
    calls = joined(deltas)
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    assert all(len(call.id) == form.id_length for call in calls)
    return text, [(call.name, call.arguments) for call in calls]


def split(text: str, chance: random.Random) -> list[str]:
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def tokenizer_with(special: list[str]) -> accord.Tokenizer:
    """Returns a tokenizer whose tokens are bytes, an end, and the special texts."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=257 + len(special), special_tokens=["<end>", *special], initial_alphabet=alphabet
    )
    made.train_from_iterator([], trainer)
    return accord.Tokenizer.parse(made.to_str())


def accepts(tokenizer: accord.Tokenizer, made: grammar.Grammar, text: str) -> bool:
    """Returns whether a grammar allows an answer with this text and an end. `tokenizer`: of tokenizer_with()."""
    mask = grammar.Masks(tokenizer, tokenizer.vocabulary_size, [0]).mask(made)
    tokens = [*tokenizer.encode(text), 0]
    for count, token in enumerate(tokens):
        allowed = mask(0, array("i", tokens[:count]))
        if not allowed[token // 8] >> token % 8 & 1:
            return False
    return True
