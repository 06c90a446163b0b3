"""Layers of experts sharded expert by expert: over ranks that compute the same rows, and over replicas, which send
their rows to the experts."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from expert_models import FAMILIES, make_model, with_weights
from export_reference import changed_manifest, read_tensors
from language_checks import check_at_each_size
from tiers import mostly_slow

import accord

torch = pytest.importorskip("torch")

EXPERTS_OVER_TP = {"*.experts": accord.Expert(), "*": "auto"}
EXPERTS_OVER_DP = {"*.experts": accord.Expert("dp"), "*": "auto"}


class Logits(torch.nn.Module):
    """A causal language model over whole texts of one length."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = make_model(name).to(dtype)
        self.eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits.float()


def exported(path: Path, model: torch.nn.Module, sharding, **options) -> str:
    batch, length = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("length", min=2, max=64)
    shapes = ({0: batch, 1: length},)
    options |= {"sharding": sharding, "progress": lambda done, total: None}
    return str(accord.export(model, (texts(4, 8),), path=path, dynamic_shapes=shapes, **options))


def texts(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 320, (batch, length), generator=torch.Generator().manual_seed(100 * batch + length))


@pytest.mark.parametrize(("name", "weights"), [("mixtral", None), ("qwen2_moe", None), ("mixtral", "int8")])
def test_language_models_decode_equally_on_1_2_and_4_ranks(name, weights, ranks, tmp_path):
    model = make_model(name)
    path = str(accord.export(model, path=tmp_path / "m.accord", sharding=EXPERTS_OVER_TP, weights=weights))
    with torch.no_grad():
        check_at_each_size(ranks, [path], [model if weights is None else with_weights(model, read_tensors(Path(path)))])


@pytest.fixture(scope="module")
def over_dp(tmp_path_factory) -> str:
    return exported(tmp_path_factory.mktemp("experts") / "m.accord", Logits("mixtral"), EXPERTS_OVER_DP)


def run_batches(comm, path, given, tensor_ranks):
    tp = comm.split(comm.rank // tensor_ranks, name="tp")
    dp = comm.split(comm.rank % tensor_ranks, name="dp")
    with accord.load(path, {"tp": tp, "dp": dp}) as engine:
        outputs = [np.array(engine.run(ids)[0]) for ids in given]
        again = [np.array(engine.run(ids)[0]) for ids in given]
    assert all(np.array_equal(a, b) for a, b in zip(outputs, again, strict=True))
    return outputs


@pytest.mark.parametrize(("replicas", "tensor_ranks"), [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2)])
def test_replicas_share_the_experts_and_match_the_logits_of_torch(replicas, tensor_ranks, ranks, over_dp):
    # Batches that the replicas divide evenly and unevenly, fewer texts than replicas, and larger batches after
    # smaller ones.
    sizes = [(4, 8), (5, 3), (1, 2), (7, 40), (2, 64)]
    model = Logits("mixtral")
    results = ranks(replicas * tensor_ranks).run(
        run_batches, over_dp, [texts(*size).numpy() for size in sizes], tensor_ranks, deadline=120
    )
    for at, size in enumerate(sizes):
        with torch.no_grad():
            right = model(texts(*size)).numpy()
        for outputs in results:
            assert outputs[at].tobytes() == results[0][at].tobytes()
        np.testing.assert_allclose(results[0][at], right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("dtype", mostly_slow([torch.bfloat16, torch.float16], torch.bfloat16))
def test_in_16_bits_replicas_are_as_close_to_float32_as_torch(dtype, ranks, tmp_path):
    model = Logits("mixtral", dtype)
    path = exported(tmp_path / "m.accord", model, EXPERTS_OVER_DP)
    (first,), (second,) = ranks(2).run(run_batches, path, [texts(4, 16).numpy()], 1, deadline=120)
    with torch.no_grad():
        torchs = model(texts(4, 16))
        exact = model.float()(texts(4, 16))
    assert first.tobytes() == second.tobytes()
    assert (torch.from_numpy(first) - exact).norm() <= 1.2 * (torchs - exact).norm()


def read_bytes(comm, path, group):
    with accord.load(path, {group: comm}) as engine:
        report = engine.load_report
        return report.shard_bytes, report.replicated_bytes


def test_each_rank_reads_only_its_own_experts(ranks, tmp_path):
    path = str(accord.export(make_model("mixtral"), path=tmp_path / "m.accord", sharding={"*.experts": "expert"}))
    manifest = json.loads((Path(path) / "manifest.json").read_text())
    of_experts = [entry for entry in manifest["tensors"] if ".experts." in entry["name"]]
    assert [entry["sharding"]["dim"] for entry in of_experts] == [0, 0, 0]
    assert all(len(entry["xxh3"]) == 4 for entry in of_experts)
    whole = ranks(1).run(read_bytes, path, "tp")[0]
    halves = ranks(2).run(read_bytes, path, "tp")
    for divided, replicated in halves:
        assert 0 < 2 * divided == whole[0]
        assert replicated == whole[1]


def test_more_ranks_than_experts_are_rejected(ranks, over_dp):
    for message in ranks(5).run(load_and_return_error, over_dp, "dp"):
        assert "has 4 units of 1 to share" in message
        assert 'group "dp" has 5 ranks' in message


def load_and_return_error(comm, path, group):
    try:
        accord.load(path, {group: comm})
    except accord.Error as error:
        return str(error)


def run_contexts_and_rebind(comm, path, ids):
    """Runs two contexts in turn, then binds the same engine to another communicator."""
    with accord.load(path, {"dp": comm}) as engine:
        first, second = engine.create_context(), engine.create_context()
        found = [np.array(context.run(ids)[0]) for context in (first, second, first)]
        engine.unbind()
        engine.bind({"dp": comm.split(0, name="other")})
        found += [np.array(context.run(ids)[0]) for context in (second, first)]
        ops = [op["op"] for op in engine.report({"batch": 2, "length": 4})["ops"]]
    assert all(np.array_equal(one, found[0]) for one in found)
    return ops


def test_contexts_have_their_own_groups_which_follow_the_bound_communicator(ranks, over_dp):
    for ops in ranks(2).run(run_contexts_and_rebind, over_dp, texts(3, 5).numpy()):
        at = ops.index("accord.dispatch")
        assert ops[at : at + 3] == ["accord.dispatch", "accord.dispatched_experts", "accord.combine"]


def die_in_the_second_run(comm, path, ids):
    with accord.load(path, {"dp": comm}) as engine:
        engine.run(ids)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), 9)
        began = time.monotonic()
        try:
            while True:
                engine.run(ids)
        except accord.PeerLost as error:
            return list(error.ranks), time.monotonic() - began


@pytest.mark.alone
def test_a_rank_that_dies_is_named_within_a_second(fresh_ranks, over_dp):
    first, second, third = fresh_ranks(3).outcomes(die_in_the_second_run, over_dp, texts(6, 8).numpy())
    assert second.exit_code == -9
    for named, seconds in (first.value, third.value):
        assert named == [1]
        assert seconds < 1


class Mixture(torch.nn.Module):
    """The experts of a Mixtral after a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.block = make_model("mixtral").model.layers[0].mlp
        self.config = FAMILIES["mixtral"]
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.linear(x))


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        ({"linear": accord.Expert()}, '"linear" is a linear layer: accord.Expert is for layers of experts'),
        ({"linear": "experts"}, 'unknown style "experts"; did you mean "expert"'),
        ({"*.experts": accord.Column(unit=1)}, "use accord.Expert or accord.Row"),
        ({"*.experts": accord.Expert("d p")}, '"d p" cannot be the name of a group'),
        ({"linear": "auto"}, '"auto" is for all layers that are left'),
        ({"*": "auto", "linear": "column"}, '"auto" is for all layers that are left'),
    ],
)
def test_invalid_sharding_is_rejected(sharding, message, tmp_path):
    with pytest.raises(accord.ExportError, match=re.escape(message)):
        accord.export(Mixture(), (torch.randn(2, 4, 64),), path=tmp_path / "m.accord", sharding=sharding)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": 2}, "experts are divided one by one"),
        ({"copies": True}, "experts are divided one by one"),
        ({"style": "row"}, "dimension 0"),
        ({"style": "column"}, "takes an expert rule or a row rule"),
        ({"style": "experts"}, 'did you mean "expert"?'),
        ({"pattern": "*.lm_head"}, "is not a layer of experts"),
    ],
)
def test_damaged_rules_are_rejected(changes, message, over_dp, tmp_path):
    with pytest.raises(accord.Corrupt, match=re.escape(message)):
        accord.load(changed_manifest(over_dp, tmp_path / "m.accord", lambda given: given["rules"][0].update(changes)))


def test_canonical_sums_are_rejected_where_experts_are_sharded(ranks, tmp_path):
    path = str(accord.export(make_model("mixtral"), path=tmp_path / "m.accord", sharding={"*.experts": "expert"}))
    for message in ranks(2).run(load_canonical, path):
        assert "experts" in message


def load_canonical(comm, path):
    try:
        accord.load(path, {"tp": comm}, canonical_ranks=4)
    except accord.Unsupported as error:
        return str(error)
