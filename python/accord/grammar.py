"""Restricts a model's answers to a grammar: a JSON schema, a regular expression, a list of choices, or a grammar in
Lark's or GBNF's notation.

    masks = accord.grammar.Masks(tokenizer, model.vocabulary, model.stop_tokens)
    mask = masks.mask(accord.grammar.json_schema({"type": "object", "properties": {"name": {"type": "string"}}}))
    accord.generate(model, "Who wrote Faust?", mask=mask)

Needs llguidance, which the extra "serve" installs. It computes the tokens that may follow while the model computes a
step; see LanguageModel.submit() for masks in general.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from accord._core import InvalidArgument, Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Grammar", "Mask", "Masks", "choice", "grammar", "json_schema", "lark_json", "regex"]

# Between two tokens of JSON: nothing, a space, or a new line with its indentation. Without a limit, a model may write
# white space until its answer is full.
_WHITE_SPACE = r"( |\n {0,16})?"
_BEFORE = "\x02"  # a character that is merged with no other
_MOST_GRAMMARS = 64  # that are kept compiled


@dataclass(frozen=True)
class Grammar:
    """A grammar as llguidance reads it. The functions of this module create it, and raise InvalidArgument with the
    reason if it is invalid, or asks for what cannot be checked token by token."""

    source: str


def json_schema(schema: Mapping[str, object] | bool) -> Grammar:
    """JSON that conforms to a schema. Members of objects appear in the schema's order."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    source = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_pattern": _WHITE_SPACE})
    return _checked(source)


def lark_json(schema: Mapping[str, object]) -> str:
    """Returns JSON that conforms to a schema as a rule's body in Lark's notation, for grammar()."""
    return "%json " + json.dumps({"x-guidance": {"whitespace_pattern": _WHITE_SPACE}} | dict(schema))


def regex(pattern: str) -> Grammar:
    """A text that a regular expression matches as a whole, in Rust's syntax, without look-around."""
    return _checked(LLMatcher.grammar_from_regex(pattern))


def choice(texts: Sequence[str]) -> Grammar:
    """One of several texts."""
    if not texts or "" in texts:
        raise InvalidArgument("expected one or more texts that are not empty")
    return _checked(LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in texts)))


def grammar(text: str) -> Grammar:
    """A grammar in the notation of Lark, as llguidance extends it, or in GBNF (rules with "::=")."""
    try:
        source = LLMatcher.grammar_from_lark(any_to_lark(text))
    except Exception as error:  # its parser raises whatever it comes upon
        raise InvalidArgument(str(error)) from error
    return _checked(source)


def _checked(source: str) -> Grammar:
    is_error, messages = LLMatcher.validate_grammar_with_warnings(source)
    if is_error:
        raise InvalidArgument(messages[0].strip())
    return Grammar(source)


class Masks:
    """Creates masks for one model. Thread-safe.

    vocabulary: the number of the model's logits.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, stop_tokens: Sequence[int]):
        if not stop_tokens:
            raise InvalidArgument("grammars need a model that has stop tokens: they end the answer")
        tokens = _Vocabulary(tokenizer, vocabulary, stop_tokens)
        self._tokenizer = LLTokenizer(tokens, eos_token=list(stop_tokens))
        tokens.greedy = self._tokenizer.greedy_tokenize
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def mask(self, grammar: Grammar) -> Mask:
        """Returns a new mask for one request, with any number of samples. Raises InvalidArgument if the grammar cannot
        be used with this tokenizer."""
        with self._lock:
            matcher = self._compiled.pop(grammar, None) or LLMatcher(self._tokenizer, grammar.source)
            if matcher.is_error():
                raise InvalidArgument(matcher.get_error())
            self._compiled[grammar] = matcher
            if len(self._compiled) > _MOST_GRAMMARS:
                self._compiled.popitem(last=False)
            return Mask(matcher.deep_copy())


class Mask:
    """Calculates the tokens that may come next in the samples of a request. The `mask` of LanguageModel.submit().

    The result depends on the tokens alone. What is kept for each sample only saves reading them again, so a mask that
    several requests share is slower, but right.
    """

    def __init__(self, beginning: LLMatcher):
        self._beginning = beginning
        self._samples: dict[int, tuple[LLMatcher, bytes]] = {}  # and the tokens that it has read

    def __call__(self, sample: int, generated: Buffer) -> bytes:
        """generated: 32-bit integers."""
        tokens = bytes(generated)
        matcher, known = self._samples.get(sample, (None, b""))
        if matcher is None or not tokens.startswith(known):
            matcher, known = self._beginning.deep_copy(), b""
        if not matcher.consume_tokens(memoryview(tokens)[len(known) :].cast("i").tolist()):
            raise ValueError(matcher.get_error())
        self._samples[sample] = (matcher, tokens)
        bits = matcher.compute_bitmask()
        if matcher.is_error():  # a limit of llguidance, for example
            raise ValueError(matcher.get_error())
        return bits


class _Vocabulary:
    """The tokens of a tokenizer, as llguidance reads them."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    greedy: Callable[[str], list[int]] = staticmethod(lambda text: [])

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, stop_tokens: Sequence[int]):
        self._tokenizer = tokenizer
        self.eos_token_id = stop_tokens[0]
        self.tokens: list[bytes] = []
        self.special_token_ids: list[int] = list(stop_tokens)
        for token in range(vocabulary):
            text = tokenizer.bytes_of(token)
            if text is None and (name := tokenizer.token_of(token)) is not None:
                self.special_token_ids.append(token)
                text = name.encode()
            self.tokens.append(text or b"")
        self._prefer_characters()

    def _prefer_characters(self) -> None:
        """Leaves out tokens of single bytes ("<0x41>") that equal other tokens. Models use the others, and llguidance
        allows only one of several tokens with the same bytes."""
        for byte in range(256):
            token = self._tokenizer.id_of(f"<0x{byte:02X}>")
            if token is not None and token < len(self.tokens) and self.tokens.count(bytes([byte])) > 1:
                self.tokens[token] = b""

    def __call__(self, text: str) -> list[int]:
        """Returns the tokens of a text within an answer, of which llguidance allows the first one where the grammar
        leaves only this text. The tokenizer may treat the beginning of a text differently, so another character
        precedes it."""
        tokens = self._tokenizer.encode(_BEFORE + text, add_special_tokens=False, whole=True)
        expected = text.encode()
        for begin in (1, 2):
            if b"".join(self.tokens[token] for token in tokens[begin:]) == expected:
                return tokens[begin:]
        return self.greedy(text)
