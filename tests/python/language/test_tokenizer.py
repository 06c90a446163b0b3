"""accord.Tokenizer matches the `tokenizers` package for every component that it supports, and rejects
all others."""

import base64
import contextlib
import functools
import itertools
import json
import random
import re
import threading
import unicodedata

import pytest
from accord_command import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import KINDS, TEXTS, of_kind, own, with_part
from tokenizers import Tokenizer as Reference
from tokenizers.decoders import DecodeStream

import accord


@pytest.fixture(params=KINDS, scope="module")
def pair(request) -> tuple[Reference, accord.Tokenizer]:
    reference = of_kind(request.param)
    return reference, own(reference)


# Whole tokenizers.


def test_ids_and_text_match_tokenizers(pair):
    reference, tokenizer = pair
    for text in TEXTS:
        for add in (True, False):
            expected = reference.encode(text, add_special_tokens=add).ids
            assert tokenizer.encode(text, add_special_tokens=add) == expected, text
        for skip in (True, False):
            assert tokenizer.decode(expected, skip_special_tokens=skip) == reference.decode(
                expected, skip_special_tokens=skip
            )


def test_pairs_types_and_masks_match_tokenizers(pair):
    reference, tokenizer = pair
    for first, second in itertools.pairwise(TEXTS[:40]):
        for arguments, options in itertools.product([(first,), (first, second)], [True, False]):
            expected = reference.encode(*arguments, add_special_tokens=options)
            made = tokenizer.encode_with_mask(*arguments, add_special_tokens=options)
            assert (made.ids, made.type_ids, made.attention_mask) == (
                expected.ids, expected.type_ids, expected.attention_mask,
            )  # fmt: skip


def test_bytes_of_tokens_join_to_the_text(pair):
    """Between other tokens; the tokens at both ends are left out, because decoders may treat them differently."""
    reference, tokenizer = pair
    has_clean_up = json.loads(reference.to_str())["decoder"] == {"type": "WordPiece", "prefix": "##", "cleanup": True}
    special = {token for token, added in reference.get_added_tokens_decoder().items() if added.special}
    for text in TEXTS:
        ids = reference.encode(text, add_special_tokens=False).ids
        parts = [tokenizer.bytes_of(token) for token in ids]
        assert [part is None for part in parts] == [token in special for token in ids]
        inner = [part for part in parts if part is not None][1:-1]
        assert has_clean_up or b"".join(inner).decode(errors="ignore") in reference.decode(ids)


def test_the_vocabulary_matches_tokenizers(pair):
    reference, tokenizer = pair
    vocabulary = reference.get_vocab()
    assert tokenizer.vocabulary_size == reference.get_vocab_size() == len(vocabulary)
    for token, id in vocabulary.items():
        assert tokenizer.id_of(token) == id
        assert tokenizer.token_of(id) == token
    assert tokenizer.id_of("no such token, surely") is None
    assert tokenizer.token_of(max(vocabulary.values()) + 1) is None


@given(text=st.text(max_size=40), kind=st.sampled_from(["gpt2", "roberta", "llama2", "mistral", "metaspace", "bert"]))
@settings(max_examples=300, deadline=None)
def test_the_ids_of_any_text_match_tokenizers(text, kind):
    reference = of_kind(kind)
    # Characters from Unicode 15 or later are split differently, because Oniguruma's tables and PCRE2's are of
    # different ages.
    text = "".join(c for c in text if unicodedata.category(c) != "Cn")
    ids = reference.encode(text).ids
    tokenizer = own_of_kind(kind)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == reference.decode(ids)


@functools.cache
def own_of_kind(kind: str) -> accord.Tokenizer:
    return own(of_kind(kind))


def test_threads_share_a_tokenizer():
    reference, tokenizer = of_kind("qwen"), own(of_kind("qwen"))
    expected = {text: reference.encode(text).ids for text in TEXTS}
    wrong = []

    def encode(order):
        wrong.extend(text for text in order if tokenizer.encode(text) != expected[text])

    threads = [threading.Thread(target=encode, args=(TEXTS[i::2] + TEXTS[1 - i :: 2],)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Streaming.


def streamed(tokenizer: accord.Tokenizer, ids: list[int], **options) -> list[str]:
    decoder = tokenizer.streaming_decoder(**options)
    return [*(decoder.push(id) for id in ids), decoder.finish()]


def test_streamed_text_is_the_decoded_text_and_arrives_as_early_as_from_tokenizers(pair):
    reference, tokenizer = pair
    for text in TEXTS[:40]:
        ids = tokenizer.encode(text, whole=True)
        for skip in (True, False):
            pieces = streamed(tokenizer, ids, skip_special_tokens=skip)
            decoded = tokenizer.decode(ids, skip_special_tokens=skip)
            if "\ufffd" not in decoded:
                assert "".join(pieces) == decoded
            stream = DecodeStream(skip_special_tokens=skip)
            expected = [stream.step(reference, id) or "" for id in ids]
            assert pieces[:-1] == expected


def test_streaming_accepts_tokens_that_are_not_text():
    tokenizer = own(of_kind("gpt2"))
    incomplete = tokenizer.encode("€")[:-1]  # some of a character's bytes
    assert streamed(tokenizer, incomplete)[-1] == "\ufffd"
    long = incomplete * 50
    pieces = streamed(tokenizer, long)
    assert any(pieces[:-1])  # it does not wait forever
    assert "".join(pieces) == tokenizer.decode(long)
    chance = random.Random(5)
    for kind in ("gpt2", "llama2", "bert"):
        tokenizer = own(of_kind(kind))
        for _ in range(50):
            ids = [chance.randrange(2000) for _ in range(30)]
            assert "".join(streamed(tokenizer, ids)).replace("\ufffd", "")  # terminates and returns some text


def test_a_streaming_decoder_restarts_after_its_end():
    tokenizer = own(of_kind("llama2"))
    decoder = tokenizer.streaming_decoder()
    for _ in range(2):
        text = "".join(decoder.push(id) for id in tokenizer.encode(" Hello there")) + decoder.finish()
        assert text == " Hello there"


# Files.


def test_the_snippets_of_the_guide_run(tmp_path, monkeypatch):
    of_kind("gpt2").save(str(tmp_path / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/tokenizer.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    names = {}
    exec(compile("\n".join(snippets), "docs/tokenizer.md", "exec"), names)
    assert names["text"] == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert names["tokenizer"].decode(names["ids"], skip_special_tokens=False) == names["text"]


def test_a_file_is_read_and_errors_name_it(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(accord.NotFound, match="tokenizer.json"):
        accord.Tokenizer.load(path)
    of_kind("gpt2").save(str(path))
    assert accord.Tokenizer.load(path).encode("Hello") == of_kind("gpt2").encode("Hello").ids
    path.write_text(path.read_text()[:-10])
    with pytest.raises(accord.Corrupt, match=str(path)):
        accord.Tokenizer.load(path)


@pytest.mark.parametrize(
    ("key", "part", "message"),
    [
        ("normalizer", {"type": "ByteLevel"}, 'normalizer.type: unsupported normalizer: unknown type "ByteLevel"'),
        ("pre_tokenizer", {"type": "UnicodeScripts"}, "UnicodeScripts"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Bytelevel"}]}, 'did you mean "ByteLevel"'),
        ("post_processor", {"type": "Other"}, "post_processor.type"),
        ("decoder", {"type": "CTC"}, "CTC"),
        ("model", {"type": "WordLevel", "vocab": {}}, "WordLevel"),
        ("version", "2.0", "version"),
    ],
)
def test_an_unsupported_component_is_an_error_with_its_name(key, part, message):
    with pytest.raises(accord.Unsupported) as error:
        accord.Tokenizer.parse(with_part(key, part))
    assert message in str(error.value)


def with_unigram(**changes) -> str:
    document = json.loads(of_kind("t5").to_str())
    return json.dumps({**document, "added_tokens": [], "model": {**document["model"], **changes}})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (with_part("normalizer", {"type": "Precompiled", "precompiled_charsmap": "*"}), "expected base64"),
        (
            with_part("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}),
            "a table of 0 bytes cannot have",
        ),
        (
            with_part("normalizer", {"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAA="}),
            "a table of 8 bytes cannot have a trie of 8",
        ),
        (with_part("normalizer", {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAD/"}), "are not UTF-8"),
        (with_unigram(vocab=[]), "model.vocab: expected a list of tokens and their scores"),
        (with_unigram(vocab=[["a", 1.0], ["b"]]), "model.vocab: entry 1: expected a token and its score"),
        (with_unigram(vocab=[["a", "b"]]), "model.vocab: entry 0: expected a token and its score"),
        (with_unigram(vocab=[["a", -1, 2]]), "model.vocab: entry 1: expected a token and its score"),
        (with_unigram(vocab=[["a", -1], ["a", -2]]), '"a" appears twice'),
        (with_unigram(vocab=[["a", -1]], unk_id=1), "model.unk_id: 1 is not below 1, the number of tokens"),
    ],
)
def test_a_damaged_unigram_or_table_is_an_error_with_its_place(document, message):
    with pytest.raises(accord.Corrupt) as error:
        accord.Tokenizer.parse(document)
    assert message in str(error.value)


def test_a_table_that_leads_beyond_its_end_replaces_nothing():
    # The root's children begin at 256, and the trie has one unit.
    table = base64.b64encode((4).to_bytes(4, "little") + (256 << 10).to_bytes(4, "little") + b"x\0").decode()
    part = {"type": "Precompiled", "precompiled_charsmap": table}
    tokenizer = accord.Tokenizer.parse(with_part("normalizer", part))
    assert tokenizer.encode("hello é") == of_kind("gpt2").encode("hello é").ids


def test_characters_that_a_unigram_lacks_are_an_error_without_an_unknown_token():
    tokenizer = accord.Tokenizer.parse(
        with_unigram(vocab=[["\u2581", -2.0], ["a", -2.0], ["\u2581a", -1.0]], unk_id=None)
    )
    assert tokenizer.encode("a a", add_special_tokens=False) == [2, 2]
    with pytest.raises(accord.InvalidArgument, match='lacks "b" and has no token for unknown characters'):
        tokenizer.encode("ab")


def places(value, path=()):
    """Yields the path of every key and item; of long containers, only the first ones."""
    if isinstance(value, dict):
        items = list(value.items())[:12]
    elif isinstance(value, list):
        items = list(enumerate(value))[:3]
    else:
        return
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.parametrize("kind", ["llama3", "llama2", "minilm", "t5"])
def test_a_damaged_file_is_an_error_or_a_complete_tokenizer(kind):
    """Removes and renames keys, changes the types of values, and flips bytes. The file must be rejected or work."""
    text = of_kind(kind).to_str()
    refused = 0

    def attempt(damaged: str) -> None:
        nonlocal refused
        try:
            tokenizer = accord.Tokenizer.parse(damaged)
        except (accord.Corrupt, accord.Unsupported) as error:
            assert str(error).startswith("tokenizer.json: ")
            refused += 1
        else:
            with contextlib.suppress(accord.InvalidArgument, accord.ResourceExhausted):
                tokenizer.decode(tokenizer.encode("Hello, world! é 12\u3042"))

    whole = json.loads(text)
    vocab = whole["model"]["vocab"]
    small_vocab = vocab[:400] if isinstance(vocab, list) else dict(list(vocab.items())[:400])
    small = {**whole, "model": {**whole["model"], "vocab": small_vocab}}
    if "merges" in small["model"]:
        small["model"]["merges"] = []
    small["added_tokens"] = whole["added_tokens"][:2]
    for path in places(small):
        for value in (None, "text", -1, [], {}, ...):
            document = json.loads(json.dumps(small))
            holder = document
            for key in path[:-1]:
                holder = holder[key]
            if value is not ...:
                holder[path[-1]] = value
            elif isinstance(holder, dict):
                holder["unheard of"] = holder.pop(path[-1])
            else:
                holder.pop(path[-1])
            attempt(json.dumps(document))
    raw = bytearray(json.dumps(small).encode())
    chance = random.Random(11)
    for _ in range(150):
        damaged = bytearray(raw)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.choice(b'{}[]",:0a\\')
        attempt(damaged.decode(errors="replace"))
    assert refused > 200
