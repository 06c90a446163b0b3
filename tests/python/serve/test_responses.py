"""/v1/responses with OpenAI's client. The answers are those of chats."""

import asyncio
import json

import pytest
from pydantic import BaseModel, Field
from tool_model import BOTH, GREETING, RESULT, TOOLS, WEATHER

openai = pytest.importorskip("openai")
FUNCTIONS = [{"type": "function"} | tool["function"] for tool in TOOLS]


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


@pytest.fixture(scope="module")
def client(tool_server):
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ask(client, tool_server):
    return lambda **options: client.responses.create(**{"model": tool_server.name, "temperature": 0} | options)


@pytest.fixture(scope="module")
def chat(client, tool_server):
    """Returns the text of a chat's answer."""

    def made(messages, **options):
        options = {"model": tool_server.name, "temperature": 0, "max_tokens": 30} | options
        return client.chat.completions.create(messages=messages, **options).choices[0].message.content

    return made


def calls_of(response) -> list[tuple[str, dict]]:
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


def calls_in(lesson: dict) -> list[tuple[str, dict]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in lesson.get("tool_calls", [])]


def test_the_input_is_a_text_or_a_conversation(ask, chat):
    made = ask(input="Hello", tools=FUNCTIONS)
    assert made.output_text == GREETING[1]["content"]
    assert (made.status, made.object, made.error, made.incomplete_details) == ("completed", "response", None, None)
    assert made.output[0].role == "assistant"
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens > 0
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
    for conversation in (GREETING[:1], parts, [{"type": "message"} | GREETING[0]]):
        assert ask(input=conversation, tools=FUNCTIONS).output_text == made.output_text
    system = {"role": "system", "content": "Be kind."}
    made = ask(input="Hello", instructions="Be kind.", max_output_tokens=30)
    assert made.output_text == chat([system, GREETING[0]])
    assert made.instructions == "Be kind."
    assert (
        ask(input=[{**system, "role": "developer"}, GREETING[0]], max_output_tokens=30).output_text == made.output_text
    )


def test_a_limit_makes_a_response_incomplete(ask):
    made = ask(input="Hello", tools=FUNCTIONS, max_output_tokens=2)
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (made.output[0].status, made.usage.output_tokens) == ("incomplete", 2)


def test_equal_seeds_give_equal_answers(ask):
    options = {"input": "Hello", "max_output_tokens": 20, "temperature": 1.8}
    first, second, third = (ask(extra_body={"seed": seed}, **options).output_text for seed in (1, 1, 2))
    assert first == second != third


@pytest.mark.parametrize("conversation", [WEATHER, BOTH], ids=["one", "two"])
def test_calls_of_tools_are_items(ask, conversation):
    made = ask(input=conversation[:1], tools=FUNCTIONS)
    assert calls_of(made) == calls_in(conversation[1])
    assert made.output_text == conversation[1]["content"]
    assert made.status == "completed"
    assert len({item.id for item in made.output}) == len(made.output)


def test_a_result_is_answered(ask):
    """With the items that the client received."""
    items = [WEATHER[0]]
    items += ask(input=items, tools=FUNCTIONS).output
    items.append({"type": "function_call_output", "call_id": items[1].call_id, "output": "12 C"})
    assert ask(input=items, tools=FUNCTIONS).output_text == RESULT[-1]["content"]


def test_calls_can_be_required(ask):
    made = ask(input="Hello", tools=FUNCTIONS, tool_choice="required", parallel_tool_calls=False)
    assert len(calls_of(made)) == 1
    made = ask(input="Hello", tools=FUNCTIONS, tool_choice={"type": "function", "name": "add"})
    assert [name for name, _ in calls_of(made)] == ["add"]
    made = ask(input=WEATHER[:1], tools=FUNCTIONS, tool_choice="none", max_output_tokens=20)
    assert calls_of(made) == []


@pytest.mark.parametrize("conversation", [WEATHER, BOTH, GREETING], ids=["one", "two", "none"])
def test_a_stream_has_the_events_of_items(ask, conversation):
    question, lesson = conversation
    events = list(ask(input=[question], tools=FUNCTIONS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    response = events[-1].response
    assert calls_of(response) == calls_in(lesson)
    assert response.output_text == lesson["content"]
    for index, item in enumerate(response.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        assert (own[0].type, own[-1].type) == ("response.output_item.added", "response.output_item.done")
        assert own[-1].item == item
        deltas = "".join(event.delta for event in own if event.type.endswith(".delta"))
        assert deltas == (item.arguments if item.type == "function_call" else item.content[0].text)
        assert all(event.item_id == item.id for event in own[1:-1])
        if item.type == "message":
            kinds = [event.type for event in own if not event.type.endswith(".delta")]
            assert kinds == [
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
            ]


def test_openais_client_collects_a_stream(client, tool_server):
    with client.responses.stream(model=tool_server.name, input=BOTH[:1], temperature=0, tools=FUNCTIONS) as stream:
        for _ in stream:
            pass
        assert calls_of(stream.get_final_response()) == calls_in(BOTH[1])


def test_openais_clients_parse_answers_into_models(client, tool_server):
    options = {"model": tool_server.name, "input": "Hello", "temperature": 1.3, "extra_body": {"seed": 4}}
    made = client.responses.parse(text_format=Person, **options).output_parsed
    assert isinstance(made, Person)

    async def parsed() -> Person:
        async with openai.AsyncOpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0) as other:
            return (await other.responses.parse(text_format=Person, **options)).output_parsed

    assert asyncio.run(parsed()) == made


def schema_format(**fields: object) -> dict:
    return {"format": {"type": "json_schema"} | fields}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps no responses"),
        ({"store": True}, "store", "not supported"),
        ({"background": True}, "background", "not supported"),
        ({"n": 2}, "n", "unknown field"),
        ({"text": schema_format(name="x")}, "text.format.schema", "needs it"),
        ({"text": schema_format(schema={})}, "text.format.name", "needs it"),
        ({"text": schema_format(name="x", schema={"type": "strin"})}, "text.format.schema", "Invalid type"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "user"}]}, "input.0.content", "needs it"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id", "needs it"),
        ({"input": [{"type": "reasoning"}]}, "input.0.type", "input should be"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0.image_url", "not supported",
        ),
        ({"max_output_tokens": 100_000}, "max_output_tokens", "exceed the context"),
    ],
)  # fmt: skip
def test_an_invalid_field_is_named(ask, fields, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(**{"input": "Hello"} | {"extra_body": fields})
    assert caught.value.param == param
