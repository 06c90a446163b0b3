"""Reports of an engine: `accord engine report`, the trace of a run, and its comparison with PyTorch."""

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from accord_command import ACCORD, RUN_TO_COMPLETION, SUPPORT, accord, python_file
from safetensors.numpy import save_file
from small_llama import make_small_llama

import accord as accord_package

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

HIDDEN, INNER, ROWS = 16, 64, 5


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, INNER)
        self.act = torch.nn.GELU()
        self.down = torch.nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


def make_mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Mlp(), Mlp()).eval()


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return accord_package.export(
        make_mlp(),
        (torch.zeros(2, HIDDEN),),
        path=tmp_path_factory.mktemp("engine") / "mlp.accord",
        sharding={"*.up": accord_package.Column(unit=16), "*.down": accord_package.Row(unit=16)},
        dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=100)},),
        output_names=["y"],
        progress=lambda done, total: None,
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "llama.accord"
    return accord_package.export(make_small_llama(), path=path, sharding="auto", progress=lambda done, total: None)


def report_of(*arguments: object) -> dict:
    result = accord("engine", "report", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_report_counts_flops_bytes_and_shards_of_each_op(package, ranks):
    report = report_of(package, "-n", ranks, "--sizes", f"rows={ROWS}")
    for rank in report["ranks"]:
        assert rank["sizes"] == {"rows": ROWS}
        shard = 2 * 4 * (2 * HIDDEN * INNER + INNER) // ranks
        assert rank["shard_bytes"] == shard
        products = [op for op in rank["ops"] if op["op"] in ("aten.linear.default", "accord.linear")]
        assert [op["flops"] for op in products] == [2 * ROWS * HIDDEN * INNER // ranks] * 4
        weights = [4 * (HIDDEN * INNER + INNER) // ranks, 4 * (HIDDEN * INNER // ranks + (HIDDEN if ranks == 1 else 0))]
        assert [op["weight_bytes"] for op in products] == weights * 2
        moved = [4 * ROWS * (HIDDEN + INNER // ranks) + bytes_of for bytes_of in weights * 2]
        assert [op["bytes"] for op in products] == moved
        collectives = [op["collective"] for op in rank["ops"] if "collective" in op]
        assert [entry["bytes"] for entry in collectives] == ([] if ranks == 1 else [4 * ROWS * HIDDEN] * 2)
        why = json.loads(accord("plan", "why", "all_reduce", 4 * ROWS * HIDDEN, "-n", 2, "--json").stdout)
        assert {entry["algorithm"] for entry in collectives} <= {why["algorithm"]}


def test_a_report_lists_fused_ops(package):
    (rank,) = report_of(package)["ranks"]
    fused = [op for op in rank["model"] if op["op"] == "aten.gelu.default"]
    assert [op["runs"] for op in fused] == ["fused", "fused"]
    for op in fused:
        into = rank["ops"][op["in"]]
        assert into["op"] == "accord.linear"
        assert sorted(rank["model"][part]["op"] for part in into["of"]) == ["aten.gelu.default", "aten.linear.default"]
    assert {op["runs"] for op in rank["ops"]} == {"step"}


def test_arena_pieces_with_overlapping_lifetimes_do_not_overlap(llama):
    (rank,) = report_of(llama, "--tokens", 9)["ranks"]
    assert rank["sizes"]["tokens"] == 9
    assert len(rank["arena"]) > 20
    for piece in rank["arena"]:
        assert 0 <= piece["first"] <= piece["last"]
        assert piece["offset"] + piece["bytes"] <= rank["arena_bytes"]
    for one, other in itertools.combinations([piece for piece in rank["arena"] if piece["bytes"]], 2):
        if one["first"] <= other["last"] and other["first"] <= one["last"]:
            assert (
                one["offset"] + one["bytes"] <= other["offset"] or other["offset"] + other["bytes"] <= one["offset"]
            ), (one, other)


def test_a_report_of_a_run_has_times_a_table_and_a_chart(llama, tmp_path):
    report = report_of(llama, "-n", 2, "--run", "--repeat", 2, "--chart", tmp_path / "chart.svg")
    for rank in report["ranks"]:
        steps = [op for op in rank["ops"] if op["runs"] == "step"]
        assert all(op["seconds"] > 0 for op in steps)
        assert sum(op["seconds"] for op in steps) <= rank["seconds"]
    chart = ElementTree.parse(tmp_path / "chart.svg")
    titles = [title.text for title in chart.iter("{http://www.w3.org/2000/svg}title")]
    assert any("accord.rms_norm model.layers.0.input_layernorm" in title for title in titles)
    assert sum(title.startswith("shard: ") for title in titles) == 2
    table = accord("engine", "report", llama, "--ranks", 2).stdout
    assert re.search(r"accord\.all_reduce.* of 256 B on 2 ranks of tp: \w+", table)
    assert "accord.rms_norm = aten.pow" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "rws=3"], 'unknown size "rws"; did you mean "rows"?'),
        (["--sizes", "rows=101"], "rows is 101, expected 1 to 100"),
        (["--sizes", "rows"], "expected name=value"),
        (["-n", "5"], "4 units"),
        (["-n", "2", "--group", "xx"], 'unknown group "xx"'),
    ],
)
def test_an_impossible_report_gives_the_reason(package, arguments, message):
    result = accord("engine", "report", package, *arguments)
    assert result.returncode == 1
    assert message in result.stderr


def test_an_engine_reports_itself_in_python(package):
    with accord_package.load(package) as engine:
        expected = report_of(package, "--sizes", "rows=3")["ranks"][0]
        assert engine.report({"rows": 3}) == expected


def check_trace(text: str, ranks: int, runs: int, collectives: int) -> None:
    events = json.loads(text)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len({event["pid"] for event in slices}) == ranks
    assert sum(event["cat"] == "run" for event in slices) == ranks * runs
    collective_events = [event for event in slices if event["cat"] == "collective"]
    assert len(collective_events) == ranks * runs * collectives
    for process in {event["pid"] for event in slices}:
        times = sorted(
            (event["ts"], event["dur"]) for event in slices if event["pid"] == process and event["cat"] != "run"
        )
        assert all(a[0] + a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(times))
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == (ranks - 1) * runs * collectives
    for number, begin in begins.items():
        end = ends[number]
        assert begin["pid"] != end["pid"]
        (last,) = [event for event in collective_events if event["pid"] == begin["pid"] and event["ts"] == begin["ts"]]
        same = [event for event in collective_events if event["args"]["call"] == last["args"]["call"]]
        assert last["ts"] == max(event["ts"] for event in same)
        assert any(e["pid"] == end["pid"] and e["ts"] <= end["ts"] <= e["ts"] + e["dur"] + 1e-3 for e in same)


def test_a_trace_of_two_ranks_shows_their_steps_side_by_side(package, tmp_path):
    save_file({"input": np.ones((ROWS, HIDDEN), np.float32)}, tmp_path / "x.safetensors")
    command = [ACCORD, "engine", "run", package, "--inputs", tmp_path / "x.safetensors", "--repeat", 3]
    result = accord("run", "-n", 2, *command, "--trace", tmp_path / "trace.json")
    assert result.returncode == 0, result.stderr
    check_trace((tmp_path / "trace.json").read_text(), ranks=2, runs=3, collectives=2)


def test_a_context_traces_from_the_request_on(package):
    with accord_package.load(package) as engine:
        context = engine.create_context()
        x = np.ones((ROWS, HIDDEN), np.float32)
        context.run(x)
        context.start_trace()
        for _ in range(2):
            context.run(x)
        check_trace(context.trace(), ranks=1, runs=2, collectives=0)


BROKEN = {"mlp": "1.up", "llama": "model.layers.1.self_attn.v_proj"}


def break_weight(model: torch.nn.Module, module: str) -> torch.nn.Module:
    with torch.no_grad():
        model.get_submodule(module).weight[3] += 0.5
    return model


def compared(ranks: int, make_model, path: Path, inputs: torch.Tensor, broken: str | None) -> list:
    """Compares the model with the package on ranks that are threads, and returns the result of each rank."""
    store = accord_package.MemoryStore()
    models = [make_model() if broken is None else break_weight(make_model(), broken) for _ in range(ranks)]

    def compare(rank: int):
        with accord_package.Communicator.create(store, rank, ranks, timeout=60) as comm:
            groups = {"tp": comm} if ranks > 1 else None
            return accord_package.compare(models[rank], path, inputs, groups=groups)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(compare, range(ranks)))


@pytest.mark.parametrize("ranks", [1, 2, 4])  # with 4, two ranks share each of Llama's two key heads
@pytest.mark.parametrize("name", BROKEN)
def test_a_comparison_names_the_module_whose_weight_was_changed(package, llama, name, ranks):
    path, make_model, inputs = {
        "mlp": (package, make_mlp, torch.randn(ROWS, HIDDEN)),
        "llama": (llama, make_small_llama, torch.arange(20) % 160),
    }[name]
    for found in compared(ranks, make_model, path, inputs, None):
        assert found.first_deviation is None
        assert len(found.modules) > 3
        assert found.modules[-1].module in ("", "lm_head")
        assert "modules agree" in str(found)
    for found in compared(ranks, make_model, path, inputs, BROKEN[name]):
        first = found.first_deviation
        assert BROKEN[name] in (first.module, *first.unseen)
        assert found.modules[-1].deviates
        assert found.to_json()["first_deviation"] == first.module


def compared_on_devices(_, library_path, path, ranks, broken):
    import torch
    from host_devices import library, on_thread_ranks
    from small_llama import make_small_llama

    import accord

    library(library_path)
    models = [make_small_llama() for _ in range(ranks)]
    with torch.no_grad():
        for model in models:
            if broken is not None:
                model.get_submodule(broken).weight[3] += 0.5
    found = {}

    def body(comm, rank):
        with accord.load(path, {"tp": comm}, device=f"cuda:{rank}") as engine:
            found[rank] = accord.compare(models[rank], engine, torch.arange(20) % 160).to_json()

    on_thread_ranks(ranks, body)
    return list(found.values())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_comparison_on_devices_names_the_changed_module(llama, ranks, torch_device_process):
    for found in torch_device_process(compared_on_devices, str(llama), ranks, None):
        assert found["first_deviation"] is None
        assert len(found["modules"]) > 10
    for found in torch_device_process(compared_on_devices, str(llama), ranks, BROKEN["llama"]):
        (first,) = [entry for entry in found["modules"] if entry["module"] == found["first_deviation"]]
        assert BROKEN["llama"] in (first["module"], *first["unseen"])


@pytest.mark.parametrize(
    ("group", "message"), [("pp", "a stage of a pipeline"), ("dp", "a replica with a part of the batch")]
)
def test_stages_and_replicas_are_not_compared(package, group, message):
    engine = accord_package.Engine.load(package, {group: (0, 2)})
    with pytest.raises(accord_package.InvalidArgument, match=f"this rank has {message} .* the same without"):
        accord_package.compare(make_mlp(), engine, torch.randn(ROWS, HIDDEN))


@pytest.mark.slow
def test_the_compare_command_on_two_ranks_names_the_changed_module(llama, tmp_path):
    break_weight(make_small_llama(), BROKEN["llama"]).save_pretrained(tmp_path / "wrong")
    command = [*RUN_TO_COMPLETION, ACCORD, "engine", "compare", llama, "--model", tmp_path / "wrong", "--json"]
    result = accord("run", "-n", 2, "--grace", 20, *command, timeout=120)
    assert result.returncode == 1, result.stderr
    facts = json.loads(result.stdout.removeprefix("[0] "))
    assert facts["first_deviation"] == BROKEN["llama"]


@pytest.mark.slow
def test_compare_accepts_a_model_from_a_python_file_and_inputs_from_a_file(package, tmp_path):
    save_file({"input": np.ones((ROWS, HIDDEN), np.float32)}, tmp_path / "x.safetensors")
    file = python_file(
        tmp_path,
        f"import sys\nsys.path[:0] = {[SUPPORT, str(Path(__file__).parent)]}\nfrom test_report import make_mlp\n",
    )
    command = ["engine", "compare", package, "--model", f"{file}:make_mlp", "--inputs", tmp_path / "x.safetensors"]
    result = accord(*command)
    assert result.returncode == 0, result.stderr
    assert "modules agree" in result.stdout
    refused = accord(*command, "--memory-limit", "2KiB", "--canonical-ranks", 4, "--threads", 2)
    assert refused.returncode == 1
    assert "the limit is 2 KiB" in refused.stderr
    refused = accord(*command, "--device", "gpu")
    assert (refused.returncode, "does not exist; expected cpu, cuda, cuda:0" in refused.stderr) == (1, True)
    refused = accord(*command, "--all-reduce-dtype", "int3")
    assert (refused.returncode, 'unknown dtype "int3"' in refused.stderr) == (1, True)
    with pytest.raises(ValueError, match="no module of this model"):
        accord_package.compare(torch.nn.Flatten(0), package, torch.ones(2, HIDDEN))
