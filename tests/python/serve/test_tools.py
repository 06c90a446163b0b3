"""Tools with OpenAI's client, against a server whose model has learned to call them."""

import asyncio
import copy
import json

import pytest
from tool_model import BOTH, GREETING, RESULT, TOOLS, WEATHER

openai = pytest.importorskip("openai")
jsonschema = pytest.importorskip("jsonschema")
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.fixture(scope="module")
def client(tool_server):
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ask(client, tool_server):
    """Returns an answer of the model."""

    def made(messages, **options):
        options = {"model": tool_server.name, "temperature": 0, "tools": TOOLS} | options
        return client.chat.completions.create(messages=messages, **options)

    return made


def calls_of(message) -> list[tuple[str, dict]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def calls_in(lesson: dict) -> list[tuple[str, dict]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in lesson.get("tool_calls", [])]


@pytest.mark.parametrize("conversation", [WEATHER, BOTH, GREETING], ids=["one", "two", "none"])
def test_answers_are_calls_and_texts(ask, conversation):
    question, lesson = conversation
    (choice,) = ask([question]).choices
    assert calls_of(choice.message) == calls_in(lesson)
    assert choice.message.content == (lesson["content"] or None)
    assert choice.finish_reason == ("tool_calls" if calls_in(lesson) else "stop")
    assert len({call.id for call in choice.message.tool_calls or []}) == len(calls_in(lesson))


@pytest.mark.parametrize("conversation", [WEATHER, BOTH, GREETING], ids=["one", "two", "none"])
def test_streams_have_the_calls_as_deltas(ask, conversation):
    question, lesson = conversation
    content, calls, finish = "", {}, []
    for event in ask([question], stream=True):
        (choice,) = event.choices
        content += choice.delta.content or ""
        finish += [choice.finish_reason] if choice.finish_reason else []
        for delta in choice.delta.tool_calls or []:
            if delta.id is not None:
                assert (delta.index, delta.type) == (len(calls), "function")
                calls[delta.index] = [delta.function.name, ""]
            calls[delta.index][1] += delta.function.arguments
    assert [(name, json.loads(arguments)) for name, arguments in calls.values()] == calls_in(lesson)
    assert content == lesson["content"]
    assert finish == ["tool_calls" if calls_in(lesson) else "stop"]


def test_openais_client_collects_a_streams_calls(client, tool_server):
    with client.chat.completions.stream(
        model=tool_server.name, messages=BOTH[:1], temperature=0, tools=TOOLS
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert calls_of(message) == calls_in(BOTH[1])


def test_a_result_is_answered(ask):
    """With the messages that the client made of the answer before."""
    messages = [WEATHER[0]]
    messages.append(ask(messages).choices[0].message)
    messages.append({"role": "tool", "tool_call_id": messages[1].tool_calls[0].id, "content": "12 C"})
    (choice,) = ask(messages).choices
    assert (choice.message.content, choice.finish_reason) == (RESULT[-1]["content"], "stop")


def test_the_prompt_is_the_templates(ask, tool_model):
    rendered = tool_model.tokenizer.apply_chat_template(
        RESULT[:-1], tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    messages = copy.deepcopy(RESULT[:-1])
    for call in messages[1]["tool_calls"]:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    made = ask(messages)
    assert made.usage.prompt_tokens == len(tool_model.tokenizer(rendered, add_special_tokens=False).input_ids)
    assert made.choices[0].message.content == RESULT[-1]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_required_calls_conform_to_their_schemas(ask, stream):
    """Also where the model would not call a tool."""
    options = {"tool_choice": "required", "temperature": 1.7, "max_tokens": 150}
    names = set()
    for seed in range(6):
        if stream:
            parts = {}
            for event in ask([GREETING[0]], seed=seed, stream=True, **options):
                for delta in event.choices[0].delta.tool_calls or []:
                    name, arguments = parts.get(delta.index, ("", ""))
                    parts[delta.index] = (name or delta.function.name, arguments + delta.function.arguments)
                finish = event.choices[0].finish_reason
            calls = [(name, json.loads(arguments)) for name, arguments in parts.values() if finish == "tool_calls"]
        else:
            (choice,) = ask([GREETING[0]], seed=seed, **options).choices
            calls = calls_of(choice.message) if choice.finish_reason == "tool_calls" else []
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
            names.add(name)
    assert names


def test_a_named_function_is_called_once(ask):
    for name in SCHEMAS:
        choice = {"type": "function", "function": {"name": name}}
        made = ask([GREETING[0]], tool_choice=choice, n=4, temperature=1.7, seed=3, max_tokens=100).choices
        complete = [calls_of(one.message) for one in made if one.finish_reason == "tool_calls"]
        assert complete
        for ((called, arguments),) in complete:
            assert called == name
            jsonschema.validate(arguments, SCHEMAS[name])


def test_parallel_calls_can_be_forbidden(ask):
    (choice,) = ask(BOTH[:1], parallel_tool_calls=False).choices
    assert calls_of(choice.message) == calls_in(BOTH[1])[:1]
    assert choice.finish_reason == "tool_calls"
    (choice,) = ask(BOTH[:1], parallel_tool_calls=False, tool_choice="required").choices
    assert len(choice.message.tool_calls) == 1


def strict(tools: list[dict]) -> list[dict]:
    return [{**tool, "function": tool["function"] | {"strict": True}} for tool in tools]


def test_arguments_of_strict_functions_are_valid_whenever_the_model_calls_one(ask):
    made = ask(BOTH[:1], tools=strict(TOOLS), n=32, temperature=1.7, seed=3, max_tokens=150).choices
    finished = [one for one in made if one.finish_reason in ("stop", "tool_calls")]
    calls = [call for one in finished for call in calls_of(one.message)]
    assert calls
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    assert "stop" in {one.finish_reason for one in ask(GREETING[:1], tools=strict(TOOLS)).choices}


def test_strict_functions_change_nothing_of_valid_answers(ask):
    for question, lesson in (WEATHER, BOTH, GREETING):
        (choice,) = ask([question], tools=strict(TOOLS)).choices
        assert calls_of(choice.message) == calls_in(lesson)
        assert choice.message.content == (lesson["content"] or None)


def test_answers_with_a_format_may_be_calls(ask):
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 20}},
        "required": ["text"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    (choice,) = ask(WEATHER[:1], response_format=form).choices
    assert calls_of(choice.message) == calls_in(WEATHER[1])
    made = ask(GREETING[:1], response_format=form, n=16, temperature=1.7, seed=5, max_tokens=150).choices
    assert "stop" in {one.finish_reason for one in made}
    for one in made:
        if one.finish_reason == "stop":
            jsonschema.validate(json.loads(one.message.content), schema)


def test_responses_with_a_format_may_be_calls(client, tool_server):
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    form = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
    made = client.responses.create(
        model=tool_server.name, input=WEATHER[0]["content"], tools=tools, text={"format": form}, temperature=0
    )
    assert [(item.name, json.loads(item.arguments)) for item in made.output] == calls_in(WEATHER[1])


def test_tool_choice_none_gives_a_text(ask):
    with_none = ask(WEATHER[:1], tool_choice="none", max_tokens=20)
    without = ask(WEATHER[:1], tools=openai.omit, max_tokens=20)
    assert with_none.choices[0].message.tool_calls is None
    assert with_none.choices[0].message.content == without.choices[0].message.content


def test_the_asynchronous_client_calls_tools(tool_server):
    async def called():
        async with openai.AsyncOpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0) as client:
            made = await client.chat.completions.create(
                model=tool_server.name, messages=WEATHER[:1], temperature=0, tools=TOOLS
            )
            return calls_of(made.choices[0].message)

    assert asyncio.run(called()) == calls_in(WEATHER[1])


def with_parameters(parameters: dict) -> list[dict]:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


NAMED = {"type": "function", "function": {"name": "other"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": NAMED}, "tool_choice", 'no tool "other"'),
        ({"tool_choice": "maybe"}, "tool_choice", "input should be"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.custom", "not supported"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
        (
            {"tools": with_parameters({"uniqueItems": True}), "tool_choice": "required"},
            "tools.0.function.parameters", "uniqueItems",
        ),
        ({"structured_outputs": {"regex": "a"}}, "tool_choice", "exclude calls of tools"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", "required"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages.0.tool_calls", "assistant"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
            "messages.0.tool_calls.0.function.arguments", "JSON object",
        ),
        ({"messages": [{"role": "assistant"}]}, "messages.0.content", "required"),
    ],
)  # fmt: skip
def test_an_invalid_use_is_a_400_that_names_the_field(client, tool_server, fields, param, message):
    body = {"model": tool_server.name, "messages": WEATHER[:1], "tools": TOOLS, "extra_body": fields}
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.chat.completions.create(**body)
    assert caught.value.param == param


def test_a_template_without_tools_is_a_400(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="template does not take tools") as caught:
            client.chat.completions.create(model=server.name, messages=WEATHER[:1], tools=TOOLS)
    assert caught.value.param == "tools"
