"""The benchmark `gpu_engine` on the CPU with all its measurements, without transformers and xxhash; and its model on
simulated devices."""
# ruff: noqa: F821 (names that ranks.py provides)

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accord_command import ROOT, clean_environment
from tiers import mostly_slow

pytestmark = pytest.mark.alone

torch = pytest.importorskip("torch")
sys.path.insert(0, str(ROOT))

from bench.gpu_engine import hashing, measurement, plain_llama  # noqa: E402

SMALL = "--device cpu --threads 1 --layers 2 --hidden 256 --vocabulary 1000 --context 40".split()
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("transformers", "xxhash", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def bench(folder: Path, *arguments: str, **more: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    (folder / "sitecustomize.py").write_text(WITHOUT)
    output = folder / "gpu_engine.json"
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = clean_environment(PYTHONPATH=path, OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", **more)
    command = [sys.executable, "-m", "bench.gpu_engine", "--output", str(output), *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    return ended, output


@pytest.mark.slow
def test_all_are_measured_on_the_cpu_and_have_equal_logits(tmp_path):
    ended, output = bench(tmp_path, *SMALL, "--steps", "6", "--rounds", "2", "--seconds", "1000", "--fp8", "weights")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = {(line["case"], line["unit"]): line for line in json.loads(output.read_text())}
    compiles = "left out" not in ended.stdout
    assert compiles or "left out: torch.compile, batch 1: " in ended.stdout
    steppers = {"accord", "torch eager"} | ({"torch.compile"} if compiles else set())
    weights = 4 * (1000 * 256 + 2 * (256 * 256 * 2 + 256 * 64 * 2 + 3 * 256 * 1024 + 2 * 256) + 256)
    outputs = 1000 + 2 * (2 * 256 + 2 * 64 + 2 * 1024 + 256)  # with a scale each
    fp8 = 1000 * 256 + 2 * (256 * 256 * 2 + 256 * 64 * 2 + 3 * 256 * 1024) + 4 * (outputs + 5 * 256)
    for batch in (1, 8):
        for name in (steppers | {"accord fp8"}) - {"torch eager"}:
            assert f"batch {batch}: logits of {name} and torch eager differ by " in ended.stdout
        values = {
            unit: {"accord": line["accord"], **line["peers"]}
            for (case, unit), line in lines.items()
            if case.startswith(f"decode, batch {batch}") and "fp8" not in case
        }
        device = values["GB/s"].pop("device")
        assert set(values) == {"ms", "tokens/s", "GB/s", "share"}
        of_cache = 2 * batch * 43.5 * 2 * 1 * 64 * 4  # 40 tokens of context, and 1 to 6 decoded ones
        for name in steppers:
            assert math.isclose(values["tokens/s"][name], batch * 1e3 / values["ms"][name])
            assert math.isclose(values["GB/s"][name], (weights + of_cache) / values["ms"][name] / 1e6, rel_tol=1e-6)
            assert math.isclose(values["share"][name], values["GB/s"][name] / device)
        assert all(set(each) == steppers for each in values.values())
        step, read = (
            lines[f"decode, batch {batch}, fp8{suffix}", unit] for suffix, unit in (("", "ms"), (", read", "GB/s"))
        )
        # The bytes read also include the frequencies.
        assert read["accord"] == pytest.approx((fp8 + of_cache) / step["accord"] / 1e6, rel=1e-3)
        assert step["peers"] == lines[f"decode, batch {batch}", "ms"]["peers"]
        rate = lines[f"prompts of 40, batch {batch}, rate", "tokens/s"]
        assert set(rate["peers"]) == steppers - {"accord"}
        assert rate["ratio"] == pytest.approx(rate["accord"] / max(rate["peers"].values()))
        assert not compiles or f"batch {batch}: logits of torch.compile, prompts and torch eager" in ended.stdout


@pytest.mark.slow
def test_torch_compile_is_skipped_with_the_reason_where_it_fails(tmp_path):
    few = ("--steps", "4", "--rounds", "1", "--batches", "1", "--seconds", "1000")
    ended, output = bench(tmp_path, *SMALL, *few, CXX="/of/nobody", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "left out: torch.compile, batch 1: " in ended.stdout
    assert "/of/nobody" in ended.stdout
    assert set(json.loads(output.read_text())[-1]["peers"]) == {"torch eager"}


@pytest.mark.slow
def test_slow_contenders_are_skipped_and_named(tmp_path):
    ended, output = bench(tmp_path, *SMALL, "--steps", "4", "--seconds", "0.1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "s are not enough to compile" in ended.stdout
    assert "left out: batch 8: the time is over" in ended.stdout
    assert {line["case"] for line in json.loads(output.read_text())} >= {"decode, batch 1", "prompts of 40, batch 1"}


def test_without_a_gpu_it_prints_the_reason_and_measures_nothing(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("here is a GPU")
    ended, output = bench(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout == "skipped: torch sees no GPU\n"
    assert not output.exists()
    ended, _ = bench(tmp_path, "--hidden", "300")
    assert ended.returncode == 2
    assert "--hidden must be a multiple of 256" in ended.stderr


def test_a_torch_with_a_different_cuda_is_reported_before_anything_is_loaded(monkeypatch):
    accord = pytest.importorskip("accord")
    parts = {"cuda": (True, "one"), "cublaslt": (False, "cuBLASLt was not found")}
    listed = [{"name": name, "available": there, "detail": detail} for name, (there, detail) in parts.items()]
    monkeypatch.setattr(accord, "info", lambda: {"parts": listed})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert measurement.why_not("cuda") == (
        "accord has no cuBLASLt, and torch is built for CUDA 12.8: cuBLASLt was not found"
    )
    listed[1]["available"] = True
    assert measurement.why_not("cuda") == ""


class Prompts:
    """A compiled contender whose prompts are `given`, or an error."""

    compiles_prompts = False

    def __init__(self, given):
        self.given = given

    def compile_prompts(self):
        self.compiles_prompts = True

    def keep_eager_prompts(self):
        self.compiles_prompts = False

    def prompt(self, _):
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def test_prompts_are_compiled_if_time_is_left_and_stay_eager_if_that_fails(capsys):
    batch = measurement.Batch(2, 4, 4, {}, {})
    right = torch.ones(2, 8)

    def compiles(given, left: float, later: int) -> bool:
        decoder = Prompts(given)
        budget = measurement.Budget(time.perf_counter() + left, compiling=10, later=later)
        measurement.compile_prompts(batch, decoder, right, 1e-3, budget)
        return decoder.compiles_prompts

    assert compiles(right, left=25, later=1)
    assert not compiles(right, left=15, later=1)
    assert "prompts, batch 2: the time is needed for other steps" in capsys.readouterr().out
    assert not compiles(ValueError("no compiler\nis here\nat all"), left=25, later=0)
    assert "prompts, batch 2: no compiler is here\n" in capsys.readouterr().out
    assert not compiles(right * 1.1, left=25, later=0)


def test_logits_that_differ_by_more_than_rounding_abort_the_benchmark():
    batch = measurement.Batch(2, 4, 4, {}, {})
    right = [torch.ones(2, 8)]
    assert measurement.check(batch, "accord", [torch.ones(2, 8) * 1.0001], right, 1e-3)
    for wrong in (torch.ones(2, 8) * 1.1, torch.full((2, 8), math.nan)):
        with pytest.raises(SystemExit, match="that is more than 0.001"):
            measurement.check(batch, "accord", [wrong], right, 1e-3)
        assert not measurement.check(batch, "torch.compile", [wrong], right, 1e-3)


def test_hashes_of_the_library_match_the_module(monkeypatch):
    xxhash = pytest.importorskip("xxhash")
    monkeypatch.setitem(sys.modules, "xxhash", None)
    hashing.provide()
    assert sys.modules["xxhash"] is not xxhash
    for count in (0, 1, 17, 240, 241, 100_000):
        data = bytes(i % 251 for i in range(count))
        for given in (data, memoryview(data), memoryview(bytearray(data))):
            assert sys.modules["xxhash"].xxh3_64_hexdigest(given) == xxhash.xxh3_64_hexdigest(data)


def run_on_device(_, path, root, package, dtype):
    import sys

    from host_devices import library

    library(path)
    sys.path.insert(0, root)
    import torch

    from bench.gpu_engine import contenders, measurement, plain_llama

    torch.set_num_threads(1)
    model = plain_llama.make(plain_llama.Sizes(256, 2, 1000), getattr(torch, dtype), "cpu")
    for size in (1, 8):
        batch = measurement.Batch(size, 12, measurement.COMPARED, {}, {})
        right = batch.logits(contenders.Torch(model, size, 16))
        with accord.load(package, device="cuda:0") as engine:
            given = batch.logits(contenders.Accord(engine, size, 16, dtype))
        measurement.check(batch, "accord", given, right, measurement.TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", mostly_slow(["float32", "bfloat16"], "bfloat16"))
def test_the_model_runs_on_devices_of_host_memory(dtype, tmp_path, device_process):
    model = plain_llama.make(plain_llama.Sizes(256, 2, 1000), getattr(torch, dtype), "cpu")
    package = plain_llama.export(model, tmp_path / "llama.accord")
    device_process(run_on_device, str(ROOT), str(package), dtype, deadline=200, torch=True)
