"""Sharding rules: the layers that they match, the tensors that they shard, and their errors."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from export_reference import read_json, read_tensors, unpacked

from accord import Engine
from accord.exporter.export import export
from accord.graph.errors import ExportError
from accord.package.sharding import Column, Row, default_unit


class Block(torch.nn.Module):
    def __init__(self, size: int = 32):
        super().__init__()
        self.up = torch.nn.Linear(size, 2 * size)
        self.down = torch.nn.Linear(2 * size, size)
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, x):
        return self.norm(self.down(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.layers(x)


@pytest.fixture
def export_with(tmp_path):
    def run(sharding, model=None):
        model = (model or Model()).eval()
        return export(model, (torch.rand(2, 32),), path=tmp_path / "m.accord", sharding=sharding)

    return run


def shardings(package):
    return {tensor["name"]: tensor.get("sharding") for tensor in read_json(package, "manifest.json")["tensors"]}


def test_a_column_rule_shards_weight_and_bias_and_a_row_rule_only_the_weight(export_with):
    found = shardings(export_with({"layers.*.up": Column(unit=16), "layers.*.down": Row(unit=16)}))
    for layer in ("layers.0", "layers.1"):
        assert found[f"{layer}.up.weight"] == {"group": "tp", "dim": 0, "unit": 16}
        assert found[f"{layer}.up.bias"] == {"group": "tp", "dim": 0, "unit": 16}
        assert found[f"{layer}.down.weight"] == {"group": "tp", "dim": 1, "unit": 16}
        assert found[f"{layer}.down.bias"] is None
        assert found[f"{layer}.norm.weight"] is None


def test_a_plan_of_parallelize_module_is_accepted_unchanged(export_with):
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

    plan = {"layers.*.up": ColwiseParallel(), "layers.*.norm": SequenceParallel(), "layers.*.down": RowwiseParallel()}
    expected = shardings(export_with({"layers.*.up": "column", "layers.*.down": "row"}))
    assert shardings(export_with(plan)) == expected
    # If a model's config gives its heads, heads stay whole: 16 heads of 4 elements, two of which share one key head.
    model = Model()
    model.config = SimpleNamespace(num_attention_heads=16, num_key_value_heads=8, head_dim=4)
    found = shardings(export_with(plan, model))
    assert found["layers.0.up.weight"] == {"group": "tp", "dim": 0, "unit": 8}

    class OwnStyle(ParallelStyle):
        def _apply(self, module, mesh):
            return module

    with pytest.raises(ExportError, match=r'"layers.\*.up": torch\'s style OwnStyle is not known'):
        export_with({"layers.*.up": OwnStyle()})


def test_sharded_tensors_are_read_back_whole(export_with):
    model = Model()
    package = export_with({"layers.*.up": Column(unit=4), "layers.*.down": Row(unit=4)}, model)
    tensors = read_tensors(package)
    for name, parameter in model.named_parameters():
        assert torch.equal(tensors[name], parameter), name


def test_each_granule_is_one_unit_packed_separately(export_with):
    model = Model()
    package = export_with({"layers.*.up": Column(unit=16), "layers.*.down": Row(unit=16)}, model)
    (entry,) = [t for t in read_json(package, "manifest.json")["tensors"] if t["name"] == "layers.1.down.weight"]
    data = np.frombuffer((package / entry["file"]).read_bytes(), np.uint8)
    assert entry["granule_bytes"] == 32 * 16 * 4
    assert len(entry["xxh3"]) == 4
    for unit in range(4):
        begin = entry["offset"] + unit * entry["granule_bytes"]
        assert begin % 64 == 0
        expected = model.layers[1].down.weight[:, unit * 16 : (unit + 1) * 16].detach().numpy()
        assert np.array_equal(unpacked(data[begin : begin + entry["granule_bytes"]], 32, 16, entry["packed"]), expected)


def test_strings_use_the_default_unit(export_with):
    package = export_with({"layers.0.up": "column", "layers.0.down": "row"})
    found = shardings(package)
    assert found["layers.0.up.weight"]["unit"] == 64
    assert found["layers.0.down.weight"]["unit"] == 64
    assert [default_unit(size) for size in (1, 7, 12, 96, 128, 384, 1536, 50257)] == [1, 1, 4, 32, 64, 64, 64, 64]


def test_the_first_pattern_that_matches_decides(export_with):
    rows = {"layers.0.down": Row(unit=8), "*.down": Row(unit=32)}
    found = shardings(export_with({"layers.0.up": Column(unit=8), "*.up": Column(unit=32), **rows}))
    assert found["layers.0.up.weight"]["unit"] == 8
    assert found["layers.1.up.weight"]["unit"] == 32


def test_rules_and_groups_are_in_the_manifest(export_with):
    package = export_with({"*.up": Column(unit=8, group="model"), "*.down": Row(unit=8, group="model")})
    manifest = read_json(package, "manifest.json")
    assert manifest["groups"] == ["model"]
    assert manifest["rules"][0] == {"pattern": "*.up", "style": "column", "unit": 8, "group": "model"}


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        ({"layers.*.upp": "column"}, r'"layers\.\*\.upp" matches no module; .*"layers\.\d\.up"'),
        ({"layers.0.norm": "column"}, r"matches no linear layer and no embedding, only others .*LayerNorm"),
        ({"*": "column", "layers.0.up": "column"}, r"an earlier pattern decides all it matches"),
        ({"layers.0.up": "colunm"}, r'unknown style "colunm"; did you mean "column"'),
        ({"layers.0.up": 3}, r"expected .* got int"),
        ({"layers.0.up": Column(unit=65)}, r'unit 65 is more than the 64 outputs of "layers\.0\.up"'),
        ({"layers.0.down": Row(unit=0)}, r"a whole number from 1 up, got 0"),
        ({"layers.0.up": Column(group="t p")}, r'"t p" cannot be the name of a group'),
    ],
)
def test_the_error_for_an_invalid_rule_is_helpful(export_with, sharding, message):
    with pytest.raises(ExportError, match=message):
        export_with(sharding)


def test_a_weight_with_another_use_cannot_be_sharded(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(16, 8)
            self.head = torch.nn.Linear(8, 16, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids)) + self.head.weight.sum()

    with pytest.raises(ExportError, match=r'"head.weight" cannot be sharded: aten.sum.dim_IntList at .* as "self"'):
        export(Tied().eval(), (torch.tensor([[1]]),), path=tmp_path / "m.accord", sharding={"head": "column"})


def test_layers_that_share_a_weight_must_be_sharded_in_the_same_way(tmp_path):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(16, 16, bias=False)
            self.second = torch.nn.Linear(16, 16, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    def export_twice(sharding):
        return export(Twice().eval(), (torch.rand(2, 16),), path=tmp_path / "m.accord", sharding=sharding)

    with pytest.raises(ExportError, match="one tied weight, but are to be sharded differently"):
        export_twice({"first": "column", "second": "row"})
    for only in ("first", "second"):
        with pytest.raises(ExportError, match=r'"first.weight" is used by "second", .* other sharding than "first"'):
            export_twice({only: "column"})
    assert shardings(export_twice({"*": "column"})) == {"first.weight": {"group": "tp", "dim": 0, "unit": 16}}


def test_a_pattern_for_a_layer_that_the_outputs_do_not_need_is_rejected(export_with):
    class Pooled(Model):
        def __init__(self):
            super().__init__()
            self.pooler = torch.nn.Linear(32, 32)

        def forward(self, x):
            self.pooler(x)
            return self.layers(x)

    with pytest.raises(ExportError, match='"pooler" decides no layer that the outputs need'):
        export_with({"pooler": "column"}, Pooled())


def test_a_weight_used_by_another_module_is_rejected_with_its_source_line(export_with):
    class Borrowed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(32, 32)

        def forward(self, x):
            return torch.nn.functional.linear(x, self.inner.weight)

    with pytest.raises(ExportError, match=r'"inner.weight" is used at \S+:\d+ \(module top\): a sharding pattern'):
        export_with({"inner": "column"}, Borrowed())


class FeedForward(torch.nn.Module):
    def __init__(self, norm: bool):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(64) if norm else torch.nn.Identity()

    def forward(self, x):
        return self.fc2(self.norm(self.fc1(x)))


class FeedForwards(torch.nn.Module):
    """Feed-forward layers, some of which have a norm over all values that the ranks would share."""

    def __init__(self, *norms: bool):
        super().__init__()
        self.layers = torch.nn.Sequential(*map(FeedForward, norms))

    def forward(self, x):
        return self.layers(x)


def loads_on_two_ranks(package):
    for rank in range(2):
        with Engine.load(package, {"tp": (rank, 2)}) as engine:
            assert engine.groups["tp"] == (rank, 2)


def test_auto_replicates_layers_that_two_ranks_cannot_share(export_with):
    with pytest.warns(
        UserWarning, match=r'"layers.2.fc1", "layers.2.fc2", which .*layer_norm.*"layers.2.norm"'
    ) as warnings:
        package = export_with("auto", FeedForwards(False, False, True, False))
    assert len([one for one in warnings if "sharding=" in str(one.message)]) == 1
    divided = {name.rpartition(".")[0] for name, sharding in shardings(package).items() if sharding}
    assert divided == {f"layers.{layer}.{part}" for layer in (0, 1, 3) for part in ("fc1", "fc2")}
    loads_on_two_ranks(package)


def test_ranks_that_cannot_share_anything_replicate_the_model(export_with):
    with pytest.warns(UserWarning, match="every rank has all of"):
        package = export_with("auto", FeedForwards(True, True))
    assert not any(shardings(package).values())
    loads_on_two_ranks(package)


def test_explicit_rules_are_never_dropped(export_with):
    sharding = {"layers.0.*": Column(unit=16), "*": "auto"}
    with pytest.raises(ExportError, match=r"in module .layers.0.fc2. .*needs a whole input"):
        export_with(sharding, FeedForwards(False, False))
