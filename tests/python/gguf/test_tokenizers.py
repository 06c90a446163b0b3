"""Tokenizers of GGUF files give the tokens of the tokenizers that they were made from."""

import importlib
import itertools
import json
import random

import pytest
from tiers import mostly_slow
from tokenizer_kinds import (
    CHARSMAP,
    LLAMA3,
    QWEN,
    TEKKEN,
    bert,
    byte_level,
    random_texts,
    sentence_piece,
    t5,
    with_byte_fallback,
)
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

import accord

CASED = TEKKEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
HAN = r"&&[^\p{Han}]]"
SENTENCES = " ?[^(\\s|.,!?…。，、।۔،)]+"
PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
DEEPSEEK = (
    rf"{PUNCTUATION}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
APOSTROPHES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT_4O = CASED.replace("]+|[^", f"]+{APOSTROPHES}?|[^", 1).replace(r"]*|\p{N}", rf"]*{APOSTROPHES}?|\p{{N}}", 1)
GPT_2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def cut(*regexes: str) -> list:
    return [pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes]


# By llama.cpp's name: how the models' own tokenizers split text, in the words of the package tokenizers.
REFERENCES = {
    "gpt-2": [GPT_2],
    "smollm": [DIGITS, GPT_2],
    "starcoder": [DIGITS, GPT_2],
    "command-r": [DIGITS, GPT_2],
    "refact": [DIGITS, GPT_2],
    "olmo": [GPT_2],
    "falcon": [*cut(r"[\p{P}\$\+<=>\^~\|`]+"), GPT_2, *cut("[0-9][0-9][0-9]")],
    "llama-bpe": cut(LLAMA3),
    "dbrx": cut(LLAMA3),
    "glm4": cut(LLAMA3),
    "qwen2": cut(QWEN),
    "deepseek-r1-qwen": cut(QWEN),
    "qwen35": cut(QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")),
    "tekken": cut(TEKKEN),
    "gpt-4o": cut(GPT_4O),
    "llama4": cut(GPT_4O),
    "deepseek-v3": cut(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK),
    "deepseek-coder": [*cut("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"), DIGITS],
    "kimi-k2": cut(
        r"[\p{Han}]+|" + GPT_4O.replace(r"\p{Lo}\p{M}]", r"\p{Lo}\p{M}" + HAN).replace(r"[\r\n/]*", r"[\r\n]*")
    ),
    "bailingmoe": cut(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": cut(
        rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "bloom": cut(SENTENCES),
    "viking": [*cut(SENTENCES), DIGITS],
}
IGNORES_MERGES = {"llama-bpe", "glm4", "tekken"}
BEGIN = {"llama-bpe", "tekken"}


def keys_of(tokenizer: Tokenizer, kind: str, pre: str = "") -> dict:
    """Returns the keys of a GGUF file with this tokenizer."""
    document = json.loads(tokenizer.to_str())
    vocab = document["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {token: id for id, (token, _) in enumerate(vocab)}
    ids = ids | {token["content"]: token["id"] for token in document["added_tokens"]}
    special = {token["id"] for token in document["added_tokens"]}
    tokens = sorted(ids, key=ids.get)
    keys = {
        "model": kind,
        "tokens": tokens,
        "token_type": [3 if id in special else 1 for id in range(len(tokens))],
        "merges": [" ".join(merge) for merge in document["model"].get("merges", [])],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in {**keys, **({"pre": pre} if pre else {})}.items()}


def made_of(keys: dict) -> accord.Tokenizer:
    return accord.Tokenizer.parse(json.dumps(importlib.import_module("accord.gguf.tokenizer").tokenizer_json(keys)))


@pytest.mark.parametrize("name", mostly_slow(REFERENCES, "gpt-4o", "qwen35", "deepseek-v3", "falcon"))
def test_bpe_of_every_name_gives_the_tokens_of_the_tokenizer(name):
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splits = REFERENCES[name]
    in_bytes = splits if any(split is GPT_2 for split in splits) else [*splits, bytes_only]
    normalizer = normalizers.NFC() if name.startswith("qwen") else None
    tokenizer = byte_level(pre_tokenizers.Sequence(in_bytes), normalizer, ignore_merges=name in IGNORES_MERGES)
    made = made_of(keys_of(tokenizer, "gpt2", name))
    for text in random_texts(5, 300):
        expected = tokenizer.encode(text).ids
        assert made.encode(text) == [0] * (name in BEGIN) + expected
        assert made.decode(expected, skip_special_tokens=False) == tokenizer.decode(expected, skip_special_tokens=False)


def test_bpe_of_text_gives_the_tokens_of_the_tokenizer():
    tokenizer = sentence_piece(
        normalizer=normalizers.Replace(" ", "▁"),
        decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    )
    tokenizer = with_byte_fallback(tokenizer)
    keys = keys_of(tokenizer, "gemma4") | {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.unknown_token_id": 0}
    made = made_of(keys)
    for text in random_texts(6, 300):
        expected = tokenizer.encode(text).ids
        assert made.encode(text) == expected
        assert made.decode(expected) == tokenizer.decode(expected)


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_piece_gives_the_tokens_of_the_tokenizer(lowercase):
    tokenizer = bert(lowercase=lowercase, strip_accents=lowercase)
    keys = keys_of(tokenizer, "bert")
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    keys["tokenizer.ggml.tokens"] = [
        token if type == 3 else token.removeprefix("##") if token.startswith("##") else "▁" + token
        for token, type in zip(tokens, types, strict=True)
    ]
    keys |= {
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.add_sep_token": True,
        "tokenizer.ggml.normalizer.lowercase": lowercase,
    }
    made = made_of(keys)
    for text in random_texts(7, 300):
        expected = tokenizer.encode(text).ids
        assert made.encode(text) == expected
        assert made.decode(expected) == tokenizer.decode(expected)


@pytest.mark.parametrize("removes_spaces", [True, False])
def test_unigram_gives_the_tokens_of_the_tokenizer(removes_spaces):
    tokenizer = t5()
    if removes_spaces:
        steps = [tokenizer.normalizer, normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    keys = keys_of(tokenizer, "t5")
    scores = [score for _, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    keys |= {
        # As llama.cpp's converter writes tokens that the model itself does not have.
        "tokenizer.ggml.scores": scores + [-10000.0] * (len(keys["tokenizer.ggml.tokens"]) - len(scores)),
        "tokenizer.ggml.precompiled_charsmap": list(CHARSMAP),
        "tokenizer.ggml.remove_extra_whitespaces": removes_spaces,
        "tokenizer.ggml.unknown_token_id": 2,
    }
    made = made_of(keys)
    for text in random_texts(8, 300):
        expected = tokenizer.encode(text).ids
        assert made.encode(text) == expected
        assert made.decode(expected) == tokenizer.decode(expected)


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """Tokenizes a text as SentencePiece does: merges the neighbours that form the best token until no pair forms
    one."""
    pieces = list(text)
    while True:
        found = [(scores[a + b], -at) for at, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not found:
            return pieces
        at = -max(found)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.mark.parametrize("begins_with_space", [True, False])
def test_a_tokenizer_with_scores_matches_sentence_piece(begins_with_space):
    chance = random.Random(0)
    letters = "abcde\u2581"
    pieces = {"".join(chance.choices(letters, k=chance.randrange(2, 6))) for _ in range(300)}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *sorted(pieces)]
    scores = [0.0] * 259 + [-chance.random() for _ in tokens[259:]]
    facts = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": begins_with_space,
    }
    document = importlib.import_module("accord.gguf.tokenizer").tokenizer_json(facts)
    tokenizer = accord.Tokenizer.parse(json.dumps(document))
    known = dict(zip(tokens[259:], scores[259:], strict=True))
    for _ in range(200):
        text = "".join(chance.choices("abcde ", k=chance.randrange(1, 30)))
        whole = ("\u2581" if begins_with_space else "") + text.replace(" ", "\u2581")
        ids = tokenizer.encode(text)
        assert [tokens[id] for id in ids] == ["<s>", *merged(whole, known)]
        assert tokenizer.decode(ids) == text
    assert [tokens[id] for id in tokenizer.encode("é")][-2:] == ["<0xC3>", "<0xA9>"]
