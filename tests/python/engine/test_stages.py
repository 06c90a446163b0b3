"""Packages loaded as pipelines: the ranks of group "pp" run stages of layers, with and without tensor parallelism."""

import numpy as np
import pytest
from accord_command import SUPPORT
from language_runs import PROMPTS, VOCABULARY, make_ids
from small_llama import make_small_llama

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS = 4


def make_model():
    return make_small_llama(
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        eos_token_id=None,
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> str:
    return str(accord.export(make_model(), path=tmp_path_factory.mktemp("llama") / "m.accord", sharding="auto"))


class TwoOutputs(torch.nn.Module):
    """Returns its first layer's output as well, and reads its input in every layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(5))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = torch.sigmoid(gate)  # depends on an input only, so every stage computes it
        first = y = torch.relu(self.layers[0](x))
        for layer in self.layers[1:]:
            y = torch.tanh(layer(y)) * scale + x
        return y, first


def run_stages(comm, path, inputs, tensor_ranks):
    tp = comm.split(comm.rank // tensor_ranks, name="tp")
    pp = comm.split(comm.rank % tensor_ranks, name="pp")
    groups = {"pp": pp} | ({"tp": tp} if tensor_ranks > 1 else {})
    with accord.load(path, groups) as engine:
        report = engine.load_report
        outputs = [np.array(output) for output in engine.run(*inputs)]
        return outputs, report.shard_bytes + report.replicated_bytes


@pytest.mark.parametrize(("stages", "tensor_ranks"), [(2, 1), (4, 1), (2, 2)])
def test_stages_match_pytorch_on_every_rank(stages, tensor_ranks, ranks, llama):
    ids, at = make_ids(40), np.arange(40)
    results = ranks(stages * tensor_ranks).run(run_stages, llama, [ids, at, at], tensor_ranks)
    with torch.no_grad():
        right = make_model()(torch.from_numpy(ids)[None]).logits[0]
    for (logits,), _ in results:
        torch.testing.assert_close(torch.from_numpy(logits), right, rtol=1e-4, atol=2e-6)
        assert logits.tobytes() == results[0][0][0].tobytes()
    with accord.load(llama) as alone:
        whole = alone.load_report.shard_bytes + alone.load_report.replicated_bytes
    held = [bytes for _, bytes in results]
    norms = tensor_ranks * (2 * LAYERS + 1) * 64 * 4  # every rank of a stage has them
    assert whole <= sum(held) <= whole + norms
    assert max(held) < 1.5 * whole / len(results)


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_outputs_of_any_stage_reach_every_rank(stages, ranks, tmp_path):
    model = TwoOutputs().eval()
    inputs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), torch.randn(8)
    path = accord.export(model, inputs, path=tmp_path / "m.accord")
    with torch.no_grad():
        right = model(*inputs)
    for outputs, _ in ranks(stages).run(run_stages, str(path), [each.numpy() for each in inputs], 1):
        for given, expected in zip(outputs, right, strict=True):
            torch.testing.assert_close(torch.from_numpy(given), expected)


def answer_in_stages(comm, tests, path):
    import sys

    sys.path.insert(0, tests)
    from language_runs import answers

    with accord.load(path, {"pp": comm}) as engine:
        model = accord.LanguageModel.create(engine, cache_tokens=600, max_sequences=3, max_rows=16)
        if comm.rank > 0:
            return model.follow()
        given = answers(model)
        model.stop()
        return given


def test_a_language_model_answers_in_stages(ranks, llama):
    given, follower = ranks(2).run(answer_in_stages, SUPPORT, llama)
    assert follower is None
    model = make_model()
    for prompt, answer in zip(PROMPTS, given, strict=True):
        ids = torch.tensor([prompt + answer])
        with torch.no_grad():
            best = model(ids).logits[0].argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == answer


def too_many_stages(comm, path):
    try:
        accord.load(path, {"pp": comm})
    except accord.InvalidArgument as error:
        return str(error)


def test_more_stages_than_layers_are_rejected(ranks, llama, tmp_path):
    for message in ranks(5).run(too_many_stages, llama):
        assert 'group "pp" has 5 ranks, but the model has 4 layers with a cache' in message
    path = accord.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), path=tmp_path / "m.accord")
    for message in ranks(2).run(too_many_stages, str(path)):
        assert "cannot be cut into as many stages" in message


def request_an_invalid_id(comm, path, inputs):
    with accord.load(path, {"pp": comm}) as engine:
        try:
            engine.run(*inputs)
        except accord.Error as error:
            return type(error).__name__, str(error)


def test_an_error_found_by_one_stage_ends_the_others(ranks, llama):
    at = np.arange(3)
    first, *others = ranks(3).run(request_an_invalid_id, llama, [np.array([1, VOCABULARY, 2]), at, at])
    assert first[0] == "InvalidArgument" and str(VOCABULARY) in first[1]
    for kind, message in others:
        assert kind == "Aborted" and str(VOCABULARY) in message


def die_in_a_stage(comm, path, inputs):
    import os
    import signal

    with accord.load(path, {"pp": comm}) as engine:
        engine.run(*inputs)
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            engine.run(*inputs)
        except accord.PeerLost as error:
            return list(error.ranks)


def test_a_stage_that_dies_is_named(ranks, llama):
    at = np.arange(9)
    outcomes = ranks(3).outcomes(die_in_a_stage, llama, [make_ids(9), at, at])
    assert [outcome.value for outcome in (outcomes[0], outcomes[2])] == [[1], [1]]
