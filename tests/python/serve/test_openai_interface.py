"""OpenAI's client against a running server. Texts and probabilities are compared with transformers'."""

import asyncio
import json
import math
import re
import urllib.error
import urllib.request

import pytest
from text_model import CONTEXT, CONVERSATIONS, TEXTS, torch

openai = pytest.importorskip("openai")
QUESTIONS = [conversation[:1] for conversation in CONVERSATIONS]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(server, path: str, body: object) -> tuple[int, dict]:
    """Sends a body as it is; returns the status and the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("prompt", ["The quick", "Ça", "日", "étudient 👍🏽"])
def test_greedy_completions_match_transformers(server, client, text_model, prompt):
    made = client.completions.create(model=server.name, prompt=prompt, max_tokens=40, temperature=0)
    assert made.choices[0].text == text_model.continued(prompt, 40)
    assert made.choices[0].finish_reason == "stop"
    assert made.object == "text_completion"
    assert made.usage.prompt_tokens == len(text_model.tokenizer(prompt).input_ids)
    assert made.usage.completion_tokens == len(text_model.tokens(prompt, 40))
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_answers_of_chats_match_transformers(server, client, text_model, question):
    made = client.chat.completions.create(model=server.name, messages=question, temperature=0)
    (choice,) = made.choices
    assert (choice.message.role, choice.message.content) == ("assistant", text_model.continued(question, 60))
    assert choice.finish_reason == "stop"
    parts = [{"role": "user", "content": [{"type": "text", "text": text}]} for text in [question[0]["content"]]]
    again = client.chat.completions.create(model=server.name, messages=parts, temperature=0)
    assert again.choices[0].message.content == choice.message.content


def test_a_stream_has_whole_characters_and_the_usage_at_its_end(server, client, text_model):
    (question,) = QUESTIONS[2]
    stream = client.chat.completions.create(
        model=server.name, messages=[question], temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *events, last = list(stream)
    assert events[0].choices[0].delta.role == "assistant"
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text == TEXTS[3]
    assert "\N{REPLACEMENT CHARACTER}" not in text
    assert [event.choices[0].finish_reason for event in events if event.choices[0].finish_reason] == ["stop"]
    assert last.choices == []
    assert last.usage.completion_tokens == len(text_model.tokens([question], 60))
    assert {event.id for event in [*events, last]} == {last.id}
    assert all(event.object == "chat.completion.chunk" for event in events)


def test_several_prompts_and_samples_are_numbered_as_in_openais_interface(server, client):
    options = {"model": server.name, "n": 3, "temperature": 2.0, "seed": 11, "max_tokens": 12}
    made = client.completions.create(prompt=TEXTS[:2], **options)
    assert [choice.index for choice in made.choices] == list(range(6))
    texts = [choice.text for choice in made.choices]
    assert len(set(texts)) > 3
    assert texts[:3] == [choice.text for choice in client.completions.create(prompt=TEXTS[0], **options).choices]
    streamed = [""] * 6
    for event in client.completions.create(prompt=TEXTS[:2], stream=True, **options):
        streamed[event.choices[0].index] += event.choices[0].text
    assert streamed == texts


def test_equal_seeds_give_equal_texts_and_requests_without_a_seed_differ(server, client):
    def text(**options):
        options |= {"model": server.name, "temperature": 2.0, "max_tokens": 24}
        return client.completions.create(prompt="One", **options).choices[0].text

    assert text(seed=5) == text(seed=5) != text(seed=6)
    assert text(seed=-1) == text(seed=-1)
    assert len({text() for _ in range(4)}) > 1


def test_prompts_may_be_tokens(server, client, text_model):
    tokens = text_model.tokenizer("The quick").input_ids
    for prompt in (tokens, [tokens]):
        made = client.completions.create(model=server.name, prompt=prompt, max_tokens=40, temperature=0)
        assert made.choices[0].text == text_model.continued("The quick", 40)


@pytest.mark.parametrize(
    ("stop", "text", "finish"),
    [
        ("fox j", " brown ", "stop"),
        (["lazy cat", "jumps"], " brown fox ", "stop"),
        (["dog.", "the lazy"], " brown fox jumps over ", "stop"),
        (["dog.?", "dogs"], " brown fox jumps over the lazy dog.", "stop"),
        ([" "], "", "stop"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_texts_are_found_across_tokens_and_removed(server, client, stop, text, finish, stream):
    options = {"model": server.name, "prompt": "The quick", "max_tokens": 40, "temperature": 0, "stop": stop}
    if stream:
        choices = [event.choices[0] for event in client.completions.create(stream=True, **options)]
    else:
        choices = client.completions.create(**options).choices
    assert "".join(choice.text for choice in choices) == text
    assert choices[-1].finish_reason == finish


def test_an_answer_that_reaches_its_limit_ends_with_length(server, client):
    for name in ("max_tokens", "max_completion_tokens"):
        made = client.chat.completions.create(model=server.name, messages=QUESTIONS[0], temperature=0, **{name: 2})
        assert made.choices[0].finish_reason == "length"
        assert made.usage.completion_tokens == 2


def logprobs_of(text_model, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Returns transformers' log probabilities of all tokens, at each position of the answer."""
    with torch.no_grad():
        logits = text_model.model(input_ids=torch.tensor([prompt + answer])).logits[0]
    return torch.log_softmax(logits.double(), -1)[len(prompt) - 1 : -1]


def test_logprobs_of_completions_match_transformers(server, client, text_model):
    prompt = text_model.tokenizer("The quick").input_ids
    answer = text_model.tokens("The quick", 6)
    expected = logprobs_of(text_model, prompt, answer)
    options = {"model": server.name, "prompt": "The quick", "max_tokens": 6, "temperature": 0, "logprobs": 3}
    found = client.completions.create(**options).choices[0].logprobs
    pieces = [text_model.tokenizer.decode([token]) for token in answer]
    assert found.tokens == pieces
    assert found.text_offset == [len("".join(pieces[:index])) for index in range(len(pieces))]
    for index, token in enumerate(answer):
        assert math.isclose(found.token_logprobs[index], expected[index, token], abs_tol=1e-4)
        best = expected[index].topk(3)
        names = [text_model.tokenizer.decode([one]) for one in best.indices]
        assert list(found.top_logprobs[index]) == names
        assert torch.allclose(
            torch.tensor(list(found.top_logprobs[index].values()), dtype=torch.float64), best.values, atol=1e-4
        )
    streamed = [event.choices[0].logprobs for event in client.completions.create(stream=True, **options)]
    assert [name for part in streamed for name in part.tokens] == found.tokens
    assert [offset for part in streamed for offset in part.text_offset] == found.text_offset


def test_logprobs_of_chats_match_transformers(server, client, text_model):
    (question,) = QUESTIONS[0]
    text = text_model.tokenizer.apply_chat_template([question], tokenize=False, add_generation_prompt=True)
    prompt = text_model.tokenizer(text, add_special_tokens=False).input_ids
    answer = text_model.tokens([question], 5)
    expected = logprobs_of(text_model, prompt, answer)
    made = client.chat.completions.create(
        model=server.name, messages=[question], max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    for index, (found, token) in enumerate(zip(made.choices[0].logprobs.content, answer, strict=True)):
        assert found.token == text_model.tokenizer.decode([token])
        assert math.isclose(found.logprob, expected[index, token], abs_tol=1e-4)
        assert bytes(found.bytes).decode(errors="replace") == found.token
        best = expected[index].topk(2)
        assert [one.token for one in found.top_logprobs] == [text_model.tokenizer.decode([one]) for one in best.indices]


def test_the_bytes_of_tokens_join_to_the_text(server, client):
    """Also where characters consist of several tokens."""
    (choice,) = client.chat.completions.create(
        model=server.name, messages=QUESTIONS[2], temperature=0, logprobs=True
    ).choices
    parts = [bytes(one.bytes) for one in choice.logprobs.content]
    assert b"".join(parts).decode() == choice.message.content == TEXTS[3]
    assert any("\N{REPLACEMENT CHARACTER}" in one.token for one in choice.logprobs.content)


def test_biases_forbid_and_force_tokens(server, client, text_model):
    options = {"model": server.name, "prompt": "The quick", "max_tokens": 8, "temperature": 0}
    first = text_model.tokens("The quick", 1)[0]
    forbidden = client.completions.create(logit_bias={str(first): -100}, **options)
    assert not forbidden.choices[0].text.startswith(text_model.tokenizer.decode([first]))
    x = text_model.tokenizer("x", add_special_tokens=False).input_ids
    forced = client.completions.create(logit_bias={str(x[0]): 100}, **options)
    assert forced.choices[0].text == "x" * 8


def test_an_answer_that_ignores_its_end_goes_on_to_the_limit(server, client, text_model):
    options = {"model": server.name, "prompt": "The quick", "temperature": 0, "max_tokens": 40}
    made = client.completions.create(**options, extra_body={"ignore_eos": True})
    ids = text_model.tokenizer("The quick", return_tensors="pt").input_ids
    prompt = ids.shape[1]
    with torch.no_grad():
        for _ in range(40):
            ids = torch.cat([ids, text_model.model(ids).logits[:, -1:].argmax(-1)], dim=1)
    assert text_model.tokenizer.eos_token_id in ids[0, prompt:-1]
    assert made.choices[0].text == text_model.tokenizer.decode(ids[0, prompt:], skip_special_tokens=True)
    assert (made.usage.completion_tokens, made.choices[0].finish_reason) == (40, "length")
    made = client.completions.create(**options, extra_body={"ignore_eos": False})
    assert made.choices[0].finish_reason == "stop"


def test_penalties_change_what_repeats(server, client, text_model):
    x = text_model.tokenizer("x", add_special_tokens=False).input_ids
    options = {"model": server.name, "prompt": "The", "max_tokens": 6, "temperature": 0, "logit_bias": {str(x[0]): 30}}
    assert client.completions.create(**options).choices[0].text == "x" * 6
    text = client.completions.create(frequency_penalty=2.0, presence_penalty=2.0, **options).choices[0].text
    assert text.startswith("xx")  # 30 - 2 - 2 for each x is more than any other logit for some time
    more = client.completions.create(extra_body={"repetition_penalty": 100.0}, **options).choices[0].text
    assert more.count("x") < 6
    best = client.completions.create(
        model=server.name, prompt="The quick", max_tokens=8, temperature=2.0, extra_body={"top_k": 1}
    )
    assert best.choices[0].text == text_model.continued("The quick", 8)


def test_the_async_client_gets_concurrent_answers(server, text_model):
    async def ask(client, prompt):
        stream = await client.completions.create(
            model=server.name, prompt=prompt, max_tokens=40, temperature=0, stream=True
        )
        return "".join([event.choices[0].text async for event in stream])

    async def ask_all(prompts):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    prompts = ["The quick", "Ça", "One", "日"] * 8
    assert asyncio.run(ask_all(prompts)) == [text_model.continued(prompt, 40) for prompt in prompts]


def test_tokens_match_those_of_transformers(server, text_model):
    for text in [*TEXTS, "", "<|im_start|>"]:
        expected = text_model.tokenizer(text).input_ids
        answer = {"tokens": expected, "count": len(expected), "max_model_len": CONTEXT}
        assert post(server, "/tokenize", {"prompt": text}) == (200, answer)
        bare = text_model.tokenizer(text, add_special_tokens=False).input_ids
        status, made = post(server, "/tokenize", {"prompt": text, "add_special_tokens": False})
        assert (status, made["tokens"]) == (200, bare)
        assert post(server, "/detokenize", {"tokens": bare}) == (200, {"prompt": text})
    for prompt in (True, False):
        rendered = text_model.tokenizer.apply_chat_template(
            CONVERSATIONS[0], tokenize=False, add_generation_prompt=prompt
        )
        expected = text_model.tokenizer(rendered, add_special_tokens=False).input_ids
        _, made = post(server, "/tokenize", {"messages": CONVERSATIONS[0], "add_generation_prompt": prompt})
        assert made["tokens"] == expected


def test_the_model_is_listed(server, client):
    assert [model.id for model in client.models.list()] == [server.name]
    assert client.models.retrieve(server.name).owned_by == "accord"
    with pytest.raises(openai.NotFoundError, match=f'no model "gpt-5"; this server has "{server.name}"'):
        client.models.retrieve("gpt-5")


CHAT = {"messages": QUESTIONS[0]}
TEXT = {"prompt": "One"}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        (CHAT | {"tools": [{"type": "function"}]}, "tools.0.function", "missing_required_parameter"),
        (CHAT | {"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (CHAT | {"temprature": 1}, "temprature", "unknown_parameter"),
        (CHAT | {"temperature": 3}, "temperature", "invalid_value"),
        (CHAT | {"temperature": "hot"}, "temperature", "invalid_value"),
        (CHAT | {"n": True}, "n", "invalid_value"),
        (CHAT | {"n": 0}, "n", "invalid_value"),
        (CHAT | {"max_tokens": CONTEXT}, "max_tokens", "context_length_exceeded"),
        (CHAT | {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "invalid_value"),
        (CHAT | {"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        (CHAT | {"stop": [""]}, "stop.0", "invalid_value"),
        (CHAT | {"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        (CHAT | {"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        (CHAT | {"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        (CHAT | {"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
        ({}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0.image_url",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
            "messages.0.tool_calls",
            "unsupported_parameter",
        ),
        (TEXT | {"echo": True}, "echo", "unsupported_parameter"),
        (TEXT | {"best_of": 2}, "best_of", "unsupported_parameter"),
        (TEXT | {"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"prompt": [1, -1]}, "prompt.1", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": "word " * CONTEXT}, "max_tokens", "context_length_exceeded"),
    ],
)  # fmt: skip
def test_an_invalid_field_is_named(server, fields, param, code):
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    status, answer = post(server, path, {"model": server.name} | fields)
    assert status == 400, answer
    error = answer["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert error["message"]


def test_an_error_of_the_engine_is_a_400(server):
    body = {"model": server.name, "prompt": [1, 1 << 20], "max_tokens": 1}
    status, answer = post(server, "/v1/completions", body)
    assert status == 400
    assert "outside the vocabulary" in answer["error"]["message"]
    assert post(server, "/v1/completions", body | {"stream": True})[0] == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": False},
        {"metadata": None, "stop": None, "seed": None, "user": "someone", "logit_bias": {}},
    ],
)
def test_fields_that_ask_for_nothing_are_accepted(server, fields):
    status, answer = post(server, "/v1/chat/completions", CHAT | {"model": server.name, "max_tokens": 1} | fields)
    assert status == 200, answer


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "EOF"),
        (b'{"model"', "EOF"),
        (b'{"model": "\xff"}', "invalid unicode"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b"[" * 100_000, "recursion"),
        (b"[1]", "object"),
    ],
)
def test_a_body_that_is_not_an_object_of_json_is_a_400(server, body, message):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        status, answer = post(server, path, body)
        assert status == 400
        assert message in answer["error"]["message"]


def test_an_unknown_model_and_an_unknown_path_are_404(server):
    status, answer = post(server, "/v1/completions", {"model": "gpt-5", "prompt": "x"})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
    assert post(server, "/v1/images", {})[0] == 404
    assert post(server, "/health", {})[0] == 405


def metrics_of(server) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_metrics_count_requests_and_tokens(server, client, text_model):
    before = metrics_of(server)
    client.completions.create(model=server.name, prompt="The quick", max_tokens=5, temperature=0)
    after = metrics_of(server)
    label = f'model="{server.name}"'
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown[f'accord_responses_total{{{label},path="/v1/completions",status="200"}}'] == 1
    assert grown[f"accord_generated_tokens_total{{{label}}}"] == 5
    assert grown[f"accord_prompt_tokens_total{{{label}}}"] == len(text_model.tokenizer("The quick").input_ids)
    assert grown[f"accord_time_to_first_token_seconds_count{{{label}}}"] == 1
    assert grown[f"accord_time_between_tokens_seconds_count{{{label}}}"] == 4
    assert after[f"accord_ready{{{label}}}"] == 1
    assert after[f"accord_open_requests{{{label}}}"] == 0
    assert 0 <= after[f"accord_cache_use_ratio{{{label}}}"] <= 1


def test_the_description_has_every_path_and_resolves(server):
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=30) as answer:
        text = answer.read().decode()
    description = json.loads(text)
    assert description["openapi"].startswith("3.1")
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/ready"} <= set(
        description["paths"]
    )
    for reference in re.findall(r'"\$ref":"#/components/schemas/([^"]*)"', text):
        assert reference in description["components"]["schemas"]
    properties = description["components"]["schemas"]["ChatRequest"]["properties"]
    assert properties["model"]["enum"] == [server.name]
    assert "temperature" in properties
