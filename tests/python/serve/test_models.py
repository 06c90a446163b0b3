"""Several models in one server: requests choose one, and what happens to one does not disturb the others."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import threading

import pytest
from accord_command import is_running, wait_until
from embedding_models import expected_embedding
from http_clients import LONG, ask, endless_streams, metric
from served_model import ServedModel, serve_fails, served
from text_model import TEXTS

openai = pytest.importorskip("openai")
np = pytest.importorskip("numpy")
QUESTION = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def several(text_model, tool_model, encoder_model):
    """Two language models with tokenizers of their own, and an encoder."""
    packages = (f"first={text_model.path}", f"tools={tool_model.path}", encoder_model.path)
    with served(*packages, ranks=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(several):
    with openai.OpenAI(base_url=f"{several.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def answer_of(server: ServedModel, path: str, body: dict) -> dict:
    status, _, text = ask(server, path, body)
    assert status == 200, text
    return json.loads(text)


def states(server: ServedModel) -> tuple[int, dict[str, str]]:
    status, _, text = ask(server, "/ready")
    return status, json.loads(text)["models"]


# Requests


def test_each_request_is_answered_by_the_model_that_it_names(client, text_model, tool_model, encoder_model):
    for name, model in {"first": text_model, "tools": tool_model}.items():
        made = client.chat.completions.create(model=name, messages=QUESTION, temperature=0, max_tokens=20)
        assert made.choices[0].message.content == model.continued(QUESTION, 20)
        assert made.model == name
        response = client.responses.create(model=name, input="Hello", temperature=0, max_output_tokens=20)
        assert (response.output_text, response.model) == (model.continued(QUESTION, 20), name)
        text = client.completions.create(model=name, prompt="The", temperature=0, max_tokens=5)
        assert (text.choices[0].text, text.model) == (model.continued("The", 5), name)
    made = client.embeddings.create(model="encoder", input=TEXTS[0])
    ids = text_model.tokenizer(TEXTS[0]).input_ids
    wanted = expected_embedding(encoder_model.model, ids, "mean", normalize=True)
    np.testing.assert_allclose(made.data[0].embedding, wanted, atol=1e-4)
    assert made.model == "encoder"


def test_a_request_without_a_model_is_answered_by_the_first_one(several, text_model):
    made = answer_of(several, "/v1/completions", {"prompt": "The quick", "max_tokens": 9, "temperature": 0})
    assert (made["model"], made["choices"][0]["text"]) == ("first", text_model.continued("The quick", 9))
    made = answer_of(several, "/v1/responses", {"input": "Hello", "max_output_tokens": 1})
    assert made["model"] == "first"
    status, _, text = ask(several, "/v1/embeddings", {"input": "One"})
    assert (status, json.loads(text)["error"]["param"]) == (400, "model")


def test_an_unknown_model_is_a_404_that_names_the_models(several):
    for path, body in {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": QUESTION},
        "/v1/embeddings": {"input": "x"},
        "/v1/responses": {"input": "x"},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }.items():
        status, _, text = ask(several, path, body | {"model": "second"})
        error = json.loads(text)["error"]
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == 'there is no model "second"; this server has "first", "tools", "encoder"'
    assert ask(several, "/v1/models/second")[0] == 404


def test_all_models_are_listed_with_what_they_do(several, client):
    assert [model.id for model in client.models.list().data] == ["first", "tools", "encoder"]
    capabilities = {model.id: model.capabilities for model in client.models.list().data}
    assert capabilities == {"first": ["completion"], "tools": ["completion"], "encoder": ["embedding"]}
    assert client.models.retrieve("encoder").id == "encoder"
    description = answer_of(several, "/openapi.json", None)
    for body in ("ChatRequest", "CompletionRequest", "EmbeddingsRequest", "ResponsesRequest", "TokenizeRequest"):
        model = description["components"]["schemas"][body]["properties"]["model"]
        assert (model["enum"], model["default"]) == (["first", "tools", "encoder"], "first")


def test_texts_and_tokens_are_those_of_the_named_model(several, text_model, tool_model):
    ids = {}
    for name, model in {"first": text_model, "tools": tool_model}.items():
        ids[name] = answer_of(several, "/tokenize", {"model": name, "prompt": TEXTS[0]})["tokens"]
        assert ids[name] == model.tokenizer(TEXTS[0]).input_ids
        text = answer_of(several, "/detokenize", {"model": name, "tokens": ids[name]})["prompt"]
        assert text == f"<s>{TEXTS[0]}"
    assert ids["first"] != ids["tools"]


def test_metrics_and_the_log_name_the_model(several):
    def count(name: str) -> float:
        return metric(several, "accord_generated_tokens_total", name)

    before = {name: count(name) for name in ("first", "tools")}
    lines = len(several.events("request"))
    body = {"model": "tools", "prompt": "The", "max_tokens": 7, "ignore_eos": True}
    assert answer_of(several, "/v1/completions", body)["usage"]["completion_tokens"] == 7
    assert {name: count(name) - before[name] for name in before} == {"first": 0, "tools": 7}
    assert [metric(several, "accord_ready", name) for name in several.names] == [1, 1, 1]
    line = wait_until(lambda: several.events("request")[lines:], "the request is logged")[0]
    assert line["model"] == "tools"
    assert {line["model"] for line in several.events("ready")} == set(several.names) == {"first", "tools", "encoder"}


# Ranks that die or stand still


@pytest.fixture(scope="module")
def pair(endless, text_model):
    """A model whose answers are long, and another one."""
    with served(endless, text_model.path, "--cache-tokens", 16384, "--stall-seconds", 3, ranks=2) as running:
        yield running


def read_stream(server: ServedModel, text: list[str]) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        options = {"prompt": "One", "max_tokens": 1000, "temperature": 1.5, "seed": 7, "stream": True}
        text.extend(event.choices[0].text for event in client.completions.create(model="endless", **options))


@contextlib.contextmanager
def undisturbed(server: ServedModel, package):
    """Checks that streams of "endless", one after another while the block runs, get the tokens of a run in which
    nothing happens, from the same ranks."""
    expected: list[str] = []
    read_stream(server, expected)
    processes = server.rank_processes(package)
    texts: list[list[str]] = [[]]
    ended = threading.Event()

    def read_streams() -> None:
        read_stream(server, texts[-1])
        while not ended.is_set():
            texts.append([])
            read_stream(server, texts[-1])

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read_streams)
        try:
            wait_until(lambda: len(texts[0]) > 3 or reader.done(), "the first stream has begun")
            yield
        finally:
            ended.set()
        reader.result(120)
    assert {"".join(text) for text in texts} == {"".join(expected)}
    assert server.rank_processes(package) == processes


def test_the_death_of_a_rank_does_not_disturb_the_other_model(pair, endless, text_model):
    starts = len(pair.events("ready"))
    with undisturbed(pair, endless):
        os.kill(pair.rank_process(1, text_model.path), signal.SIGKILL)
        body = {"model": "model", "prompt": "The quick", "max_tokens": 9, "temperature": 0}
        made = answer_of(pair, "/v1/completions", body)
        assert made["choices"][0]["text"] == text_model.continued("The quick", 9)
    assert [line["model"] for line in pair.events("ready")[starts:]] == ["model"]
    assert pair.events("ranks_ended")[-1]["model"] == "model"
    assert metric(pair, "accord_restarts_total", "endless") == 0


def test_ranks_that_stand_still_do_not_disturb_the_other_model(pair, endless, text_model):
    starts = len(pair.events("ready"))
    with undisturbed(pair, endless):
        os.kill(pair.rank_process(0, text_model.path), signal.SIGSTOP)
        pair.wait_ready(starts + 1)
    assert [line["model"] for line in pair.events("ready")[starts:]] == ["model"]
    assert "no progress for 3 s" in pair.events("ranks_ended")[-1]["reason"]


def test_a_model_answers_while_the_other_is_not_ready(pair, endless, text_model):
    assert states(pair) == (200, {"endless": "ready", "model": "ready"})
    starts = len(pair.events("ready"))
    before = pair.rank_processes(text_model.path)
    os.kill(before[0], signal.SIGKILL)
    started = wait_until(lambda: set(pair.rank_processes(text_model.path).values()) - set(before.values()), "a start")
    for process in started:  # which load the model
        os.kill(process, signal.SIGSTOP)
    assert states(pair) == (503, {"endless": "ready", "model": "restarting"})
    body = {"model": "endless", "prompt": "One", "max_tokens": 5}
    assert answer_of(pair, "/v1/completions", body)["usage"]["completion_tokens"] == 5
    assert metric(pair, "accord_ready", "model") == 0
    for process in started:
        os.kill(process, signal.SIGCONT)
    pair.wait_ready(starts + 1)
    assert states(pair)[0] == 200


# Limits, start and end


def test_limits_are_those_of_each_model(endless, text_model):
    with served(endless, text_model.path, "--max-requests", 2) as server:
        streams = endless_streams(server, 2)
        body = {"prompt": "One", "max_tokens": 2}
        assert ask(server, "/v1/completions", body)[0] == 429
        assert ask(server, "/v1/completions", body | {"model": "model"})[0] == 200
        for stream in streams:
            stream.close()


def test_requests_of_all_models_are_finished_after_sigterm(endless, text_model):
    with served(endless, f"other={endless}", text_model.path, ranks=2) as server:
        ranks = [process for name in (endless, text_model.path) for process in server.rank_processes(name).values()]
        answers = {"endless": [], "other": []}

        def read(name: str) -> None:
            made = ask(server, "/v1/completions", LONG | {"model": name, "max_tokens": 700})[2]
            answers[name] = [json.loads(line[6:]) for line in made.splitlines() if line.startswith("data: {")]

        readers = [threading.Thread(target=read, args=(name,)) for name in answers]
        for reader in readers:
            reader.start()
        for name in answers:
            wait_until(lambda name=name: metric(server, "accord_generated_tokens_total", name) > 0, "tokens")
        server.process.terminate()
        wait_until(lambda: not server.accepts(), "the server refuses connections")
        for reader in readers:
            reader.join(60)
        assert [events[-1]["choices"][0]["finish_reason"] for events in answers.values()] == ["length", "length"]
        assert server.process.wait(30) == 0
        assert not any(is_running(process) for process in ranks)


def test_a_package_that_cannot_be_served_ends_the_server_and_is_named(text_model, encoder_model, tmp_path):
    broken = tmp_path / "broken.accord"
    shutil.copytree(encoder_model.path, broken)
    weights = next(broken.glob("weights-*.safetensors"))
    os.truncate(weights, weights.stat().st_size // 2)
    assert f"{broken}: " in serve_fails(text_model.path, broken, "--port", 0, "--ranks", 2)
    (broken / "tokenizer.json").unlink()
    assert str(broken) in serve_fails(text_model.path, broken, "--port", 0)
    assert "absent.accord" in serve_fails(text_model.path, tmp_path / "absent.accord", "--port", 0)


def test_names_of_models_are_clear(text_model, encoder_model, tmp_path):
    package = text_model.path
    (tmp_path / "a=b.accord").symlink_to(package)
    same = serve_fails(package, f"model={encoder_model.path}", code=2)
    assert same.endswith(
        f'{package} and {encoder_model.path} have the same name, "model"; give one of them as NAME=PATH'
    )
    assert "--model-name is for a single model" in serve_fails(package, encoder_model.path, "--model-name", "x", code=2)
    assert "two names" in serve_fails(f"y={package}", "--model-name", "x", code=2)
    for word in (f"={package}", "name="):
        assert f"{word}: expected PATH or NAME=PATH" in serve_fails(word, code=2)
    with served(tmp_path / "a=b.accord") as server:
        assert server.names == ["model"]  # the package's name, not that of the link
    with served(f"org/name={package}") as server:
        assert server.names == ["org/name"]
        assert answer_of(server, "/v1/models/org/name", None)["id"] == "org/name"
