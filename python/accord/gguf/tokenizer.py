"""Converts the tokenizer of a GGUF file to a tokenizer.json.

The file contains the tokens, their types, and the tokens to put around a text. The splitting of text into words
before merges is specified by a name that llama.cpp defines. There are two kinds of tokenizers: "gpt2" is byte-level
BPE with its merges. "llama" is SentencePiece with a score for each token: it merges the two neighbors whose joint
token has the best score, so every way to form a token from two others becomes a merge, ordered by score.
"""

from __future__ import annotations

from collections.abc import Mapping

from accord.graph.errors import ExportError

CONTROL, USER_DEFINED = 3, 4  # types of tokens
SPACE = "\u2581"  # SentencePiece's space

_LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")


def _byte_level(use_regex: bool) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(regex: str) -> dict:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


_DIGITS = {"type": "Digits", "individual_digits": True}
# How text is split before merges, by llama.cpp's name: the pre-tokenizer, and other differences.
PRE_TOKENIZERS = {
    "gpt-2": (_byte_level(use_regex=True), {}),
    "smollm": ({"type": "Sequence", "pretokenizers": [_DIGITS, _byte_level(use_regex=True)]}, {}),
    "llama-bpe": (_split(_LLAMA_3), {"ignore_merges": True}),
    "qwen2": (_split(_QWEN_2), {"normalizer": {"type": "NFC"}}),
}


def tokenizer_json(facts: Mapping) -> dict:
    """Returns the tokenizer.json of a file with these keys. Raises ExportError, which names whatever is unknown."""
    kinds = {"gpt2": _byte_level_bpe, "llama": _sentence_piece}
    kind = facts["tokenizer.ggml.model"]
    if kind not in kinds:
        raise ExportError(f'its tokenizer is "{kind}"; known are "gpt2" (byte-level BPE) and "llama" (SentencePiece)')
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
        **kinds[kind](facts, tokens),
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


def _byte_level_bpe(facts: Mapping, tokens: list[str]) -> dict:
    cut = facts.get("tokenizer.ggml.pre", "gpt-2")
    if cut not in PRE_TOKENIZERS:
        raise ExportError(f'its tokenizer cuts text as "{cut}"; known are {", ".join(PRE_TOKENIZERS)}')
    pre_tokenizer, more = PRE_TOKENIZERS[cut]
    merges = [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]]
    return {
        "normalizer": more.get("normalizer"),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _frame(facts, tokens, begins=cut == "llama-bpe"),
        "decoder": _byte_level(use_regex=True),
        "model": _model(tokens, merges, ignore_merges=more.get("ignore_merges", False)),
    }


def _sentence_piece(facts: Mapping, tokens: list[str]) -> dict:
    begins_with_space = facts.get("tokenizer.ggml.add_space_prefix", True)
    normalizers = [{"type": "Prepend", "prepend": SPACE}] if begins_with_space else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    decoders.append({"type": "Fuse"})
    if begins_with_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = facts.get("tokenizer.ggml.unknown_token_id")
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _frame(facts, tokens, begins=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _model(
            tokens,
            _merges_by_score(tokens, facts["tokenizer.ggml.scores"]),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
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


def _frame(facts: Mapping, tokens: list[str], begins: bool) -> dict | None:
    """Returns the post-processor that adds tokens around a text. `begins`: whether it begins with one by default."""
    has = {"bos": facts.get("tokenizer.ggml.add_bos_token", begins), "eos": facts.get("tokenizer.ggml.add_eos_token")}
    ids = {end: facts[f"tokenizer.ggml.{end}_token_id"] for end in has if has[end]}
    if not ids:
        return None
    first, last = ([{"SpecialToken": {"id": tokens[ids[end]], "type_id": 0}}] if end in ids else [] for end in has)
    one, other = ([*first, {"Sequence": {"id": name, "type_id": 0}}, *last] for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": one,
        "pair": one + other,
        "special_tokens": {
            tokens[id]: {"id": tokens[id], "ids": [id], "tokens": [tokens[id]]} for id in sorted(set(ids.values()))
        },
    }
