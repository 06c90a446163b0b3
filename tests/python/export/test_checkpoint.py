"""Packages whose weights stay in the safetensors files of a checkpoint."""

import json
import shutil

import pytest

import accord

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(50, 24)
        self.up, self.down = torch.nn.Linear(24, 40), torch.nn.Linear(40, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.register_buffer("made", torch.arange(24.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.made
        return self.norm(x + self.down(torch.relu(self.up(x))))


# The last unit is shorter, in both dimensions.
PLAN = {"up": accord.Column(unit=16), "down": accord.Row(unit=16)}
IDS = torch.arange(6)


@pytest.fixture
def checkpoint(tmp_path):
    """A model stored in two files of a folder, and its package, which contains only its own buffer."""
    model, folder = Model().eval(), tmp_path / "checkpoint"
    folder.mkdir()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = {name: state.pop(name) for name in ("up.weight", "up.bias", "table.weight")}
    safetensors.save_file(first, folder / "model-1.safetensors")
    safetensors.save_file({**state, "unused": torch.ones(3)}, folder / "model-2.safetensors")
    package = accord.export(model, (IDS,), path=tmp_path / "model.accord", sharding=PLAN, checkpoint=folder)
    return model, folder, package


@torch.no_grad()
def test_weights_stay_in_the_checkpoint_and_the_package_is_small(checkpoint):
    model, _, package = checkpoint
    own = sum(file.stat().st_size for file in package.glob("*.safetensors"))
    assert own < 24 * 4 + 1024
    assert accord.inspect(package)["references"] == [f"../checkpoint/model-{n}.safetensors" for n in (1, 2)]
    assert accord.verify(package) == []
    (got,) = accord.load(package).run(IDS)
    torch.testing.assert_close(torch.from_dlpack(got), model(IDS), rtol=1e-5, atol=1e-5)


def run_and_count(comm, path, ids):
    import torch

    engine = accord.load(path, {"tp": comm})
    (got,) = engine.run(torch.tensor(ids))
    return torch.from_dlpack(got).tolist(), engine.load_report.weight_bytes_read


@torch.no_grad()
def test_each_rank_reads_only_its_shard_from_the_files(checkpoint, fresh_ranks):
    model, _, package = checkpoint
    outcomes = fresh_ranks(2).run(run_and_count, str(package), IDS.tolist(), torch=True)
    replicated = 4 * (50 * 24 + 24 + 24 * 3)  # table, buffer, norm and the bias of the row-parallel layer
    for (got, read), columns in zip(outcomes, (32, 8), strict=True):  # the units are 16, 16 and 8
        torch.testing.assert_close(torch.tensor(got), model(IDS), rtol=1e-5, atol=1e-5)
        assert read == replicated + 4 * columns * (24 + 1 + 24)
    assert outcomes[0][0] == outcomes[1][0]


@pytest.mark.parametrize("name", ["model-1.safetensors", "model-2.safetensors"])
def test_a_changed_checkpoint_is_rejected_and_named(checkpoint, name):
    _, folder, package = checkpoint
    file = folder / name
    whole = file.read_bytes()
    (length,) = (int.from_bytes(whole[:8], "little"),)
    for changed in (whole + b" ", whole[:-1], whole[:20] + b"#" + whole[21:], None):
        file.unlink() if changed is None else file.write_bytes(changed)
        with pytest.raises(accord.Corrupt, match=name):
            accord.load(package)
        assert any(name in damage.file or name in damage.what for damage in accord.verify(package))
    header = json.loads(whole[8 : 8 + length])
    header.pop("__metadata__", None)
    tensor = "down.weight" if name == "model-2.safetensors" else "up.bias"
    at = 8 + length + header[tensor]["data_offsets"][0] + 4 * 17
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(accord.Corrupt, match=f'tensor "{tensor}"'):
        accord.load(package)
    assert any(tensor in damage.what for damage in accord.verify(package))
    file.write_bytes(whole)
    assert accord.verify(package) == []


@torch.no_grad()
def test_package_and_checkpoint_move_together_and_a_distant_checkpoint_has_an_absolute_path(
    checkpoint, tmp_path, tmp_path_factory
):
    model, folder, package = checkpoint
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move(folder, moved)
    package = shutil.move(package, moved)
    torch.testing.assert_close(torch.from_dlpack(accord.load(package).run(IDS)[0]), model(IDS), rtol=1e-5, atol=1e-5)
    far = tmp_path_factory.mktemp("far") / "far.accord"
    accord.export(model, (IDS,), path=far, checkpoint=moved / "checkpoint", weights={"up": "int8"})
    assert accord.inspect(far)["references"][0] == str(moved / "checkpoint/model-1.safetensors")
    assert [one["tensor"] for one in accord.inspect(far)["quantized"]] == ["up.weight"]  # packed in the package
    assert (torch.from_dlpack(accord.load(far).run(IDS)[0]) - model(IDS)).abs().max() < 0.05


class InParts(Model):
    """Two engines, with cumprod in PyTorch between them."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.cumprod(torch.sigmoid(self.up(self.table(ids))), 1)
        return self.norm(self.down(x) + self.table(ids))


@torch.no_grad()
def test_the_engines_of_a_program_leave_their_weights_in_the_checkpoint(tmp_path):
    model, file = InParts().eval(), tmp_path / "model.safetensors"
    safetensors.save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, file)
    options = {"min_block_size": 1}
    # A row-parallel layer would need the preceding column-parallel layer in its own engine.
    plan = {"up": PLAN["up"]}
    program = accord.export(model, (IDS,), path=tmp_path / "m.accord", options=options, checkpoint=file, sharding=plan)
    saved = accord.compile(model, (IDS,), options).save(tmp_path / "c.accord", checkpoint=file, weights={"up": "int8"})
    moved = tmp_path / "moved"
    moved.mkdir()
    for one in (program, saved, file):
        shutil.move(one, moved)
    for name, own in (("m.accord", []), ("c.accord", ["up.weight"])):
        path = moved / name
        engines = sorted(path.glob("engine-*.accord"))
        assert len(engines) == 2
        tensors = []
        for engine in engines:
            assert accord.inspect(engine)["references"] == ["../../model.safetensors"]
            entries = json.loads((engine / "manifest.json").read_text())["tensors"]
            tensors += [one["name"] for one in entries if not one["file"].startswith("checkpoint")]
        assert tensors == own
        assert accord.verify(path) == []
        tolerance = 0.02 if own else 1e-5
        torch.testing.assert_close(accord.load(path).module()(IDS), model(IDS), rtol=tolerance, atol=tolerance)
    whole = (moved / "model.safetensors").read_bytes()
    (moved / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(accord.Corrupt, match="tensor "):
        accord.load(moved / "m.accord")
    assert {damage.file.split("/")[0] for damage in accord.verify(moved / "m.accord")} <= {one.name for one in engines}
    assert accord.verify(moved / "m.accord")


def test_a_checkpoint_without_the_models_weights_is_rejected(tmp_path):
    model = Model().eval()
    path = tmp_path / "model.accord"
    with pytest.raises(accord.ExportError, match="there are no safetensors files"):
        accord.export(model, (IDS,), path=path, checkpoint=tmp_path)
    safetensors.save_file({"up.weight": torch.zeros(40, 24)}, tmp_path / "other.safetensors")
    with pytest.raises(accord.ExportError, match="no weight of the model lies there as it is"):
        accord.export(model, (IDS,), path=path, checkpoint=tmp_path)
    with pytest.raises(accord.ExportError, match="no weight of the model lies there as it is"):
        accord.export(InParts().eval(), (IDS,), path=path, checkpoint=tmp_path, options={"min_block_size": 1})
    (tmp_path / "other.safetensors").write_bytes(b"\xff" * 9)
    with pytest.raises(accord.ExportError, match="no safetensors file"):
        accord.export(model, (IDS,), path=path, checkpoint=tmp_path / "other.safetensors")


def header_with(changes):
    """Returns a function that changes a file's header and leaves its data as they are."""

    def change(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header["up.weight"] = changes(header["up.weight"])
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return change


DAMAGES = {
    "nothing": (lambda data: b"", "no safetensors file: it begins with no header .0 bytes are there"),
    "noise": (lambda data: b"x" * 100, "no safetensors file: it begins with no header .100 bytes are there"),
    "a list": (lambda data: b"\2\0\0\0\0\0\0\0[]", "not a safetensors file: its header is not a table of tensors"),
    "no end": (lambda data: data[:-8], "is damaged, or its end is missing: "),
    "a number": (header_with(lambda _: 5), 'is damaged: its header says of "up.weight" no dtype, shape and place'),
    "no shape": (header_with(lambda entry: entry | {"shape": None}), 'says of "up.weight" no dtype, shape and place'),
    "a place before": (header_with(lambda entry: entry | {"data_offsets": [-8, 8]}), 'says of "up.weight" no dtype'),
    "a place behind": (header_with(lambda entry: entry | {"data_offsets": [0, 1 << 40]}), "or its end is missing"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_of_a_checkpoint_is_named(change, message, tmp_path):
    model, file = Model().eval(), tmp_path / "model.safetensors"
    safetensors.save_model(model, file)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(accord.ExportError, match=rf"model\.safetensors.* {message}|model\.safetensors: {message}"):
        accord.export(model, (IDS,), path=tmp_path / "m.accord", checkpoint=tmp_path)


def test_files_named_by_an_index_must_exist(tmp_path):
    model, index = Model().eval(), tmp_path / "model.safetensors.index.json"
    safetensors.save_model(model, tmp_path / "model-1.safetensors")
    index.write_text(
        json.dumps({"weight_map": {"up.weight": "model-1.safetensors", "norm.bias": "model-2.safetensors"}})
    )
    with pytest.raises(accord.ExportError, match=r"names files that are not there: model-2\.safetensors"):
        accord.export(model, (IDS,), path=tmp_path / "m.accord", checkpoint=tmp_path)
    for text in ("{", "[]", '{"weight_map": 5}'):
        index.write_text(text)
        with pytest.raises(accord.ExportError, match=r"index\.json is damaged: it has no table of weights and files"):
            accord.export(model, (IDS,), path=tmp_path / "m.accord", checkpoint=tmp_path)
    index.unlink()
    accord.export(model, (IDS,), path=tmp_path / "m.accord", checkpoint=tmp_path)
