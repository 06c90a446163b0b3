"""`accord engine` with a small sharded model, on one rank and on several, compared with PyTorch."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from accord_command import ACCORD, RUN_TO_COMPLETION, accord
from safetensors.numpy import load_file, save_file

import accord as accord_package

torch = pytest.importorskip("torch")

HIDDEN, INNER = 16, 64


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, INNER)
        self.down = torch.nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.fixture(scope="module")
def model() -> Mlp:
    torch.manual_seed(0)
    return Mlp().eval()


@pytest.fixture(scope="module")
def package(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "mlp.accord"
    accord_package.export(
        model,
        (torch.zeros(2, HIDDEN),),
        path=path,
        sharding={"up": accord_package.Column(unit=8), "down": accord_package.Row(unit=8)},
        dynamic_shapes={"x": {0: torch.export.Dim("rows", min=1, max=100)}},
        output_names=["y"],
        progress=lambda done, total: None,
    )
    return path


# The package stores a unit of 8 outputs in the space of 16. HIDDEN outputs are rounded up to a multiple of 16.
UP = 4 * INNER // 8 * 16 * HIDDEN
DOWN = 4 * -(-HIDDEN // 16) * 16 * INNER
DIVIDED = UP + DOWN + 4 * INNER  # both weights and the bias of the column-parallel layer


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(7, HIDDEN)).astype(np.float32)


@pytest.fixture(scope="module")
def inputs(x, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "inputs.safetensors"
    save_file({"x": x}, path)
    return path


def test_inspect_shows_the_contents_of_the_package(package):
    facts = json.loads(accord("engine", "inspect", package, "--json").stdout)
    assert facts["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["rows", HIDDEN]}]
    assert facts["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["rows", HIDDEN]}]
    assert facts["symbols"] == [{"name": "rows", "min": 1, "max": 100}]
    assert facts["groups"] == ["tp"]
    assert [(rule["pattern"], rule["style"], rule["unit"]) for rule in facts["rules"]] == [
        ("up", "column", 8),
        ("down", "row", 8),
    ]
    assert facts["sharded_bytes"] == DIVIDED
    assert facts["weight_bytes"] == DIVIDED + 4 * HIDDEN
    assert facts["quantized"] == []
    by_ranks = {row["ranks"]: row["weight_bytes_of_rank_0"] for row in facts["by_ranks"]}
    assert by_ranks == {size: DIVIDED // size + 4 * HIDDEN for size in (1, 2, 4, 8)}
    assert facts["most_ranks"] == 8
    table = accord("engine", "inspect", package).stdout
    assert "up: column in units of 8" in table
    assert accord_package.inspect(package) == facts


def test_inspect_shows_the_numbers_of_ranks_that_loading_rejects(model, tmp_path):
    path = tmp_path / "mlp.accord"
    sharding = {"up": accord_package.Column(unit=16), "down": accord_package.Row(unit=16)}
    accord_package.export(model, (torch.zeros(2, HIDDEN),), path=path, sharding=sharding)
    facts = accord_package.inspect(path)
    assert facts["most_ranks"] == 4
    refused = [row["ranks"] for row in facts["by_ranks"] if row["weight_bytes_of_rank_0"] is None]
    assert refused == [8]
    assert "ranks 8   too many ranks: there are units for at most 4" in accord("engine", "inspect", path).stdout
    with pytest.raises(accord_package.InvalidArgument, match="4 units of 16"):
        accord_package.Engine.load(path, {"tp": (0, 8)})


@pytest.fixture(scope="module")
def whole_package(model, tmp_path_factory) -> Path:
    """The model without any sharding."""
    path = tmp_path_factory.mktemp("whole") / "mlp.accord"
    return accord_package.export(model, (torch.zeros(7, HIDDEN),), path=path, output_names=["y"])


def test_a_package_without_groups_is_run_as_a_whole_by_every_rank(whole_package, inputs, x, model, tmp_path):
    command = [ACCORD, "engine", "run", whole_package, "--inputs", inputs, "--outputs", tmp_path / "y.safetensors"]
    result = accord("run", "-n", 2, *command, "--check-ranks-equal", "--json")
    assert result.returncode == 0, result.stderr
    with torch.no_grad():
        np.testing.assert_allclose(
            load_file(tmp_path / "y.safetensors")["y"], model(torch.from_numpy(x)).numpy(), atol=2e-6
        )
    for figures in json.loads(result.stdout.removeprefix("[0] "))["ranks"]:
        assert (figures["shard_bytes"], figures["replicated_bytes"]) == (0, 4 * (2 * HIDDEN * INNER + INNER + HIDDEN))
    table = accord("engine", "inspect", whole_package).stdout
    assert f"ranks 8   rank 0 reads {4 * (2 * HIDDEN * INNER + INNER + HIDDEN) / 1024:.1f} KiB" in table


def test_ranks_that_each_run_a_whole_package_also_agree_on_it(package, whole_package, inputs, tmp_path):
    damaged = tmp_path / "damaged.accord"
    shutil.copytree(whole_package, damaged)
    weights = bytearray((damaged / "weights-00001.safetensors").read_bytes())
    weights[-1] ^= 1
    (damaged / "weights-00001.safetensors").write_bytes(weights)
    for seen_by_rank_1, message in (
        (damaged, 'rank 1 of group "all ranks" could not get ready: weights-00001.safetensors'),
        (package, "rank 1 loaded a different package"),
    ):
        command = f'exec "{ACCORD}" engine run "$([ $RANK = 1 ] && echo "{seen_by_rank_1}" || echo "{whole_package}")"'
        command += f' --inputs "{inputs}"'
        result = accord("run", "-n", 2, "--grace", 20, *RUN_TO_COMPLETION, "sh", "-c", command)
        assert result.returncode == 1
        assert result.stdout == ""
        assert message in result.stderr


def test_a_package_of_several_groups_is_run_by_one_rank_or_by_the_given_group(inputs, model, tmp_path):
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = model, Mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    path = tmp_path / "twice.accord"
    sharding = {
        f"{block}.{layer}": style(unit=8, group=group)
        for block, group in (("first", "inner"), ("second", "outer"))
        for layer, style in (("up", accord_package.Column), ("down", accord_package.Row))
    }
    accord_package.export(Twice().eval(), (torch.zeros(7, HIDDEN),), path=path, sharding=sharding)
    command = [ACCORD, "engine", "run", path, "--inputs", inputs]
    assert accord(*command[1:]).returncode == 0
    refused = accord("run", "-n", 2, *command)
    assert refused.returncode == 1
    assert "has 2 groups; choose with --group which one the ranks form" in refused.stderr
    result = accord("run", "-n", 2, *command, "--group", "outer", "--check-ranks-equal", "--json")
    assert result.returncode == 0, result.stderr
    for figures in json.loads(result.stdout.removeprefix("[0] "))["ranks"]:
        assert figures["shard_bytes"] == DIVIDED * 3 // 2  # all of one block, half of the other


@pytest.mark.parametrize("size", [1, 2])
def test_run_counts_all_bytes_read_from_manifest_and_graph(package, inputs, size):
    result = accord("run", "-n", size, ACCORD, "engine", "run", package, "--inputs", inputs, "--json")
    once = sum((package / name).stat().st_size for name in ("manifest.json", "manifest.sha256", "graph.json"))
    once += json.loads((package / "manifest.json").read_text())["files"][1]["header_size"]
    # Several ranks read these files once more to find the package's group.
    for figures in json.loads(result.stdout.removeprefix("[0] "))["ranks"]:
        assert figures["metadata_bytes_read"] == size * once


@pytest.mark.parametrize("option", ["--repeat", "--warm-up"])
def test_an_invalid_number_of_runs_is_rejected(package, inputs, option):
    result = accord("engine", "run", package, "--inputs", inputs, option, 2147483647)
    assert result.returncode == 2
    assert option in result.stderr
    assert "1000000" in result.stderr


@pytest.mark.parametrize("size", [1, 2, 3])
def test_run_matches_pytorch_and_counts_the_bytes_that_each_rank_read(package, inputs, x, model, tmp_path, size):
    command = [ACCORD, "engine", "run", package, "--inputs", inputs, "--outputs", tmp_path / "y.safetensors"]
    result = accord("run", "-n", size, *command, "--repeat", 3, "--check-ranks-equal", "--json")
    assert result.returncode == 0, result.stderr
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(load_file(tmp_path / "y.safetensors")["y"], expected, atol=2e-6)
    facts = json.loads(result.stdout.removeprefix("[0] "))
    assert facts["ranks_equal"]
    assert len(facts["ranks"]) == size
    # 8 units of 8 columns of `up` (weight and bias) and 8 rows of `down`. If they cannot be divided evenly, the first
    # ranks get one unit more.
    units = [len(part) for part in np.array_split(np.arange(8), size)]
    for rank, figures in enumerate(facts["ranks"]):
        shard = DIVIDED * units[rank] // 8
        assert figures["shard_bytes"] == shard
        assert figures["weight_bytes_read"] == shard + 4 * HIDDEN
        assert 0 < figures["minimum_seconds"] <= figures["median_seconds"]
        assert figures["peak_resident_bytes"] > 1 << 20


def test_run_without_a_launcher_is_one_rank_and_prints_a_table(package, inputs):
    result = accord("engine", "run", package, "--inputs", inputs)
    assert result.returncode == 0, result.stderr
    assert "on 1 rank" in result.stdout


def test_a_profile_counts_the_ops_of_each_timed_run(package, inputs):
    command = ["engine", "run", package, "--inputs", inputs, "--warm-up", 3, "--repeat", 5, "--profile"]
    facts = json.loads(accord(*command, "--json").stdout)
    calls = {time["op"]: time["calls"] for time in facts["profile"]}
    assert calls.get("accord.linear", 0) + calls.get("aten.linear.default", 0) == 2 * 5
    assert all(time["seconds"] > 0 for time in facts["profile"])
    assert "profile" not in json.loads(accord("engine", "run", package, "--inputs", inputs, "--json").stdout)
    assert "where rank 0 spent its time" in accord(*command).stdout


def test_ranks_form_stages_and_replicas_of_the_packages_group(package, inputs, x, model, tmp_path):
    command = [ACCORD, "engine", "run", package, "--inputs", inputs, "--outputs", tmp_path / "y.safetensors"]
    divided = ["--pp", 2, "--dp", 2, "--check-ranks-equal", "--json"]
    result = accord("run", "-n", 8, *command, *divided)
    assert result.returncode == 0, result.stderr
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(load_file(tmp_path / "y.safetensors")["y"], expected, atol=1e-5)
    ranks = json.loads(result.stdout.removeprefix("[0] "))["ranks"]
    # One of the two stages holds each layer's weights, half on each of its ranks. Each of the two replicas holds all
    # weights.
    assert sum(rank["shard_bytes"] for rank in ranks) == 2 * DIVIDED
    report = json.loads(accord("engine", "report", package, "-n", 4, "--pp", 2, "--json").stdout)
    assert [rank["groups"]["pp"]["rank"] for rank in report["ranks"]] == [0, 0, 1, 1]
    assert [rank["groups"]["tp"]["rank"] for rank in report["ranks"]] == [0, 1, 0, 1]


def test_a_group_that_the_package_does_not_have_is_named(package, inputs):
    result = accord("engine", "run", package, "--inputs", inputs, "--group", "xx")
    assert result.returncode == 1
    assert "xx" in result.stderr
    assert "tp" in result.stderr


def test_an_input_file_that_does_not_exist_is_named(package):
    result = accord("engine", "run", package, "--inputs", "no-such-file")
    assert result.returncode == 1
    assert "no-such-file" in result.stderr


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"z": np.zeros((1, HIDDEN), np.float32)}, "unknown input"),
        ({}, 'no tensor "x"'),
        ({"x": np.zeros((1, HIDDEN), np.int64)}, "int64"),
        ({"x": np.zeros((101, HIDDEN), np.float32)}, "101"),
        ({"x": np.zeros((1, HIDDEN + 1), np.float32)}, "17"),
    ],
)
def test_inputs_that_do_not_fit_are_named(package, tmp_path, tensors, message):
    save_file(tensors, tmp_path / "x.safetensors")
    result = accord("engine", "run", package, "--inputs", tmp_path / "x.safetensors")
    assert result.returncode == 1
    assert message in result.stderr


def header_of(entries: dict, data: bytes = b"") -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1234", "too short"),
        (struct.pack("<Q", 1 << 60) + b"{}", "header"),
        (struct.pack("<Q", 2) + b"[]", "JSON object"),
        (struct.pack("<Q", 2) + b"{,", "JSON"),
        (header_of({"x": F32 | {"dtype": "F33"}}, b"1234"), "F33"),
        (header_of({"x": F32 | {"shape": [2]}}, b"1234"), "8 bytes"),
        (header_of({"x": F32 | {"shape": [1 << 40, 1 << 40]}}, b"1234"), "larger than any memory"),
        (header_of({"x": F32 | {"shape": [-1]}}, b"1234"), "shape"),
        (header_of({"x": F32 | {"data_offsets": [0, 5]}}, b"1234"), "data_offsets"),
        (header_of({"x": F32 | {"offsets": 3}}, b"1234"), "offsets"),
        (header_of({"x": F32, "y": F32 | {"data_offsets": [5, 9]}}, b"123456789"), "begins at 5"),
        (header_of({"x": F32, "y": F32}, b"1234"), "begins at 0"),
        (header_of({"x": F32}, b"12345"), "1 bytes after the last tensor"),
    ],
)
def test_a_damaged_input_file_is_rejected_with_its_name(package, tmp_path, content, message):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    result = accord("engine", "run", package, "--inputs", path)
    assert result.returncode == 1
    assert "damaged.safetensors" in result.stderr
    assert message in result.stderr


def test_verify_passes_a_whole_package_and_lists_every_damaged_place(package, tmp_path):
    assert accord("engine", "verify", package).returncode == 0
    damaged = tmp_path / "damaged.accord"
    shutil.copytree(package, damaged)
    weights = damaged / "weights-00001.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (damaged / "stray").write_text("not part of it")
    result = accord("engine", "verify", damaged, "--json")
    assert result.returncode == 1
    facts = json.loads(result.stdout)
    assert not facts["whole"]
    assert {place["file"] for place in facts["damage"]} == {"weights-00001.safetensors", "stray"}
    assert [{"file": place.file, "what": place.what} for place in accord_package.verify(damaged)] == facts["damage"]
    assert accord_package.verify(str(package)) == []
    assert repr(accord_package.verify(damaged)[-1]) == "Damage(stray: does not belong to the package)"
    with pytest.raises(FileNotFoundError, match="nothing"):
        accord_package.verify(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="nothing"):
        accord_package.inspect(tmp_path / "nothing")


def test_a_package_that_one_rank_cannot_read_runs_on_no_rank(package, inputs, tmp_path):
    damaged = tmp_path / "damaged.accord"
    shutil.copytree(package, damaged)
    content = bytearray((damaged / "weights-00001.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "weights-00001.safetensors").write_bytes(content)
    result = accord("run", "-n", 2, "--grace", 20, ACCORD, "engine", "run", damaged, "--inputs", inputs)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "weights-00001.safetensors" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_folder_that_is_not_a_package_is_named(tmp_path, command):
    result = accord("engine", command, tmp_path)
    assert result.returncode == 1
    assert str(tmp_path) in result.stderr
