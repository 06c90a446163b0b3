"""Embeddings of decoders: the vector of the last token, as transformers computes it for each text alone."""

import json
from pathlib import Path

import pytest
from embedding_models import SIZE, expected_embedding, write_card
from http_clients import ask
from served_model import served
from text_model import TEXTS, torch, transformers

import accord

np = pytest.importorskip("numpy")
TOLERANCE = 1e-4
TEXTS_OF_ALL_LENGTHS = [*TEXTS, "One", "The quick brown fox jumps over the lazy dog. " * 4, "日本"]


def make_decoder(kind: str, vocabulary: int) -> torch.nn.Module:
    """Returns a random decoder: of Qwen3-Embedding's kind, of gte-Qwen2's, or of e5-mistral's."""
    torch.manual_seed(5)
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": SIZE,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
    }
    if kind == "qwen3":
        return transformers.Qwen3Model(transformers.Qwen3Config(**sizes, head_dim=16)).eval()
    if kind == "qwen2":
        return transformers.Qwen2Model(transformers.Qwen2Config(**sizes)).eval()
    return transformers.MistralModel(transformers.MistralConfig(**sizes, sliding_window=8)).eval()


KINDS = ("qwen3", "qwen2", "mistral")
CARD = {"word_embedding_dimension": SIZE, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


@pytest.fixture(scope="module")
def decoders(text_model) -> dict[str, torch.nn.Module]:
    return {kind: make_decoder(kind, len(text_model.tokenizer)) for kind in KINDS}


@pytest.fixture(scope="module")
def packages(text_model, decoders, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("decoders")
    kinds = ("Transformer", "Pooling", "Normalize")
    card = write_card(folder / "card", text_model.path.parent / "tokenizer.json", CARD, kinds=kinds)
    return {
        kind: accord.export_encoder(model, path=folder / f"{kind}.accord", tokenizer=card)
        for kind, model in decoders.items()
    }


def padded(texts: list[list[int]]) -> np.ndarray:
    """Returns tokens and mask [2, batch, length], padded on the right."""
    tokens = np.zeros((2, len(texts), max(map(len, texts))), np.int64)
    for row, ids in enumerate(texts):
        tokens[0, row, : len(ids)], tokens[1, row, : len(ids)] = ids, 1
    return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_mixed_lengths_matches_transformers(text_model, decoders, packages, kind):
    texts = [text_model.tokenizer(text).input_ids for text in TEXTS_OF_ALL_LENGTHS]
    assert len({len(ids) for ids in texts}) > 4
    ids, mask = padded(texts)
    (made,) = accord.load(packages[kind]).run(input_ids=ids, attention_mask=mask)
    for row, one in enumerate(texts):
        wanted = expected_embedding(decoders[kind], one, "last", normalize=True)
        np.testing.assert_allclose(np.asarray(made)[row], wanted, atol=TOLERANCE)


def test_two_ranks_serve_the_embeddings(text_model, decoders, packages):
    with served(*packages.values(), ranks=2) as server:
        for kind in KINDS:
            assert accord.inspect(packages[kind])["groups"], "the package is not divided"
            status, _, text = ask(server, "/v1/embeddings", {"model": kind, "input": TEXTS_OF_ALL_LENGTHS})
            assert status == 200, text
            for one, source in zip(json.loads(text)["data"], TEXTS_OF_ALL_LENGTHS, strict=True):
                ids = text_model.tokenizer(source).input_ids
                wanted = expected_embedding(decoders[kind], ids, "last", normalize=True)
                np.testing.assert_allclose(one["embedding"], wanted, atol=TOLERANCE)


def test_a_causal_language_model_is_exported_without_its_head(text_model, tmp_path):
    torch.manual_seed(5)
    config = make_decoder("qwen3", len(text_model.tokenizer)).config
    model = transformers.Qwen3ForCausalLM(config).eval()
    options = {"tokenizer": text_model.path.parent, "pooling": "last", "normalize": False}
    path = accord.export_encoder(model, path=tmp_path / "x.accord", **options)
    ids = text_model.tokenizer(TEXTS[0]).input_ids
    tokens, mask = padded([ids])
    (made,) = accord.load(path).run(input_ids=tokens, attention_mask=mask)
    wanted = expected_embedding(model.model, ids, "last", normalize=False)
    np.testing.assert_allclose(np.asarray(made)[0], wanted, atol=TOLERANCE * np.abs(wanted).max())


def test_a_model_with_another_head_is_named(text_model, tmp_path):
    config = transformers.BertConfig(
        vocab_size=len(text_model.tokenizer),
        hidden_size=SIZE,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    with pytest.raises(accord.ExportError, match="BertForSequenceClassification returns no last_hidden_state"):
        accord.export_encoder(
            model, path=tmp_path / "x.accord", tokenizer=text_model.path.parent, pooling="cls", normalize=False
        )


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


@pytest.mark.parametrize(
    ("post_processor", "begins"),
    [
        pytest.param(None, False, marks=pytest.mark.slow),
        pytest.param(BYTES, False, marks=pytest.mark.slow),
        pytest.param(TEMPLATE, True, marks=pytest.mark.slow),
        ({"type": "Sequence", "processors": [BYTES, TEMPLATE]}, True),
    ],
    ids=["none", "bytes", "template", "sequence"],
)
def test_texts_end_with_the_token_that_the_models_tokenizer_adds(
    text_model, decoders, tmp_path, post_processor, begins
):
    """Also in a file that transformers wrote after it has read `add_eos_token`: then the token is not added again."""
    document = json.loads((text_model.path.parent / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(document | {"post_processor": post_processor}))
    config = {"add_eos_token": True, "eos_token": {"content": "<|im_end|>"}, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    wanted = text_model.tokenizer("The quick", add_special_tokens=False).input_ids
    wanted = [*([0] if begins else []), *wanted, text_model.tokenizer.eos_token_id]
    for turn in range(2):
        path = tmp_path / f"{turn}.accord"
        accord.export_encoder(decoders["qwen2"], path=path, tokenizer=tmp_path, pooling="last", normalize=True)
        assert accord.Tokenizer.load(path / "tokenizer.json").encode("The quick", whole=True) == wanted
        assert transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(path / "tokenizer.json")
        )("The quick").input_ids == wanted  # fmt: skip
        (tmp_path / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes())
    path = tmp_path / "mean.accord"
    accord.export_encoder(decoders["qwen2"], path=path, tokenizer=tmp_path, pooling="mean", normalize=True)
