"""Small tokenizers of every kind, trained by the `tokenizers` package on texts that come with Python; and those
texts."""

import functools
import json
import random
import unicodedata
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import accord

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}"
    r"\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHER_TEXT = """Größe, naïve café, Ångström: 12 345,67 €; Привет, мир! Γειά σου Κόσμε. こんにちは世界。你好，世界！안녕하세요 세계
مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดี 👩‍👩‍👧 🇩🇪 é ﬁ ½ ① Ⅷ  x\tİstanbul ſtraße\r\n\r\n   end\u2028"""


@functools.cache
def english() -> str:
    """Returns about 200 KB of Python's own sources: code, and English in its comments."""
    folder = Path(json.__file__).parents[1]
    names = ["argparse.py", "difflib.py", "doctest.py", "textwrap.py"]
    return "".join((folder / name).read_text(encoding="utf-8") for name in names)[:200_000]


def random_texts(seed: int, count: int, most: int = 60) -> list[str]:
    """Returns snippets of English, of other scripts, of arbitrary characters, and of all three mixed."""
    chance = random.Random(seed)
    # Characters that are newer than Python's Unicode tables may be letters to one library and unassigned to the
    # other.
    alphabet = (
        [chr(c) for c in range(0x20, 0x2FFF) if unicodedata.category(chr(c)) != "Cn"]
        + list(OTHER_TEXT) * 20
        + list(" \n\t'.,<>[]|▁#") * 200
    )
    alphabet += [chr(c) for c in range(0x1F300, 0x1F700)]

    def snippet() -> str:
        kind = chance.randrange(3)
        if kind == 0:
            begin = chance.randrange(len(english()) - most)
            return english()[begin : begin + chance.randrange(most)]
        if kind == 1:
            begin = chance.randrange(len(OTHER_TEXT))
            return OTHER_TEXT[begin : begin + chance.randrange(most)]
        return "".join(chance.choice(alphabet) for _ in range(chance.randrange(most // 2)))

    tokens = ["<s>", "</s>", "<|im_start|>", "[MASK]", "[CLS]", "Hello", " "]
    return [
        "".join(chance.choice([snippet(), chance.choice(tokens)]) for _ in range(chance.randrange(1, 6)))
        for _ in range(count)
    ]


def train(tokenizer: Tokenizer, trainer) -> Tokenizer:
    tokenizer.train_from_iterator([*english().splitlines(keepends=True), OTHER_TEXT], trainer)
    return tokenizer


def byte_level(pre_tokenizer, normalizer=None, special=("<s>", "</s>"), **options) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return train(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=1200, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        ),
    )


def gpt2() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special=["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def llama3() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated", invert=False)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = byte_level(pre_tokenizers.Sequence([split, bytes_only]), ignore_merges=True)
    template = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(QWEN), "isolated", invert=False)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = byte_level(pre_tokenizers.Sequence([split, bytes_only]), normalizers.NFC(), special=[])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def smollm2() -> Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return byte_level(pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def tekken() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(TEKKEN), "isolated", invert=False)
    return byte_level(pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)]))


def with_byte_fallback(tokenizer: Tokenizer) -> Tokenizer:
    """Adds a token for each byte, as SentencePiece's models have them."""
    document = json.loads(tokenizer.to_str())
    model = document["model"]
    for byte in range(256):
        model["vocab"].setdefault(f"<0x{byte:02X}>", len(model["vocab"]))
    model["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(document))


def sentence_piece(**changes) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    for name, part in changes.items():
        setattr(tokenizer, name, part)
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=1200, limit_alphabet=90, special_tokens=special, show_progress=False)
    # For the trainer words end at spaces, because whole lines would take long.
    whole = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    train(tokenizer, trainer)
    tokenizer.pre_tokenizer = whole
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def llama2() -> Tokenizer:
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return with_byte_fallback(
        sentence_piece(
            normalizer=normalizers.Sequence(steps),
            decoder=decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            ),
        )
    )


def mistral() -> Tokenizer:
    return with_byte_fallback(
        sentence_piece(
            pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
            decoder=decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            ),
        )
    )


def metaspace() -> Tokenizer:
    return sentence_piece(pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())


def clip() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="@@", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<unk>"],
        continuing_subword_prefix="@@",
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    return train(tokenizer, trainer)


def bert(**options) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def minilm() -> Tokenizer:
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_truncation(max_length=24)
    tokenizer.enable_padding(length=24)
    return tokenizer


def charsmap(rules: dict[str, str]) -> bytes:
    """Returns SentencePiece's table of replacements: the size of a double-array trie, the trie, and the texts."""
    tree, texts = {}, b""
    for source, target in rules.items():
        node = tree
        for byte in source.encode():
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += target.encode() + b"\0"
    units = {0: 0}  # by place

    def add(place: int, node: dict) -> None:
        base = next(base for base in range(1, 1 << 20) if all(base ^ label not in units for label in node))
        units[place] |= (base ^ place) << 10 | (0 in node) << 8
        units.update({base ^ label: child | 1 << 31 if label == 0 else label for label, child in node.items()})
        for label, child in node.items():
            if label != 0:
                add(base ^ label, child)

    add(0, tree)
    trie = b"".join(units.get(place, 0).to_bytes(4, "little") for place in range((max(units) | 255) + 1))
    return len(trie).to_bytes(4, "little") + trie + texts


# Texts of one, two and four bytes, of several characters, prefixes of others, and with an empty replacement.
CHARSMAP = charsmap(
    {
        **{chr(code): " " for code in (9, 10, 13, 0x3000, 0x2028)},
        **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},  # wide ASCII
        "ﬁ": "fi", "½": "1⁄2", "①": "1", "Å": "Å", "é": "é", "e\u0301": "é", "e": "e", "\u0301\u0302": "^",
        "\u200b": "", "\u00ad": "", "👩": "woman", "🇩🇪": "Germany", "か\u3099": "が",
    }
)  # fmt: skip


def unigram(normalizer, pre_tokenizer, **options) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=special, unk_token="<unk>", show_progress=False, **options
    )
    tokenizer.train_from_iterator([*english()[:60_000].splitlines(keepends=True), OTHER_TEXT[:80]], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def t5() -> Tokenizer:
    tokenizer = unigram(normalizers.Precompiled(CHARSMAP), pre_tokenizers.Metaspace())
    tokenizer.add_special_tokens([f"<extra_id_{i}>" for i in range(3)])
    return tokenizer


def xlm_roberta() -> Tokenizer:
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    steps = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return unigram(normalizers.Sequence([normalizers.Precompiled(CHARSMAP), normalizers.Strip(), spaces]), steps)


def albert() -> Tokenizer:
    steps = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    return unigram(normalizers.Sequence(steps), pre_tokenizers.Metaspace(split=False))


def unigram_bytes() -> Tokenizer:
    """Unknown characters become the tokens of their bytes."""
    document = json.loads(unigram(normalizers.Nmt(), pre_tokenizers.Metaspace(prepend_scheme="first")).to_str())
    document["model"]["vocab"] += [[f"<0x{byte:02X}>", -30.0] for byte in range(256)]
    document["model"]["byte_fallback"] = True
    document["decoder"] = json.loads(llama2().to_str())["decoder"]
    return Tokenizer.from_str(json.dumps(document))


def bert_cased() -> Tokenizer:
    return bert(lowercase=False, strip_accents=True, handle_chinese_chars=False)


KINDS = {
    function.__name__: function
    for function in (
        gpt2, roberta, llama3, qwen, smollm2, tekken, llama2, mistral, metaspace, clip, bert, minilm, bert_cased,
        t5, xlm_roberta, albert, unigram_bytes,
    )
}  # fmt: skip


@functools.cache
def of_kind(kind: str) -> Tokenizer:
    return KINDS[kind]()


def own(reference: Tokenizer) -> accord.Tokenizer:
    """Returns accord's tokenizer of the same file."""
    return accord.Tokenizer.parse(reference.to_str())


def spy(normalizer=None, pre_tokenizer=None) -> Tokenizer:
    """A byte-level tokenizer whose ids show how each byte was changed and which bytes begin a word."""
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = [bytes_only] if pre_tokenizer is None else [pre_tokenizer, bytes_only]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *("##" + c for c in alphabet)])}
    document = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "continuing_subword_prefix": "##", "vocab": vocabulary, "merges": []},
    }
    tokenizer = Tokenizer.from_str(json.dumps(document))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def split_part(regex: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def with_part(key: str, part) -> str:
    return json.dumps({**json.loads(of_kind("gpt2").to_str()), key: part})


TEXTS = ["", " ", "  two  spaces ", "\n\n\t x", *random_texts(seed=1, count=80), english()[:3000]]
