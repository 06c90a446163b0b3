"""Packages of programs: engines and PyTorch partitions, and programs in which each rank has its own part."""

import json
import shutil

import pytest
from accord_command import accord as accord_command

import accord

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Model(torch.nn.Module):
    """Engines before and after cumprod, which they do not support, and a number of rows that depends on data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.out = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("factor", torch.rand(16))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        z = self.norm(self.down(torch.nn.functional.gelu(self.up(x))))
        y = self.out(torch.cumprod(z, 1)) * self.factor * scale
        kept = y[(y[:, 0] > 0).nonzero().squeeze(1)]
        return {"normed": z, "kept": kept, "pairs": y.view(x.shape[0] * 2, 8) + 1}


BATCH = ({0: torch.export.Dim("batch", max=64)},)
LOOSE = {"min_block_size": 1}
PLAN = {"up": accord.Column(unit=4), "down": accord.Row(unit=4)}


def assert_same(got, expected) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "model.accord"
    return accord.export(
        Model().eval(), (torch.rand(4, 8),), path=path, sharding=PLAN, dynamic_shapes=BATCH, options=LOOSE
    )


@torch.no_grad()
def test_unsupported_ops_are_saved_as_pytorch_partitions_of_one_program(package):
    model, program = Model().eval(), accord.load(package)
    assert isinstance(program, accord.Program)
    for rows in (4, 1, 33):
        x = torch.rand(rows, 8)
        assert_same(program.module()(x), model(x))
        torch.testing.assert_close(program.run(x)[0], model(x)["normed"], rtol=1e-5, atol=1e-5)
    in_torch = program.report.ops("pytorch")
    assert in_torch["aten.cumprod.default"] == 1
    assert in_torch["aten.nonzero.default"] == 1
    assert not in_torch.keys() & {"aten.linear.default", "aten.gelu.default", "aten.layer_norm.default"}
    (first, *_) = [part for part in program.report.partitions if part.where == "pytorch"]
    assert 'unsupported op "aten.cumprod.default" at' in first.reasons[0]
    with pytest.raises(TypeError, match=r"input 0 was torch.float32 \[any, 8\]"):
        program.module()(torch.rand(4, 9))
    program.close()


def test_without_options_an_unsupported_op_is_an_error_and_a_supported_model_is_one_package(tmp_path):
    with pytest.raises(accord.UnsupportedOpError, match=r'unsupported op "aten.cumprod.default" at .*test_programs'):
        accord.export(Model().eval(), (torch.rand(4, 8),), path=tmp_path / "a.accord")
    with pytest.raises(accord.ExportError, match="require_full_compilation, but these ops stay in PyTorch"):
        options = {"require_full_compilation": True}
        accord.export(Model().eval(), (torch.rand(4, 8),), path=tmp_path / "a.accord", options=options)
    with pytest.raises(accord.ExportError, match='unknown option "min_block_sise"; did you mean "min_block_size"'):
        accord.export(Model().eval(), (torch.rand(4, 8),), path=tmp_path / "a.accord", options={"min_block_sise": 1})
    assert not list(tmp_path.iterdir())
    whole = accord.export(torch.nn.Linear(4, 4).eval(), (torch.rand(2, 4),), path=tmp_path / "b.accord", options=LOOSE)
    assert isinstance(accord.load(whole), accord.Engine)
    kept = accord.export(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(),
        (torch.rand(2, 4),),
        path=tmp_path / "b.accord",
        options=LOOSE | {"torch_executed_ops": ["aten.relu"]},
    )
    assert accord.load(kept).report.ops("pytorch") == {"aten.relu.default": 1}


def test_c_plus_plus_and_strict_loading_name_the_partitions_and_where_they_run(package, tmp_path):
    inspected = accord.inspect(package)
    (rank,) = inspected["program"]
    assert inspected["world_size"] is None
    names = [part["name"] for part in rank["parts"] if part["runs_in"] == "pytorch"]
    assert len(names) >= 2
    for call in (lambda: accord.Engine.load(package), lambda: accord.load(package, strict=True)):
        with pytest.raises(accord.Unsupported) as raised:
            call()
        assert all(f'"{name}"' in str(raised.value) for name in names)
        assert "aten.cumprod.default" in str(raised.value)
    with pytest.raises(accord.Unsupported, match=r"run in Python only: .*load it there by accord.load\(\)"):
        accord.Engine.load(package)
    save_file({"x": torch.rand(4, 8)}, tmp_path / "x.safetensors")
    result = accord_command("engine", "run", package, "--inputs", tmp_path / "x.safetensors")
    assert result.returncode != 0
    assert "aten.cumprod.default" in result.stderr
    assert "accord.load()" in result.stderr
    shown = accord_command("engine", "inspect", package).stdout
    assert 'because unsupported op "aten.cumprod.default"' in shown


def damaged(package, tmp_path, pattern: str):
    copy = tmp_path / "copy.accord"
    shutil.copytree(package, copy)
    (file, *_) = sorted(copy.glob(pattern))
    return copy, file


@pytest.mark.parametrize(
    "pattern", ["*.pt2", "engine-*.accord/graph.json", "engine-*.accord/*.safetensors", "manifest.json"]
)
def test_a_damaged_or_missing_file_is_rejected_and_named(package, tmp_path, pattern):
    assert accord.verify(package) == []
    copy, file = damaged(package, tmp_path, pattern)
    whole = file.read_bytes()
    file.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    with pytest.raises(accord.Corrupt):
        accord.load(copy)
    assert accord.verify(copy)
    file.write_bytes(whole[:-1])
    with pytest.raises(accord.Corrupt):
        accord.load(copy)
    if pattern != "manifest.json":
        file.unlink()
        with pytest.raises(accord.Corrupt):
            accord.load(copy)
        assert accord.verify(copy)
        file.write_bytes(whole)
        assert accord.verify(copy) == []
        (copy / "stranger").touch()
        assert [damage.file for damage in accord.verify(copy)] == ["stranger"]


def test_an_engine_of_another_program_is_rejected(package, tmp_path):
    copy, file = damaged(package, tmp_path, "engine-*.accord/graph.json")
    other = accord.export(torch.nn.Linear(8, 16).eval(), (torch.rand(4, 8),), path=tmp_path / "other.accord")
    shutil.rmtree(file.parent)
    shutil.copytree(other, file.parent)
    with pytest.raises(accord.Corrupt, match="of another engine"):
        accord.load(copy)
    assert "another engine" in accord.verify(copy)[0].what


@torch.no_grad()
def test_a_compiled_model_is_saved_as_it_was_compiled_and_int8_reaches_the_engines(tmp_path):
    model, x = Model().eval(), torch.rand(4, 8)
    compiled = accord.compile(model, (x,), LOOSE, dynamic_shapes=BATCH)
    program = accord.load(compiled.save(tmp_path / "m.accord"))
    assert_same(program.module()(x), compiled(x))
    assert program.report.ops("engine") == compiled.report.ops("engine")
    small = compiled.save(tmp_path / "m.accord", weights={"up": "int8", "*": "same"})
    (error,) = [one["error"] for part in small.glob("*engine-*.accord") for one in accord.inspect(part)["quantized"]]
    assert 0 < error < 0.02
    with pytest.raises(accord.ExportError, match='weights pattern "ups" decides no layer'):
        compiled.save(tmp_path / "m.accord", weights={"ups": "int8"})


def run_on_ranks(comm, path, x):
    import torch

    program = accord.load(path, {"tp": comm})
    out = program.module()(torch.tensor(x))
    assert program.groups["tp"] == (comm.rank, comm.size)
    return {name: tensor.numpy() for name, tensor in out.items()}


@torch.no_grad()
def test_a_program_with_a_sharding_plan_runs_on_several_ranks(package, fresh_ranks):
    x = torch.rand(5, 8)
    first, second = fresh_ranks(2).run(run_on_ranks, str(package), x.tolist(), torch=True)
    for out in (first, second):
        assert_same({name: torch.from_numpy(values) for name, values in out.items()}, Model().eval()(x))


def fail_on_one_rank(comm, path, damaged_path):
    try:
        accord.load(damaged_path if comm.rank == 1 else path, {"tp": comm})
    except accord.Error as error:
        damaged = str(error)
    try:
        accord.load(path, {"tp": comm}, memory_limit=(0, 100)[comm.rank])
    except accord.Error as error:
        return damaged, str(error)


def test_if_one_rank_cannot_load_a_program_all_ranks_report_it(package, fresh_ranks, tmp_path):
    copy, file = damaged(package, tmp_path, "*.pt2")
    file.unlink()
    first, second = fresh_ranks(2).run(fail_on_one_rank, str(package), str(copy), torch=True)
    assert all('group "tp": rank 1 could not load the program' in message for message in first)
    assert "is missing" in second[0]
    assert "the limit is 100 B" in second[1]


def export_parts(group, path):
    rank = group.rank()

    class Part(torch.nn.Module):
        """This rank's part of two layers, sharded by hand as a user would do it."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            up, down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
            self.whole = torch.nn.Sequential(up, torch.nn.ReLU(), down)
            self.up = torch.nn.Parameter(up.weight[rank * 8 :][:8].clone())
            self.bias = torch.nn.Parameter(up.bias[rank * 8 :][:8].clone())
            self.down = torch.nn.Parameter(down.weight[:, rank * 8 :][:, :8].clone())

        def forward(self, x):
            ops = torch.ops._c10d_functional
            part = torch.relu(x @ self.up.t() + self.bias) @ self.down.t()
            total = ops.wait_tensor(ops.all_reduce(part, "sum", group.group_name)) + self.whole[2].bias
            return total, ops.wait_tensor(ops.all_gather_into_tensor(part, 2, group.group_name))

    model, x = Part().eval(), torch.rand(3, 8, generator=torch.Generator().manual_seed(1))
    batch = ({0: torch.export.Dim("batch", max=16)},)
    with torch.no_grad():
        accord.export(
            model, (x,), path=f"{path}/exported.accord", dynamic_shapes=batch, output_names=["total", "parts"]
        )
        accord.compile(model, (x,), {"min_block_size": 1}).save(f"{path}/compiled.accord")
        error = None
        try:
            accord.export(model, (x,), path=f"{path}/no/where.accord")
        except accord.ExportError as failed:
            error = str(failed)
        return x.tolist(), model.whole(x).tolist(), [tensor.tolist() for tensor in model(x)], error


def load_parts(comm, path, x):
    import torch

    engine = accord.load(path, {"world": comm})
    try:
        accord.load(path, {"world": comm.split(comm.rank)})
    except accord.Error as error:
        alone = str(error)
    return (
        [torch.from_dlpack(output).tolist() for output in engine.run(torch.tensor(x))],
        alone,
        [one.name for one in engine.outputs],
    )


@pytest.mark.slow
def test_each_rank_exports_its_part_into_one_package(torch_ranks, fresh_ranks, tmp_path):
    (x, whole, expected, error), (_, _, expected_1, error_1) = torch_ranks(2).run(export_parts, str(tmp_path))
    assert "there is no directory" in error
    assert error == error_1
    torch.testing.assert_close(torch.tensor(expected[0]), torch.tensor(whole))
    for name in ("exported", "compiled"):
        path = tmp_path / f"{name}.accord"
        inspected = accord.inspect(path)
        assert inspected["world_size"] == 2
        assert [rank["groups"] for rank in inspected["program"]] == [{"world": [0, 1]}] * 2
        assert accord.verify(path) == []
        outcomes = fresh_ranks(2).run(load_parts, str(path), x, torch=True)
        for (got, alone, names), wanted in zip(outcomes, (expected, expected_1), strict=True):
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-5)
            assert 'was made by 2 ranks, with groups "world" of 2, and is loaded by exactly as many' in alone
            assert name == "compiled" or names == ["total", "parts"]
    with pytest.raises(accord.InvalidArgument, match="rank 0 of 1"):
        accord.load(path)
    with pytest.raises(accord.InvalidArgument, match='did you mean "world"|"world"'):
        accord.Engine.load(path, {"wrold": (0, 2)})
    part = json.loads((path / "rank-1-engine-0.accord/manifest.json").read_text())["part"]
    assert part["places"] == {"world": [1, 2]}
    with pytest.raises(accord.InvalidArgument, match="the part of rank 1 of 2"):
        accord.Engine.load(path / "rank-1-engine-0.accord", {"world": (0, 2)})
