"""Encoder-decoder models answer as transformers does: in batches, on several ranks, with preempted requests."""

import json
import shutil

import numpy as np
import pytest
from tiers import mostly_slow

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from sequence_models import END, START, VOCABULARY, greedy_answer, sequence_model, sources  # noqa: E402
from served_requests import answers, exporter_of_families, served  # noqa: E402
from thread_ranks import on_threads  # noqa: E402

import accord  # noqa: E402

FAMILIES = ("bart", "marian", "t5", "flan_t5", "whisper", "mt5", "mbart", "pegasus", "blenderbot", "m2m_100")
TOKENS = 20


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A function that returns a family's model and package, exported on first use."""
    return exporter_of_families(tmp_path_factory.mktemp("families"), sequence_model)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", mostly_slow(FAMILIES, "bart", "marian", "t5", "flan_t5", "whisper"))
def test_answers_equal_those_of_transformers(name, ranks, family):
    model, path = family(name)
    given = sources(model)
    expected = [[greedy_answer(model, source, TOKENS)] for source in given]
    assert len({tuple(one) for (one,) in expected}) > 1  # they depend on their sources
    requests = [([], source, {"max_new_tokens": TOKENS}) for source in given]
    assert served(path, ranks, requests, max_rows=64) == expected


@pytest.mark.parametrize("name", ["bart", "t5", "whisper"])
def test_answers_equal_those_of_generate(name, family):
    model, path = family(name)
    (source,) = sources(model, (12,))
    whole = model.generate(torch.from_numpy(source)[None], max_new_tokens=TOKENS, do_sample=False, num_beams=1)
    options = {"max_new_tokens": TOKENS, "stop_tokens": [END]}
    ((found,),) = served(path, 1, [([], source, options)])
    assert found == whole[0].tolist()[-len(found) :]
    assert len(found) == TOKENS or found[-1] == END


def test_long_answers_read_biases_of_all_distances(family):
    model, path = family("t5")
    (source,) = sources(model, (300,))
    tokens = 2 * model.config.relative_attention_max_distance
    expected = greedy_answer(model, source, tokens)
    assert served(path, 1, [([], source, {"max_new_tokens": tokens})]) == [[expected]]


def test_preempted_requests_read_their_sources_again(family):
    model, path = family("bart")
    given = sources(model, (40, 50, 45, 60))
    prompts = [[START, 10 + number] for number in range(len(given))]
    expected = [
        [greedy_answer(model, source, 60, tuple(prompt))] for source, prompt in zip(given, prompts, strict=True)
    ]
    requests = [
        (prompt, source, {"max_new_tokens": 60, "priority": number})
        for number, (prompt, source) in enumerate(zip(prompts, given, strict=True))
    ]
    # 14 blocks of 16: at most two of the requests fit.
    assert served(path, 1, requests, cache_tokens=14 * 16) == expected


def test_equal_prompts_of_different_sources_share_nothing(family):
    model, path = family("bart")
    given, prompt = sources(model, (20, 20)), [START, *range(40, 80)]
    expected = [[greedy_answer(model, source, 8, tuple(prompt))] for source in given]
    requests = [(prompt, source, {"max_new_tokens": 8}) for source in given]

    def run(comm):
        with accord.load(path, {"tp": comm}) as engine:
            served_model = accord.LanguageModel.create(engine)
            return [answers(served_model, [request])[0] for request in requests]

    (found,) = on_threads(1, run)
    assert found == expected


def test_samples_share_a_source(family):
    model, path = family("marian")
    (source,) = sources(model, (30,))
    expected = greedy_answer(model, source, 8)
    assert served(path, 1, [([], source, {"max_new_tokens": 8, "samples": 3})]) == [[expected] * 3]


@pytest.mark.parametrize(("options", "load"), [({"cache_dtype": "bfloat16"}, {}), ({}, {"canonical_ranks": 2})])
def test_other_caches_and_canonical_ranks(options, load, family):
    model, path = family("t5")
    given = sources(model, (9, 40))
    requests = [([], source, {"max_new_tokens": 6}) for source in given]
    found = served(path, 2, requests, load=load, **options)
    if load:
        assert found == [[greedy_answer(model, source, 6)] for source in given]
        assert found == served(path, 1, requests, load=load)
    else:
        assert [len(one) for (one,) in found] == [6, 6]


def test_shared_tables_are_stored_once(family):
    model, path = family("t5")
    manifest = json.loads((path / "manifest.json").read_text())
    elements = sum(int(np.prod(tensor["shape"])) for tensor in manifest["tensors"] if tensor["dtype"] == "float32")
    assert elements == sum(parameter.numel() for parameter in model.parameters())
    assert [file["name"] for file in manifest["files"]][:2] == ["graph.json", "encoder.json"]
    assert accord.verify(path) == []


def test_damage_to_the_encoder_is_found(family, tmp_path):
    _, path = family("bart")
    damaged = shutil.copytree(path, tmp_path / "damaged.accord")
    text = (damaged / "encoder.json").read_text()
    (damaged / "encoder.json").write_text(text.replace('"layer": 0', '"layer": 7'))
    assert [damage.file for damage in accord.verify(damaged)] == ["encoder.json"]
    with pytest.raises(accord.Corrupt, match=r"encoder\.json: the graph .* is damaged"):
        accord.load(damaged)


def test_quantized_weights(family, tmp_path):
    model, _ = family("bart")
    path = accord.export(model, path=tmp_path / "int8.accord", sharding="auto", weights="int8")
    (source,) = sources(model, (20,))
    assert [len(one) for (one,) in served(path, 2, [([], source, {"max_new_tokens": 5})])] == [5]


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("bart", None, 'the request has no source, but the model has an encoder, which takes "input_ids"'),
        ("bart", [], 'the source of the request: input "input_ids"'),
        ("bart", [5] * 161, 'the source of the request: input "input_ids"'),
        ("bart", [5, VOCABULARY], f'"input_ids" has the id {VOCABULARY}, which is outside'),
        ("bart", [5, -1], '"input_ids" has the id -1'),
        ("bart", np.zeros(4, np.float32), 'the source of the request: input "input_ids"'),
        ("bart", [np.zeros(4, np.int64), np.zeros(4, np.int64)], "the source of the request: "),
        ("whisper", [5, 6], 'the source of the request: input "input_features"'),
        ("whisper", np.zeros((8, 73), np.float32), 'the source of the request: input "input_features"'),
        ("whisper", np.zeros((1, 8, 74), np.float32), 'the source of the request: input "input_features"'),
    ],
)
def test_wrong_sources_are_rejected(name, source, message, family):
    _, path = family(name)
    with accord.load(path) as engine:
        model = accord.LanguageModel.create(engine)
        with pytest.raises(accord.InvalidArgument) as error:
            model.submit([], source=source)
        assert message in str(error.value)
        model.stop()


def test_models_without_an_encoder_reject_a_source(tmp_path):
    from small_models import small_model

    path = accord.export(small_model("llama"), path=tmp_path / "model.accord")
    with accord.load(path) as engine:
        model = accord.LanguageModel.create(engine)
        assert not model.has_encoder
        with pytest.raises(accord.InvalidArgument, match="the model has no encoder"):
            model.submit([1, 2], source=[1, 2])
        model.stop()


def test_a_source_that_does_not_fit_the_cache_is_rejected(family):
    _, path = family("bart")
    with accord.load(path) as engine:
        model = accord.LanguageModel.create(engine, cache_tokens=64)
        with pytest.raises(accord.ResourceExhausted, match="a source of 60 rows can never fit into the cache"):
            model.submit([], source=[5] * 60, max_new_tokens=20)
        assert model.max_source == 160
        assert model.start_tokens == [START]
        model.stop()


@pytest.mark.parametrize("group", ["cp", "pp"])
def test_groups_that_cannot_divide_an_encoder_are_rejected(group, family):
    _, path = family("bart")

    def run(comm):
        with pytest.raises(accord.Unsupported, match=f'group "{group}" divides a model with an encoder'):
            accord.load(path, {group: comm})

    on_threads(2, run)


def test_new_weights_reach_encoder_and_decoder(family, tmp_path):
    model, path = family("marian")
    other = sequence_model("marian", seed=1)
    newer = accord.export(other, path=tmp_path / "newer.accord", sharding="auto")
    (source,) = sources(model, (25,))
    request = ([], source, {"max_new_tokens": 8})
    with accord.load(path) as engine:
        served_model = accord.LanguageModel.create(engine)
        assert answers(served_model, [request]) == [[greedy_answer(model, source, 8)]]
        for weights, wanted in ((newer, other), (model.state_dict(), model)):
            engine.load_weights(weights)
            assert answers(served_model, [request]) == [[greedy_answer(wanted, source, 8)]]
        served_model.stop()


def test_encoders_whose_attention_has_more_options_are_refused(tmp_path, monkeypatch):
    from transformers.models.bart.modeling_bart import BartEncoderLayer

    original = BartEncoderLayer.forward
    monkeypatch.setattr(
        BartEncoderLayer, "forward", lambda self, *given, **more: original(self, *given, sliding_window=5, **more)
    )
    with pytest.raises(
        accord.ExportError, match="BartAttention: attention of an encoder, or to its source, takes sliding_window"
    ):
        accord.export(sequence_model("bart"), path=tmp_path / "model.accord")


def test_an_encoder_that_changes_its_numbers_is_refused(tmp_path, monkeypatch):
    """The check before a package is written compares the encoder with the model."""
    from accord.exporter import encoder_decoder

    original = encoder_decoder.attend_to_all_rows
    monkeypatch.setattr(encoder_decoder, "attend_to_all_rows", lambda *given: original(*given) * 1.01)
    with pytest.raises(accord.ExportError, match="the exported encoder gives other keys of decoder layer 0"):
        accord.export(sequence_model("bart"), path=tmp_path / "model.accord")
