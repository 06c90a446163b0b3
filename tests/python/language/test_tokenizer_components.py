"""Each component of a tokenizer matches the component of the `tokenizers` package.

A tokenizer with two tokens per byte, one at the start of a word and one elsewhere, shows how a text was changed and
where it was split.
"""

import itertools
import json
import random
import unicodedata

import pytest
from tokenizer_kinds import CHARSMAP, LLAMA3, QWEN, TEKKEN, TEXTS, of_kind, own, split_part, spy, with_part
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Reference

import accord

BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def assert_same(reference: Reference, texts=TEXTS):
    tokenizer = own(reference)
    for text in texts:
        assert tokenizer.encode(text) == reference.encode(text).ids, text


NORMALIZERS = {
    "nfc": normalizers.NFC(),
    "nfd": normalizers.NFD(),
    "nfkc": normalizers.NFKC(),
    "nfkd": normalizers.NFKD(),
    "lowercase": normalizers.Lowercase(),
    "strip accents": normalizers.StripAccents(),
    "bert": normalizers.BertNormalizer(),
    "bert clean": normalizers.BertNormalizer(True, False, False, False),
    "bert chinese": normalizers.BertNormalizer(False, True, False, False),
    "bert accents": normalizers.BertNormalizer(False, False, True, False),
    "bert lowercase": normalizers.BertNormalizer(False, False, False, True),
    "strip": normalizers.Strip(),
    "strip left": normalizers.Strip(True, False),
    "strip right": normalizers.Strip(False, True),
    "replace text": normalizers.Replace("e", "E3"),
    "replace regex": normalizers.Replace(Regex(r"\s+|[aeiou]{2,}"), "_"),
    "prepend": normalizers.Prepend("▁"),
    "nmt": normalizers.Nmt(),
    "precompiled": normalizers.Precompiled(CHARSMAP),
    "sequence": normalizers.Sequence(
        [normalizers.NFKD(), normalizers.Sequence([normalizers.StripAccents(), normalizers.Lowercase()])]
    ),
}
PRE_TOKENIZERS = {
    "byte level": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "byte level twice": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "byte level without regex": pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
    "bert": pre_tokenizers.BertPreTokenizer(),
    "whitespace": pre_tokenizers.Whitespace(),
    "whitespace split": pre_tokenizers.WhitespaceSplit(),
    "digits": pre_tokenizers.Digits(individual_digits=False),
    "each digit": pre_tokenizers.Digits(individual_digits=True),
    **{f"punctuation {b}": pre_tokenizers.Punctuation(b) for b in BEHAVIORS},
    **{
        f"metaspace {scheme} {split}": pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
        for scheme in ("always", "never", "first")
        for split in (True, False)
    },
    **{
        f"split {name} {behavior} {invert}": pre_tokenizers.Split(pattern, behavior, invert)
        for name, pattern in {
            "spaces": " ",
            "dashes": "--",
            "words": Regex(r"\w+|[^\w\s]"),
            "perhaps nothing": Regex("a*"),
        }.items()
        for behavior in BEHAVIORS
        for invert in (False, True)
    },
    "sequence": pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Metaspace(prepend_scheme="first")]),
        ]
    ),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers_match_tokenizers(name):
    assert_same(spy(NORMALIZERS[name]))


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizers_match_tokenizers(name):
    assert_same(spy(None, PRE_TOKENIZERS[name]), TEXTS[:40])


@pytest.mark.parametrize("name", ["strip left", "bert clean", "prepend"])
def test_metaspace_tracks_the_start_of_normalized_input(name):
    texts = [space + text for text in TEXTS[:40] for space in ("", " ", "\u0000")]
    assert_same(spy(NORMALIZERS[name], pre_tokenizers.Metaspace(prepend_scheme="first")), texts)


def characters(oldest_only: bool = False) -> str:
    """Returns each character between two letters. Of large blocks of letters, only the beginnings and ends are
    included."""
    blocks = [(0, 0x3500), (0x4DA0, 0x4E20), (0x9FE0, 0xA020), (0xA480, 0xAC20), (0xD780, 0xD800), (0xF880, 0x12020)]
    blocks += [(0x12380, 0x13020), (0x13400, 0x13470), (0x16A00, 0x17020), (0x1AFF0, 0x20020)]
    blocks += [(0x2A6D0, 0x2A750), (0x2F7F0, 0x2FA30), (0xE0000, 0xE0200), (0xF0000, 0xF0010), (0x10FFF0, 0x110000)]
    codes = (code for begin, end in blocks for code in range(begin, end))
    return "".join(f"a{chr(code)}b " for code in codes if not oldest_only or unicodedata.category(chr(code)) != "Cn")


@pytest.mark.parametrize(
    "name", ["nfc", "nfd", "nfkc", "nfkd", "lowercase", "strip accents", "nmt", "precompiled", "bert clean", "bert chinese",
     "bert accents"],
)  # fmt: skip
def test_the_normalization_of_every_character_matches_tokenizers(name):
    text = characters()
    expected = NORMALIZERS[name].normalize_str(text)
    tokenizer = own(spy(NORMALIZERS[name]))
    assert decoded_by_spy(tokenizer.encode(text)) == expected


def decoded_by_spy(ids: list[int]) -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return decoders.ByteLevel().decode(["".join(alphabet[id % 256] for id in ids)])


@pytest.mark.parametrize("name", ["bert", "whitespace", "whitespace split", "each digit"])
def test_the_splitting_of_every_character_matches_tokenizers(name):
    assert_same(spy(None, PRE_TOKENIZERS[name]), [characters()])


@pytest.mark.parametrize(
    "members", [r"\w", r"\s", r"\d", r"\p{L}", r"\p{Lu}", r"\p{Ll}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{M}", r"\p{Han}"]
)
def test_every_character_has_the_regex_class_of_tokenizers(members):
    text = characters(oldest_only=True)
    for pattern in (members, f"[{members}]"):
        normalizer = normalizers.Replace(Regex(pattern), "!")
        assert decoded_by_spy(own(spy(normalizer)).encode(text)) == normalizer.normalize_str(text)


REGEXES = [
    LLAMA3, QWEN, TEKKEN,
    r"\w+\b|\W", r"[^\w\s]++|\s", r"\bth\B", r"(?<=a)b|(?<!a)c|x(?=y)|x(?!y)", r"(?>ab|a)c", "a{2}|b{1,2}?|c{,2}d|e{2,}",
    "{x}|a{|{,}", r"^\S+", r"\s$", r"\Aa|b\z|c\Z", "(?i)Ed|s", "a(?i:BC)(?-i:d)", r"\x41|\x{42}|\u0043|\.|\-|\é|\"",
    r"[\]\-a\^]|[^\]b-e]", r"[\h]+|\h", r"\p{^L}+|\P{Nd}", r"\p{Greek}|\p{Alphabetic}", r"\v|\t|\f|\r|\n", ".x|#",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    "[一-龥぀-ゟ゠-ヿ]+",
]  # fmt: skip


@pytest.mark.parametrize("pattern", REGEXES)
def test_regexes_match_tokenizers(pattern):
    lines = [
        "the bath ab abc ac xyx AbCd aBCd aabbb ccd cdd eee {x} a{ {,} b\nc\nstrasse STRASSE ſ #x.x\n",
        "ABC c\n",
        "b",
    ]
    assert_same(spy(None, pre_tokenizers.Split(Regex(pattern), "isolated")), [*lines, *TEXTS[:40]])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(a)\1", r"\1"), (r"(?<name>a)", "(?<"), ("[a[bc]]", "class within"), ("[a&&b]", "&&"), ("a{1,3}+", "quantifier"),
        (r"[\W]", r"\W in a class"), ("a(?i)b|c", "(?i"), (r"\xe9", "not a character"), (r"\Ra", r"\R"), ("(?m:.)", "(?m"),
        (r"\p{L", "{name}"), ("[]a]", "] at the start"), (r"\K", r"\K"), ("(*UCP)a", "(*"),
        ("(?i)é", "case"), ("x(?i:ss)", "case"),
    ],
)  # fmt: skip
def test_an_ambiguous_regex_is_rejected(pattern, message):
    with pytest.raises(accord.Unsupported, match=r"tokenizer.json: pre_tokenizer.pattern.Regex: the regex ") as error:
        accord.Tokenizer.parse(with_part("pre_tokenizer", split_part(pattern)))
    assert message in str(error.value)


def test_invalid_and_nonterminating_regexes_are_reported():
    with pytest.raises(accord.Corrupt, match="cannot be read"):
        accord.Tokenizer.parse(with_part("pre_tokenizer", split_part("(a")))
    tokenizer = accord.Tokenizer.parse(with_part("pre_tokenizer", split_part("(a*)*b|(a|aa)+c")))
    with pytest.raises(accord.ResourceExhausted, match="match limit exceeded"):
        tokenizer.encode("a" * 5000)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.ByteLevel(), decoders.WordPiece(), decoders.WordPiece("##", cleanup=False), decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Replace(Regex("[aeiou]+"), "*"), decoders.Replace("▁", " "), decoders.Strip("e", 2, 0),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
        None,
    ],
    ids=lambda decoder: str(decoder)[:40],
)  # fmt: skip
def test_decoders_match_tokenizers(decoder):
    chance = random.Random(3)
    for kind in ("gpt2", "llama2", "bert"):
        document = json.loads(of_kind(kind).to_str())
        reference = Reference.from_str(json.dumps({**document, "decoder": None}))
        if decoder is not None:
            reference.decoder = decoder
        tokenizer = own(reference)
        for _ in range(50):
            # Start with some text in any case: Strip of tokenizers itself panics at the end of an empty text.
            ids = [10, *(chance.randrange(1, 1500) for _ in range(chance.randrange(20)))]
            assert tokenizer.decode(ids) == reference.decode(ids), ids


@pytest.mark.parametrize("options", list(itertools.product([True, False], repeat=5)))
def test_added_tokens_are_found_as_in_tokenizers(options):
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    choice = dict(zip(names, options, strict=True))
    reference = Reference.from_str(of_kind("bert_cased").to_str())
    reference.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()])
    tokens = ["[NEW]", "[NEW] [NEW]", "Hello", "ab", "é"]
    reference.add_tokens([AddedToken(token, **choice) for token in tokens])
    tokenizer = own(reference)
    chance = random.Random(7)
    parts = [*tokens, "[new]", "hello", " ", "  ", "\u2003", "word", "_", "7", "é", ".", "[NEW"]
    for _ in range(50):
        text = "".join(chance.choice(parts) for _ in range(8))
        ids = reference.encode(text).ids
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == reference.decode(ids)


@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
def test_truncation_and_padding_match_tokenizers(direction, strategy):
    reference = Reference.from_str(of_kind("bert").to_str())
    reference.enable_truncation(max_length=12, strategy=strategy, direction=direction)
    for multiple, length in ((None, 16), (8, None), (5, 13)):
        reference.enable_padding(
            direction=direction, pad_id=0, pad_type_id=2, length=length, pad_to_multiple_of=multiple
        )
        tokenizer = own(reference)
        texts = ["one", "two three four five six seven", "a b c d e f g h i j k l m n o p q r s t"]
        for first, second in itertools.product(texts, [*texts, None]):
            arguments = (first,) if second is None else (first, second)
            try:
                expected = reference.encode(*arguments)
            except Exception:
                with pytest.raises(accord.InvalidArgument, match="too many"):
                    tokenizer.encode_with_mask(*arguments)
                continue
            made = tokenizer.encode_with_mask(*arguments)
            assert (made.ids, made.type_ids, made.attention_mask) == (
                expected.ids, expected.type_ids, expected.attention_mask,
            )  # fmt: skip
    whole = Reference.from_str(of_kind("bert").to_str())
    assert tokenizer.encode(texts[2], whole=True) == whole.encode(texts[2]).ids


@pytest.mark.parametrize(
    "changes", [{"fuse_unk": False}, {"byte_fallback": False}, {"unk_token": None}, {"dropout": 0.0}]
)
def test_unknown_characters_are_handled_as_in_tokenizers(changes):
    document = json.loads(of_kind("mistral").to_str())
    document["model"] |= changes
    document["model"]["vocab"].pop("<0xF0>")  # so that some characters cannot fall back to their bytes
    document["model"]["vocab"]["<0xF0 >"] = 1455
    assert_same(Reference.from_str(json.dumps(document)))
