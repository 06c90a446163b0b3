"""Each adapter of a package is a model of the server; its answers are those of PEFT, also after a rank has died."""

import copy
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from http_clients import metric
from served_model import serve_fails, served
from text_model import TEXTS

openai = pytest.importorskip("openai")
pytest.importorskip("peft")

from adapter_models import ADAPTERS, adapted, greedy_answer, save_adapter  # noqa: E402

import accord  # noqa: E402

NAMES = ("attention", "all")
TOKENS = 20


@pytest.fixture(scope="module")
def folders(text_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    make = lambda: copy.deepcopy(text_model.model)  # noqa: E731
    return {name: save_adapter(make, root / name, seed, **ADAPTERS[name]) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def package(text_model, folders, tmp_path_factory):
    return accord.export_adapters(text_model.path, folders, path=tmp_path_factory.mktemp("package") / "base.accord")


@pytest.fixture(scope="module")
def server(package):
    with served(package, ranks=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def expected(text_model, folders):
    """The answer to each text by each model."""
    models = {name: adapted(copy.deepcopy(text_model.model), folder) for name, folder in folders.items()}
    models["base"] = text_model.model
    answers = {}
    for name, model in models.items():
        for text in TEXTS:
            tokens = greedy_answer(model, text_model.tokenizer(text).input_ids, TOKENS)
            if 2 in tokens:  # which ends a text
                tokens = tokens[: tokens.index(2)]
            answers[name, text] = text_model.tokenizer.decode(tokens, skip_special_tokens=True)
    assert len(set(answers.values())) > 2 * len(TEXTS)
    return answers


def test_adapters_are_listed_as_models(server, client):
    found = {model.id: model.model_dump().get("parent") for model in client.models.list()}
    assert found == {"base": None, "attention": "base", "all": "base"}
    assert client.models.retrieve("all").id == "all"
    assert server.names == ["base"]


def test_models_and_adapters_answer_at_the_same_time(client, expected):
    def answer(case):
        name, text = case
        return client.completions.create(model=name, prompt=text, max_tokens=TOKENS, temperature=0)

    with ThreadPoolExecutor(len(expected)) as pool:
        made = dict(zip(expected, pool.map(answer, expected), strict=True))
    assert {case: one.choices[0].text for case, one in made.items()} == expected
    assert all(one.model == name for (name, _), one in made.items())


def test_chats_and_responses_take_adapters(client, text_model, folders):
    question = [{"role": "user", "content": TEXTS[0]}]
    prompt = text_model.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    ids = text_model.tokenizer(prompt, add_special_tokens=False).input_ids
    tokens = greedy_answer(adapted(copy.deepcopy(text_model.model), folders["all"]), ids, 8)
    wanted = text_model.tokenizer.decode(tokens[: tokens.index(2)] if 2 in tokens else tokens, skip_special_tokens=True)
    made = client.chat.completions.create(model="all", messages=question, max_tokens=8, temperature=0)
    assert (made.model, made.choices[0].message.content) == ("all", wanted)
    response = client.responses.create(model="all", input=TEXTS[0], max_output_tokens=8, temperature=0)
    assert (response.model, response.output_text) == ("all", wanted)


def test_an_answer_goes_on_with_its_adapter_after_a_rank_has_died(endless, text_model, tmp_path):
    folder = save_adapter(lambda: copy.deepcopy(text_model.model), tmp_path / "mlp", 9, **ADAPTERS["patterns"])
    package = accord.export_adapters(endless, {"mlp": folder}, path=tmp_path / "endless.accord")
    options = {"model": "mlp", "prompt": "One", "max_tokens": 2000, "temperature": 1.5, "seed": 7}
    with (
        served(package, ranks=2) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        whole = client.completions.create(**options).choices[0].text
        text = ""
        for number, event in enumerate(client.completions.create(**options, stream=True)):
            text += event.choices[0].text
            if number == 0:
                os.kill(server.rank_process(1), signal.SIGKILL)
        assert text == whole
        assert metric(server, "accord_resumed_requests_total") == 1
        assert client.completions.create(**options | {"model": "endless"}).choices[0].text != whole


def test_names_must_differ(package, text_model):
    line = serve_fails(package, f"all={text_model.path}")
    assert 'there are two models with the name "all"' in line
