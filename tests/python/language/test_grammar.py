"""Answers that must match a grammar, validated by jsonschema and `re`."""

import json
import re
from array import array

import pytest
from text_model import CONTEXT
from tokenizer_kinds import KINDS, of_kind, own

import accord

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")
from accord import grammar  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "größer", 3, None]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(text_model):
    with accord.load(text_model.path) as engine:
        made = accord.LanguageModel.create(engine, cache_tokens=8 * CONTEXT)
        yield made
        made.stop()


@pytest.fixture(scope="module")
def masks(model, text_model):
    return grammar.Masks(accord.Tokenizer.load(text_model.path / "tokenizer.json"), model.vocabulary, model.stop_tokens)


def answers(model, masks, made, count=6, **options) -> list[str]:
    """Returns the texts of answers, all of which have ended by themselves."""
    options = {"temperature": 1.5, "max_new_tokens": 240, "seed": 1} | options
    texts = [""] * count
    for event in model.generate("The", mask=masks.mask(made), samples=count, **options):
        texts[event.sample] += event.text
        assert event.finish in ("", "stop_token"), event.error
    return texts


def test_json_conforms_to_its_schema(model, masks):
    made = answers(model, masks, grammar.json_schema(PERSON), count=12)
    assert len(set(made)) == 12
    for text in made:
        jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize("pattern", ["[0-9]{3}-[0-9]{4}", "(ja|nein|日本語) ?é{2}", r"\w{1,8}\n"])
def test_a_text_matches_its_regex(model, masks, pattern):
    for text in answers(model, masks, grammar.regex(pattern)):
        assert re.fullmatch(pattern, text)


def test_one_of_the_choices_is_made(model, masks):
    choices = ['"quoted" \\', "zwei\n", "three 👍🏽", "t"]
    made = answers(model, masks, grammar.choice(choices), count=60, temperature=3.0)
    assert set(made) == set(choices)


@pytest.mark.parametrize(
    "text", ['root ::= "<" number ">"\nnumber ::= [0-9] | [0-9] number', 'start: "<" /[0-9]+/ ">"']
)
def test_grammars_may_be_in_lark_or_gbnf(model, masks, text):
    options = {"stop": ["9"]}  # numbers may be long
    for made in answers_or_stopped(model, masks, grammar.grammar(text), **options):
        assert re.fullmatch(r"<[0-8]+>|<[0-8]*", made)


def answers_or_stopped(model, masks, made, **options) -> list[str]:
    return [
        "".join(
            event.text for event in model.generate("One", mask=masks.mask(made), temperature=1.5, seed=seed, **options)
        )
        for seed in range(4)
    ]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: grammar.json_schema({"type": "strin"}), "Invalid type: strin"),
        (lambda: grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (lambda: grammar.json_schema(False), "not"),
        (lambda: grammar.json_schema({"$ref": "http://localhost/schema"}), "localhost"),
        (lambda: grammar.regex("(a"), "unclosed group"),
        (lambda: grammar.regex("a(?=b)"), "look-around"),
        (lambda: grammar.choice([]), "one or more texts"),
        (lambda: grammar.choice(["a", ""]), "not empty"),
        (lambda: grammar.grammar("start: x"), "unknown name"),
        (lambda: grammar.grammar("root ::= ("), "line 1"),
        (lambda: grammar.grammar(""), "root"),
    ],
)
def test_invalid_grammars_are_errors_with_the_reason(make, reason):
    with pytest.raises(accord.InvalidArgument, match=reason):
        make()


def test_a_model_without_stop_tokens_cannot_have_grammars(text_model):
    tokenizer = accord.Tokenizer.load(text_model.path / "tokenizer.json")
    with pytest.raises(accord.InvalidArgument, match="stop tokens"):
        grammar.Masks(tokenizer, 400, [])


def test_requests_may_share_a_mask(model, masks):
    """And have the tokens of requests that do not."""
    made, options = grammar.json_schema(PERSON), {"temperature": 1.5, "max_new_tokens": 100, "stop_tokens": [2]}
    prompts = [[0, 40 + token] for token in range(4)]

    def tokens(mask_of) -> list[list[int]]:
        streams = [model.submit(prompt, mask=mask_of(), seed=prompt[1], **options) for prompt in prompts]
        return [[event.token for event in stream] for stream in streams]

    shared = masks.mask(made)
    assert tokens(lambda: shared) == tokens(lambda: masks.mask(made))


@pytest.mark.parametrize("kind", KINDS)
def test_masks_follow_texts_of_every_kind_of_tokenizer(kind):
    """Each token of an object is allowed after those before it, and the end only after the last one."""
    reference = of_kind(kind)
    tokenizer = own(reference)
    stop = tokenizer.vocabulary_size
    masks = grammar.Masks(tokenizer, stop + 1, [stop])
    text = json.dumps({"name": "a b", "größe": 7, "tags": ["red", 3]}, separators=(", ", ": "), ensure_ascii=False)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if reference.decode(tokens) != text:
        pytest.skip("this tokenizer does not keep texts")

    def allowed(mask, tokens: list[int]) -> set[int]:
        bits = mask(0, array("i", tokens))
        return {token for token in range(stop + 1) if bits[token // 8] >> token % 8 & 1}

    mask = masks.mask(grammar.grammar('start: " "? %json {"type": "object"}'))
    for count, token in enumerate(tokens):
        found = allowed(mask, tokens[:count])
        assert token in found
        assert stop not in found
    assert stop in allowed(mask, tokens)
    exact = masks.mask(grammar.choice([text]))
    made: list[int] = []
    while (found := allowed(exact, made)) != {stop}:
        made.append(min(found))
    assert b"".join(tokenizer.bytes_of(token) for token in made) == text.encode()
