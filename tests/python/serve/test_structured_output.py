"""Answers that must match a schema or another grammar, asked for with OpenAI's client and validated by jsonschema."""

import asyncio
import json
import os
import re
import signal

import pytest
from accord_command import wait_until
from pydantic import BaseModel, Field
from served_model import make_endless, served
from tiers import mostly_slow

openai = pytest.importorskip("openai")
jsonschema = pytest.importorskip("jsonschema")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "kind": {"enum": ["a", "größer", None, 5]},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2},
    },
    "required": ["name", "kind", "parts"],
    "additionalProperties": False,
    "$defs": {
        "part": {
            "type": "object",
            "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}, "is_new": {"type": "boolean"}},
            "required": ["id", "is_new"],
            "additionalProperties": False,
        }
    },
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
MESSAGES = [{"role": "user", "content": "One"}]


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def asked(client, server, **options) -> list[str]:
    """Returns the texts of a chat's answers, all of which have ended by themselves."""
    options = {"model": server.name, "messages": MESSAGES, "temperature": 1.5, "seed": 7} | options
    made = client.chat.completions.create(**options)
    assert {choice.finish_reason for choice in made.choices} == {"stop"}
    return [choice.message.content for choice in made.choices]


def test_answers_conform_to_the_schema(server, client):
    made = asked(client, server, response_format=FORMAT, n=8)
    assert len(set(made)) > 4
    for text in made:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert made == asked(client, server, response_format=FORMAT, n=8)  # with equal seeds, and the prompt in the cache
    assert made != asked(client, server, response_format=FORMAT, n=8, seed=8)


def test_streams_have_the_same_texts(server, client):
    expected = asked(client, server, response_format=FORMAT, n=3)
    texts = [""] * 3
    for event in client.chat.completions.create(
        model=server.name, messages=MESSAGES, temperature=1.5, seed=7, n=3, response_format=FORMAT, stream=True
    ):
        texts[event.choices[0].index] += event.choices[0].delta.content or ""
    assert texts == expected


def test_stop_texts_and_limits_end_answers_before_their_grammar(server, client):
    options = {"model": server.name, "messages": MESSAGES, "temperature": 0, "response_format": FORMAT}
    (choice,) = client.chat.completions.create(stop='"kind"', **options).choices
    assert choice.finish_reason == "stop"
    assert re.fullmatch(r'\{\s*"name":\s*".*",\s*', choice.message.content)
    (choice,) = client.chat.completions.create(max_tokens=6, **options).choices
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")


def test_openais_client_parses_answers_into_models(server, client):
    made = client.chat.completions.parse(
        model=server.name, messages=MESSAGES, response_format=Person, temperature=1.5, seed=3
    )
    assert isinstance(made.choices[0].message.parsed, Person)

    async def parsed() -> Person:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
            made = await other.chat.completions.parse(
                model=server.name, messages=MESSAGES, response_format=Person, temperature=1.5, seed=3
            )
            return made.choices[0].message.parsed

    assert asyncio.run(parsed()) == made.choices[0].message.parsed


def test_json_object_is_an_object(server, client):
    made = client.chat.completions.create(
        model=server.name,
        messages=MESSAGES,
        response_format={"type": "json_object"},
        temperature=1.5,
        n=6,
        seed=2,
        logit_bias={str(token): -100 for token in (32, 42)},
    )
    complete = [choice.message.content for choice in made.choices if choice.finish_reason == "stop"]
    assert complete
    assert all(isinstance(json.loads(text), dict) for text in complete)


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": r"[a-f]{3}-\d{2}"}, r"[a-f]{3}-\d{2}"),
        ({"choice": ["yes", "no", "größer 👍🏽"]}, "yes|no|größer 👍🏽"),
        ({"grammar": 'root ::= "<" [0-9] [0-9] ">" | "none"'}, r"<\d\d>|none"),
        ({"grammar": 'start: "<" /[0-9]{2}/ ">"'}, r"<\d\d>"),
        ({"json": {"enum": [1, 22, "x"]}}, '1|22|"x"'),
        ({"json": '{"enum": [1, 22, "x"]}'}, '1|22|"x"'),
    ],
)
def test_the_fields_of_vllm(server, client, outputs, pattern):
    for text in asked(client, server, n=4, extra_body={"structured_outputs": outputs}):
        assert re.fullmatch(pattern, text)
    made = client.completions.create(
        model=server.name, prompt="One", max_tokens=60, extra_body={"structured_outputs": outputs}
    )
    assert re.fullmatch(pattern, made.choices[0].text)


def schema_format(schema: object) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


SCHEMA_FIELD = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs a json_schema"),
        ({"response_format": schema_format({"type": "strin"})}, SCHEMA_FIELD, "Invalid type: strin"),
        ({"response_format": schema_format({"uniqueItems": True})}, SCHEMA_FIELD, "uniqueItems"),
        ({"response_format": schema_format({"not": {}})}, SCHEMA_FIELD, "not"),
        ({"response_format": schema_format([1])}, SCHEMA_FIELD, "an object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name", "required",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "expected one kind"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "expected one kind"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice", "not empty"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", "unknown name"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"ebnf": "x"}}, "structured_outputs.ebnf", "unknown field"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs", "either",
        ),
    ],
)  # fmt: skip
def test_an_invalid_grammar_is_a_400_that_names_the_field(server, client, fields, param, message):
    with pytest.raises(openai.BadRequestError, match=re.escape(message)) as caught:
        client.chat.completions.create(model=server.name, messages=MESSAGES, extra_body=fields)
    assert caught.value.param == param


def test_a_grammar_that_the_tokenizer_cannot_follow_is_a_400(server, client):
    outputs = {"grammar": "start: <|no_such_token|>"}
    with pytest.raises(openai.BadRequestError, match="no_such_token"):
        client.chat.completions.create(model=server.name, messages=MESSAGES, extra_body={"structured_outputs": outputs})


def test_a_model_without_stop_token_is_a_400(endless):
    with served(endless) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match="no stop token"):
            client.chat.completions.create(model=server.name, messages=MESSAGES, response_format=FORMAT)


@pytest.mark.parametrize("rank", mostly_slow([0, 1], 0))
def test_answers_continue_in_their_grammar_after_a_rank_was_killed(text_model, tmp_path, rank):
    package = make_endless(text_model, tmp_path, stop_token=2)
    # Each word fixes the next one, so that a matcher in a wrong state would be noticed.
    outputs = {"regex": "(a[0-9]b|c[x-z]{2}d|ß){900}"}
    with served(package, "--cache-tokens", 16384, ranks=2) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:

            def texts(kill: bool) -> list[str]:
                stream = client.completions.create(
                    model=server.name,
                    prompt="One",
                    max_tokens=6000,
                    temperature=1.5,
                    seed=5,
                    n=2,
                    stream=True,
                    extra_body={"structured_outputs": outputs},
                )
                made = ["", ""]
                for count, event in enumerate(stream):
                    made[event.choices[0].index] += event.choices[0].text
                    if kill and count == 20:
                        os.kill(server.rank_process(rank), signal.SIGKILL)
                return made

            expected = texts(kill=False)
            assert all(re.fullmatch(outputs["regex"], text) for text in expected)
            assert texts(kill=True) == expected
            wait_until(lambda: len(server.events("ready")) == 2, "the ranks were started again")
            assert server.events("ready")[1]["resumed"] == 1
