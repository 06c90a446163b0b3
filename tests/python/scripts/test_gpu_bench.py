"""The benchmark `gpu`: the lines and rules that follow from figures, and its programs on the tests' devices. The last
test starts every stage of scripts/test-gpu in this way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import BUILD, ROOT
from host_devices import LIBRARY

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_checks

from bench.gpu import __main__ as driver
from bench.gpu import lines

DEVICES = BUILD / "tests" / LIBRARY


def figure(what: str, size: int, by: str, device: float, ranks: int = 2) -> dict:
    return {"ranks": ranks, "as": "GPUs", "what": what, "bytes": size, "by": by, "device_us": device, "host_us": 1.0}


def test_the_rule_names_the_fastest_at_each_size():
    times = {
        1024: {"packet": 5.0, "two_shot": 9.0, "nccl": 12.0},
        16384: {"packet": 8.0, "two_shot": 9.0, "nccl": 12.0},
        65536: {"packet": 20.0, "two_shot": 10.0, "nccl": 12.0},
        1 << 20: {"two_shot": 30.0, "nccl": 20.0},
        3 << 20: {"two_shot": 90.0, "nccl": 50.0},
    }
    figures = [
        figure("all_reduce of bfloat16" + lines.IN_GRAPH, size, by, time)
        for size, each in times.items()
        for by, time in each.items()
    ]
    figures.append(figure("all_reduce of bfloat16", 1024, "nccl", 1.0))  # without a graph: its caller is in it
    assert lines.rule_of(figures) == "all_reduce[memory=cuda,ranks=2-2]:0-64k=packet,64k-1m=two_shot,1m-inf=nccl"
    made = {line["case"]: line for line in lines.of_thresholds(figures)}
    line = made["2 GPUs, all_reduce of bfloat16, in a graph, 65536 B, on the GPU, two_shot"]
    assert (line["accord"], line["peers"], line["ratio"]) == (10.0, {"nccl": 12.0}, 1.2)
    assert line["bounds"] == {"packet": 20.0, "two_shot": 10.0}
    assert line["rule"] == lines.rule_of(figures)
    assert lines.rule_of(figures[-1:]) is None
    assert lines.of_thresholds(figures[-1:]) == []


def test_a_copy_is_a_bound_and_not_a_peer():
    figures = [figure("dispatch", 512, by, time) for by, time in (("accord", 8.0), ("copy", 2.0), ("nccl", 16.0))]
    on_gpu, on_host = lines.of_calls(figures)
    assert on_gpu["peers"] == {"nccl": 16.0}
    assert on_gpu["bounds"] == {"copy": 2.0}
    assert on_host["case"] == "2 GPUs, dispatch, 512 B, on the host"
    assert lines.of_calls([figure("dispatch", 512, "copy", 2.0)]) == []


def test_sizes_are_written_as_in_selection_tables():
    assert [lines.text_of(size) for size in (0, 8, 1024, 1536, 65536, 1 << 20, 16 << 20)] == [
        "0",
        "8",
        "1k",
        "1536",
        "64k",
        "1m",
        "16m",
    ]


def needs_cuda() -> None:
    if not (BUILD / "bin/bench_gpu").exists():
        pytest.skip("this build is without CUDA")


def bench(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    output = folder / "gpu.json"
    command = [sys.executable, "-m", "bench.gpu", "--build", str(BUILD), "--output", str(output), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False), output


@pytest.mark.parametrize("part", driver.PARTS)
def test_each_part_runs_on_the_tests_devices(part, tmp_path, monkeypatch):
    needs_cuda()
    monkeypatch.setenv("ACCORD_NCCL", str(DEVICES))
    ended, output = bench(tmp_path, "--parts", part, "--devices", str(DEVICES), "--quick")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    measured = json.loads(output.read_text())
    peers = {peer for line in measured for peer in line["peers"]}
    assert (
        peers == {"sums": {"two kernels"}, "thresholds": {"nccl"}, "moe": {"nccl all_to_all"}, "calls": {"nccl"}}[part]
    )
    if part == "thresholds":
        plans = set(measured[0]["bounds"])
        assert {"packet", "two_shot", "one_shot"} <= plans
        assert measured[0]["rule"].startswith("all_reduce[memory=cuda,ranks=2-2]:0-")
        assert measured[0]["rule"] in ended.stdout
    if part == "moe":
        assert {"copy"} == {bound for line in measured for bound in line["bounds"]}


def test_without_time_nothing_is_measured_and_it_is_named(tmp_path):
    needs_cuda()
    ended, output = bench(tmp_path, "--seconds", "1", "--devices", str(DEVICES), "--quick")
    assert ended.returncode == 0
    assert "left out: sums of 2: the time is over" in ended.stdout
    assert not output.exists()


@pytest.mark.slow
def test_every_stage_starts_without_a_gpu(tmp_path):
    """A misspelled option or a missing program does not wait for a machine with a GPU to be found."""
    needs_cuda()
    pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "scripts/gpu_checks.py"), "--tests", str(BUILD / "tests")]
    command += ["--programs", str(BUILD / "bin"), "--module", str(BUILD / "python"), "--output", str(tmp_path)]
    command += ["--rehearse", str(DEVICES), "--minutes", "20"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    outcomes = {stage["name"]: stage["outcome"] for stage in report["stages"]}
    if outcomes["sanitizer"].startswith("left out: there is no compute-sanitizer"):
        outcomes["sanitizer"] = "ok"
    assert set(outcomes.values()) == {"ok"}, outcomes
    assert list(outcomes) == [stage.name for stage in gpu_checks.STAGES]
    assert set(report["figures"]) == {"sums", "llama", "thresholds", "moe", "calls"}
