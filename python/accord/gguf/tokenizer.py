"""Converts the tokenizer of a GGUF file to a tokenizer.json.

The file contains the tokens, their types, and the tokens to put around a text. There are these kinds of tokenizers:

- "gpt2" is BPE of bytes with its merges; pre_tokenizers.py says how text is split before. "gemma4" is BPE of text.
- "llama" is SentencePiece with a score for each token: it merges the two neighbors whose joint token has the best
  score, so every way to form a token from two others becomes a merge, ordered by score.
- "t5" is Unigram, with a score for each token and SentencePiece's table of replacements.
- "bert" is WordPiece. Tokens that begin a word have SentencePiece's space in front, instead of "##" before the others.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from accord.gguf.pre_tokenizers import WAYS, Way
from accord.graph.errors import ExportError

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # types of tokens
SPACE = "\u2581"  # SentencePiece's space
KINDS = {
    "gpt2": "byte-level BPE",
    "gemma4": "BPE",
    "llama": "SentencePiece",
    "t5": "Unigram",
    "bert": "WordPiece",
}
OTHER_KINDS = {"rwkv": "a trie", "plamo2": "PLaMo 2's", "none": "none"}


def tokenizer_json(facts: Mapping) -> dict:
    """Returns the tokenizer.json of a file with these keys. Raises ExportError, which names whatever is unknown."""
    kind = facts["tokenizer.ggml.model"]
    if kind not in KINDS:
        meaning = f" ({OTHER_KINDS[kind]})" if kind in OTHER_KINDS else ""
        known = ", ".join(f'"{name}" ({what})' for name, what in KINDS.items())
        raise ExportError(f'its tokenizer is "{kind}"{meaning}, which engines do not have; known are {known}')
    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": token, **plain, "special": type == CONTROL}
            for id, (token, type) in enumerate(zip(tokens, types, strict=True))
            if type in (CONTROL, USER_DEFINED)
        ],
        **_parts(kind, facts, tokens),
    }


def tokenizer_config(facts: Mapping) -> dict:
    """Returns the parts of tokenizer_config.json that the chat template needs."""
    tokens = facts["tokenizer.ggml.tokens"]
    config = {
        f"{name}_token": tokens[facts[f"tokenizer.ggml.{name}_token_id"]]
        for name in ("bos", "eos")
        if f"tokenizer.ggml.{name}_token_id" in facts
    }
    if "tokenizer.chat_template" in facts:
        config["chat_template"] = facts["tokenizer.chat_template"]
    return config


def _parts(kind: str, facts: Mapping, tokens: list[str]) -> dict:
    if kind == "llama":
        return _sentence_piece(facts, tokens)
    if kind == "t5":
        return _unigram(facts, tokens)
    if kind == "bert":
        return _word_piece(facts, tokens)
    name = kind if kind == "gemma4" else facts.get("tokenizer.ggml.pre", "default")
    if name not in WAYS:
        raise ExportError(f'its tokenizer cuts text as "{name}"; known are {", ".join(WAYS)}')
    return _bpe(facts, tokens, WAYS[name])


def _bpe(facts: Mapping, tokens: list[str], way: Way) -> dict:
    merges = [[merge[: (cut := merge.index(" ", 1))], merge[cut + 1 :]] for merge in facts["tokenizer.ggml.merges"]]
    if not way.in_bytes:
        return {
            "normalizer": _replace(" ", SPACE),
            "pre_tokenizer": None,
            "post_processor": _frame(facts, tokens, begins=way.begins),
            "decoder": {"type": "Sequence", "decoders": [_replace(SPACE, " "), *_OF_BYTE_TOKENS]},
            "model": _model(tokens, merges, unk_token=_unknown(facts, tokens), fuse_unk=True, byte_fallback=True),
        }
    splits = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in way.regexes
    ]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": way.normal_form} if way.normal_form else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_only]},
        "post_processor": _frame(facts, tokens, begins=way.begins),
        "decoder": bytes_only,
        "model": _model(tokens, merges, ignore_merges=way.ignores_merges),
    }


_OF_BYTE_TOKENS = ({"type": "ByteFallback"}, {"type": "Fuse"})


def _replace(text: str, by: str) -> dict:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def _replace_regex(regex: str, by: str) -> dict:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": by}


def _unknown(facts: Mapping, tokens: list[str]) -> str | None:
    id = facts.get("tokenizer.ggml.unknown_token_id")
    return None if id is None else tokens[id]


def _sentence_piece(facts: Mapping, tokens: list[str]) -> dict:
    begins_with_space = facts.get("tokenizer.ggml.add_space_prefix", True)
    normalizers = [{"type": "Prepend", "prepend": SPACE}] if begins_with_space else []
    strips = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins_with_space else []
    merges = _merges_by_score(tokens, facts["tokenizer.ggml.scores"])
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, _replace(" ", SPACE)]},
        "pre_tokenizer": None,
        "post_processor": _frame(facts, tokens, begins=True),
        "decoder": {"type": "Sequence", "decoders": [_replace(SPACE, " "), *_OF_BYTE_TOKENS, *strips]},
        "model": _model(tokens, merges, unk_token=_unknown(facts, tokens), fuse_unk=True, byte_fallback=True),
    }


def _unigram(facts: Mapping, tokens: list[str]) -> dict:
    types, scores = facts["tokenizer.ggml.token_type"], facts["tokenizer.ggml.scores"]
    # Other tokens are found before the model looks, and their scores must not count as the lowest one.
    lowest = min(score for score, type in zip(scores, types, strict=True) if type == NORMAL)
    vocab = [
        [token, score if type == NORMAL else lowest] for token, score, type in zip(tokens, scores, types, strict=True)
    ]
    table = bytes(facts.get("tokenizer.ggml.precompiled_charsmap", ()))
    normalizers = [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}] if table else []
    if facts.get("tokenizer.ggml.remove_extra_whitespaces", False):
        normalizers += [_replace_regex("^ +| +$", ""), _replace_regex(" {2,}", " ")]
    metaspace = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always" if facts.get("tokenizer.ggml.add_space_prefix", True) else "never",
        "split": not any(SPACE in token[1:] for token in tokens),
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": metaspace,
        "post_processor": _frame(facts, tokens, begins=False, ends=True),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": facts.get("tokenizer.ggml.unknown_token_id"),
            "vocab": vocab,
            "byte_fallback": BYTE in types,
        },
    }


def _word_piece(facts: Mapping, tokens: list[str]) -> dict:
    lowercase = facts.get("tokenizer.ggml.normalizer.lowercase", True)
    types = facts["tokenizer.ggml.token_type"]
    words = [
        token if type == CONTROL else token[1:] if token.startswith(SPACE) else f"##{token}"
        for token, type in zip(tokens, types, strict=True)
    ]
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": facts.get("tokenizer.ggml.normalizer.strip_accents", lowercase),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _frame(facts, tokens, begins=True, last="seperator", ends=True),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": _unknown(facts, tokens),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: id for id, word in enumerate(words)},
        },
    }


def _merges_by_score(tokens: list[str], scores: list[float]) -> list[list[str]]:
    """Returns all pairs of tokens that form a token, best score first; pairs for the same token by ascending ids."""
    ids = {token: id for id, token in enumerate(tokens)}
    pairs = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                pairs.append((-score, ids[token], ids[left], ids[right]))
    return [[tokens[left], tokens[right]] for _, _, left, right in sorted(pairs)]


def _model(tokens: list[str], merges: list[list[str]], **options) -> dict:
    defaults = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {
        "type": "BPE",
        **defaults,
        **options,
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": merges,
    }


def _frame(facts: Mapping, tokens: list[str], begins: bool, last: str = "eos", ends: bool = False) -> dict | None:
    """Returns the post-processor that adds tokens around a text. `begins`, `ends`: whether it does by default. `last`:
    GGUF's name of the token at the end."""
    short = {"seperator": "sep"}.get(last, last)
    has = {
        "bos": facts.get("tokenizer.ggml.add_bos_token", begins),
        last: facts.get(f"tokenizer.ggml.add_{short}_token", ends),
    }
    ids = {end: facts[f"tokenizer.ggml.{end}_token_id"] for end in has if has[end]}
    if not ids:
        return None
    before, after = ([{"SpecialToken": {"id": tokens[ids[end]], "type_id": 0}}] if end in ids else [] for end in has)
    one, other = ([*before, {"Sequence": {"id": name, "type_id": 0}}, *after] for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": one,
        "pair": one + other,
        "special_tokens": {
            tokens[id]: {"id": tokens[id], "ids": [id], "tokens": [tokens[id]]} for id in sorted(set(ids.values()))
        },
    }
