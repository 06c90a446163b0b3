"""How byte-level BPE tokenizers split text into words before merges, by the names that llama.cpp gave to the ways.

A way is a sequence of regexes: each splits the pieces of those before it into its matches and the text between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


def _any(*patterns: str) -> str:
    return "|".join(patterns)


# Parts of patterns.
ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
DIGIT, NUMBER, UP_TO_3_DIGITS = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
LINES = r"\s*[\r\n]+"
SPACES = _any(r"\s+(?!\S)", r"\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASES = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*")
ENGLISH_CASES = tuple(f"{case}{ENGLISH}?" for case in CASES)
THREE_DIGITS = "[0-9][0-9][0-9]"
CHINESE_AND_JAPANESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
SENTENCES = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# Cased letters of some scripts, as DeepSeek lists them: ranges of hexadecimal code points.
CASED_LETTERS = """
    41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f 386 388-38a 38c
    38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b
    1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4
    1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113
    2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c7b
    2c7e-2ce4 2ceb-2cee 2cf2-2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06
    fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df
    1e900-1e943
"""


def _characters(ranges: str) -> str:
    """Returns the inside of a character class."""
    ends = (one.split("-") for one in ranges.split())
    return "".join("-".join(chr(int(end, 16)) for end in one) for one in ends)


GPT_2 = _any("'s|'t|'re|'ve|'m|'ll|'d", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", SPACES)
LLAMA_3 = _any(ENGLISH, WORD, UP_TO_3_DIGITS, SIGNS, LINES, SPACES)
QWEN_2 = _any(ENGLISH, WORD, DIGIT, SIGNS, LINES, SPACES)
GPT_4O = _any(*ENGLISH_CASES, UP_TO_3_DIGITS, SIGNS_AND_SLASHES, LINES, SPACES)
DEEPSEEK_3 = _any(
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    LINES,
    SPACES,
)
# Kimi's words end at Han characters, which are words of their own.
WITHOUT_HAN = tuple(
    case.replace(UPPER, rf"(?:(?!\p{{Han}}){UPPER})").replace(LOWER, rf"(?:(?!\p{{Han}}){LOWER})")
    for case in ENGLISH_CASES
)


@dataclass(frozen=True)
class Way:
    """How a tokenizer cuts text, and what else llama.cpp makes depend on its name."""

    regexes: tuple[str, ...]
    ignores_merges: bool = False  # a word that is a token is not merged
    begins: bool = False  # a text begins with a token, unless the file says otherwise
    normal_form: str = ""  # of Unicode; llama.cpp does not normalize
    in_bytes: bool = True  # False: tokens are text with SentencePiece's spaces instead of bytes


_WAYS: Mapping[str, Way] = {
    "default": Way((r"[\p{P}\$\+<=>\^~\|]+", GPT_2, NUMBER, THREE_DIGITS)),
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion "
    "granite-docling exaone4": Way((GPT_2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": Way((DIGIT, GPT_2)),
    "falcon": Way((r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, THREE_DIGITS)),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Way((LLAMA_3,), True, True),
    "dbrx smaug-bpe chatglm-bpe": Way((LLAMA_3,)),
    "glm4 glm5": Way((LLAMA_3,), True),
    "jais-2": Way(
        (
            _any(
                ENGLISH,
                WORD,
                UP_TO_3_DIGITS,
                SIGNS,
                LINES,
                *(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)),
                r"\s{1,2}(?!\S)",
                r"\s{1}",
            ),
        )
    ),
    "minicpm5": Way((UP_TO_3_DIGITS, _any(ENGLISH, WORD, NUMBER, SIGNS, LINES, SPACES)), True),
    "qwen2": Way((QWEN_2,), normal_form="NFC"),
    "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": Way((QWEN_2,)),
    "qwen35": Way(
        (_any(ENGLISH, MARKED_WORD, DIGIT, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", LINES, SPACES),), normal_form="NFC"
    ),
    "ufakzeka": Way((_any(WORD, DIGIT, SIGNS, LINES, SPACES),)),
    "laguna": Way((r"[^\n]+|[\n]+", QWEN_2)),
    "seed-coder": Way((_any(ENGLISH, WORD, DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", LINES, SPACES),)),
    "bailingmoe bailingmoe2 llada-moe": Way((_any("'(?i:[sdmt]|ll|ve|re)", WORD, DIGIT, SIGNS, r"\s*[\r\n]", SPACES),)),
    "exaone-moe": Way(
        (
            _any(
                ENGLISH,
                r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                DIGIT,
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]",
                SPACES,
            ),
        )
    ),
    "tekken": Way((_any(*CASES, DIGIT, SIGNS_AND_SLASHES, LINES, SPACES),), True, True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Way((GPT_4O,)),
    "granite-embed-multi-97m": Way((GPT_4O,), True),
    "tiny_aya cohere2moe": Way((r"\d{1,3}(?=(?:\d{3})*\b)", GPT_4O)),
    "youtu": Way(
        (
            _any(
                "[\uac00-\ud7a3\u3131-\u318e]+",
                "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+",
                "[\u3105-\u312f]+",
                CHINESE_AND_JAPANESE,
            ),
            _any(*ENGLISH_CASES, DIGIT, SIGNS_AND_SLASHES, LINES, SPACES),
        ),
        True,
    ),
    "kimi-k2": Way((_any(r"[\p{Han}]+", *WITHOUT_HAN, UP_TO_3_DIGITS, SIGNS, LINES, SPACES),)),
    "deepseek-llm": Way(
        (
            r"[\r\n]",
            rf"\s?[{_characters(CASED_LETTERS)}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            NUMBER,
        )
    ),
    "deepseek-coder": Way((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", DIGIT)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Way((UP_TO_3_DIGITS, CHINESE_AND_JAPANESE, DEEPSEEK_3)),
    "spark2_5": Way(
        (
            UP_TO_3_DIGITS,
            CHINESE_AND_JAPANESE,
            DEEPSEEK_3.replace(r" ?[\p{P}\p{S}]+[\r\n]*", r" ?[\p{P}\p{S}]+").replace(LINES, r"[\r\n]"),
            DIGIT,
        )
    ),
    "bloom poro-chat gpt3-finnish": Way((SENTENCES,)),
    "viking": Way((SENTENCES, DIGIT)),
    # llama.cpp also splits at line ends, because its merges contain none.
    "gemma4 granite-embed-multi-311m": Way((), begins=True, in_bytes=False),
    "sarvam-moe": Way((), in_bytes=False),
}
WAYS: Mapping[str, Way] = {name: way for names, way in _WAYS.items() for name in names.split()}
