"""Ranks that divide the tokens of each sequence (group "cp") answer as one rank does, and keep their part of the
cache."""

import numpy as np
import pytest
from tiers import mostly_slow

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from served_answers import answers, greedy  # noqa: E402
from small_models import small_model  # noqa: E402
from thread_ranks import on_threads  # noqa: E402

import accord  # noqa: E402

# Grouped queries; a window and a cap; sinks; biases by distance; a window; values in keys; chunks.
TYPES = ("llama", "gemma2", "gpt_oss", "bloom", "mistral", "deepseek_v3", "llama4_text")


def prompts():
    """Within the first part of a block, over several blocks, and one that begins as another one does."""
    made = [np.random.default_rng(length).integers(3, 300, length).tolist() for length in (5, 40, 150)]
    return [*made, [*made[-1][:96], 7, 8, 9]]


def groups_of(comm, tp):
    """Neighbors form "tp"; ranks with the same place there form "cp"."""
    return {"tp": comm.split(comm.rank // tp, comm.rank), "cp": comm.split(comm.rank % tp, comm.rank)}


@pytest.mark.parametrize(("tp", "cp"), [(1, 2), (2, 2), (1, 4)])
@pytest.mark.parametrize("model_type", mostly_slow(TYPES, "llama", "gpt_oss", "deepseek_v3"))
def test_answers_equal_those_of_transformers(model_type, tp, cp, tmp_path):
    model = small_model(model_type)
    path = accord.export(model, path=tmp_path / "model.accord", sharding="auto")
    expected = [[greedy(model, prompt)] * 2 for prompt in prompts()]

    def run(comm):
        with accord.load(path, groups_of(comm, tp)) as engine:
            # 7 blocks of 64 tokens: some sequences wait, or lose their blocks and are computed again.
            made = accord.LanguageModel.create(
                engine, block_tokens=64, cache_tokens=7 * 64, max_sequences=8, max_rows=100, all_ranks=comm
            )
            if comm.rank != 0:
                return made.follow()
            found = [answers(made, prompts()) for _ in range(2)]  # the second time, the prompts' blocks are there
            made.stop()
            return found

    for found in on_threads(tp * cp, run)[0]:
        assert found == expected


def run_of(path, ranks, tokens, wanted, **options):
    """Returns the logits of `wanted` rows on each rank."""
    ids = np.random.default_rng(tokens).integers(3, 300, tokens)

    def run(comm):
        with accord.load(path, {"cp": comm}, **options) as engine:
            return np.array(engine.run(ids, np.arange(tokens), np.array(wanted))[0])

    return ids, on_threads(ranks, run)


@torch.no_grad()
def test_every_rank_gets_the_logits_of_all_wanted_rows(tmp_path):
    model = small_model("llama")
    path = accord.export(model, path=tmp_path / "model.accord")
    for tokens, wanted in ((1, [0]), (33, [32, 0, 16, 15]), (200, [17, 199, 3, 3])):
        for ranks in (2, 3):
            ids, found = run_of(path, ranks, tokens, wanted)
            expected = model(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()[wanted]
            for logits in found:
                np.testing.assert_allclose(logits, expected, atol=1e-5)
                np.testing.assert_array_equal(logits, found[0])


@pytest.mark.parametrize("model_type", ["llama", "gpt_oss"])
def test_canonical_logits_are_equal_in_bits_on_any_number_of_ranks(model_type, tmp_path):
    path = accord.export(small_model(model_type), path=tmp_path / "model.accord")
    found = [run_of(path, ranks, 200, range(0, 200, 7), canonical_ranks=4)[1] for ranks in (1, 2, 4)]
    for logits in found:
        for of_rank in logits:
            np.testing.assert_array_equal(of_rank, found[0][0])


def test_each_rank_keeps_its_part_of_the_cache(tmp_path):
    path = accord.export(small_model("llama"), path=tmp_path / "model.accord")

    def cache_bytes(comm):
        with accord.load(path, {"cp": comm}) as engine:
            made = accord.LanguageModel.create(engine, cache_tokens=192)
            bytes_of_rank = made.cache_bytes
            made.stop() if comm.rank == 0 else made.follow()
            return bytes_of_rank

    whole = on_threads(1, cache_bytes)[0]
    for ranks in (2, 4):
        assert on_threads(ranks, cache_bytes) == [whole // ranks] * ranks


def test_what_cannot_be_divided_is_refused(tmp_path):
    path = accord.export(small_model("llama"), path=tmp_path / "llama.accord")
    recurrent = accord.export(small_model("mamba"), path=tmp_path / "mamba.accord")
    layer = accord.export(torch.nn.Linear(8, 8).eval(), (torch.zeros(2, 8),), path=tmp_path / "linear.accord")

    def refused(package, error, text, **options):
        def load(comm):
            with pytest.raises(error, match=text), accord.load(package, {"cp": comm}, **options) as engine:
                accord.LanguageModel.create(engine, block_tokens=48)

        on_threads(2, load)

    refused(recurrent, accord.Unsupported, "this model has recurrent layers")
    refused(layer, accord.Unsupported, "this package is not a language model")
    refused(path, accord.InvalidArgument, "has 2 ranks, which does not divide canonical_ranks = 1", canonical_ranks=1)
    refused(path, accord.InvalidArgument, "holds 48 tokens, which is not a multiple of 32")

    def wrong_row(comm):
        with accord.load(path, {"cp": comm}) as engine:
            with pytest.raises(accord.InvalidArgument, match="logits of row 3 are wanted, but the run has 3 rows"):
                engine.run(np.arange(3), np.arange(3), np.array([3]))
            return engine.run(np.arange(3), np.arange(3), np.array([2]))[0].shape

    assert on_threads(2, wrong_row) == [(1, 320)] * 2
