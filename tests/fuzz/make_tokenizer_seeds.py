"""Writes the seed inputs of tokenizer_fuzz: make_tokenizer_seeds.py DIRECTORY. The seeds are one tokenizer file per
component, each with a text, plus a chat format, texts and tokens."""

import json
import sys
from pathlib import Path

TEXT = "Lower lowe\u0301r 12 <low>\n x\u20ac\u4f60 ##".encode() + b"\xe2\x82"
BPE = {
    "type": "BPE", "dropout": None, "unk_token": "?", "continuing_subword_prefix": None, "end_of_word_suffix": None,
    "fuse_unk": True, "byte_fallback": True, "ignore_merges": True,
    "vocab": {"l": 0, "o": 1, "w": 2, "lo": 3, "low": 4, "?": 5, "<0xE2>": 6, "\u2581": 7}, "merges": ["l o", ["lo", "w"]],
}  # fmt: skip
WORD_PIECE = {
    "type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
    "vocab": {"?": 0, "low": 1, "##er": 2},
}  # fmt: skip
REGEX = r"(?i:'s|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+|\w\b|(?<=a)\d"
NORMALIZERS = [
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
    {"type": "Sequence", "normalizers": [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")]},
    {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Strip", "strip_left": True, "strip_right": True}]},
    {"type": "Replace", "pattern": {"Regex": REGEX}, "content": "_"},
]  # fmt: skip
PRE_TOKENIZERS = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}]},
    {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"}]},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
    {"type": "Split", "pattern": {"Regex": REGEX}, "behavior": "MergedWithNext", "invert": False},
    {"type": "Split", "pattern": {"String": "o"}, "behavior": "MergedWithPrevious", "invert": True},
    {"type": "BertPreTokenizer"},
]  # fmt: skip
POST_PROCESSORS = [
    {"type": "BertProcessing", "sep": ["?", 0], "cls": ["l", 1]},
    {"type": "RobertaProcessing", "sep": ["?", 0], "cls": ["l", 1], "trim_offsets": True, "add_prefix_space": True},
    {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "?", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"?": {"id": "?", "ids": [0], "tokens": ["?"]}},
    },
]
DECODERS = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 1},
        ],
    },
]
CHAT = {
    "format": "accord-chat-format", "format_version": 1, "start": {"user": "", "system": ["<s>", {"date": "%d %b"}]},
    "between": {"system": {"user": "; "}, "user": {"assistant": "\n"}}, "end": {"assistant": ""}, "generation": {"user": "> "},
    "trimmed": ["user"],
}  # fmt: skip


def file(number: int) -> dict:
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 20, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 8}, "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 0, "pad_type_id": 0, "pad_token": "?",
        },
        "added_tokens": [
            {
                "id": 8 if number % 2 else 3, "content": "<low>", "single_word": True, "lstrip": True, "rstrip": True,
                "normalized": number % 3 == 0, "special": True,
            }
        ],
        "normalizer": NORMALIZERS[number % len(NORMALIZERS)],
        "pre_tokenizer": PRE_TOKENIZERS[number % len(PRE_TOKENIZERS)],
        "post_processor": POST_PROCESSORS[number % len(POST_PROCESSORS)],
        "decoder": DECODERS[number % len(DECODERS)],
        "model": BPE if number % 2 else WORD_PIECE,
    }  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(14):
        (folder / f"file_{number}").write_bytes(b"\0" + json.dumps(file(number)).encode() + b"\0" + TEXT)
    (folder / "chat").write_bytes(b"\1" + json.dumps(CHAT).encode())
    (folder / "text").write_bytes(b"\2" + TEXT)
    (folder / "tokens").write_bytes(b"\3" + bytes(range(14)))


if __name__ == "__main__":
    main()
