"""Runs of scripts/test-gpu and of scripts/gpu_checks.py, as far as they work without a GPU."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from accord_command import BUILD, ROOT
from gpu_machine import BLIND, QUICK_PROGRAM, check, make_machine, outcomes_of, program, report_of, script

sys.path.insert(0, str(ROOT / "scripts"))

import gpu_checks
import gpu_report
import gpu_stages


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return make_machine(tmp_path, monkeypatch)


def test_without_a_gpu_the_exit_code_is_77_and_the_reason_is_printed(tmp_path, monkeypatch):
    program(tmp_path / "path/nvidia-smi", "#!/bin/sh\necho 'it sees no driver'\nexit 9\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    ended = check(tmp_path)
    assert ended.returncode == gpu_checks.NO_GPU == 77
    assert "no NVIDIA GPU: it sees no driver; nothing was checked" in ended.stdout
    assert not (tmp_path / "report").exists()
    for options in ((), ("--only", "llama,calls")):
        ended = script(*options)
        assert ended.returncode == 77
        assert "no NVIDIA GPU" in ended.stdout


def test_the_benchmark_prints_why_it_measures_nothing():
    benchmark = BUILD / "bin/bench_gpu"
    if not benchmark.exists():
        pytest.skip("this build is without CUDA")
    if gpu_checks.gpus()[0]:
        pytest.skip("here is a GPU")
    ended = subprocess.run([benchmark], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == gpu_checks.NO_GPU
    assert "bench_gpu: skipped: " in ended.stderr
    driver = [sys.executable, "-m", "bench.gpu", "--build", str(BUILD)]
    driven = subprocess.run(driver, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert driven.returncode == 0
    assert "bench_gpu: skipped: " in driven.stderr
    for wrong in (("--rank", "2"), ("--threads", "0"), ("--threads", "two"), ("--experts",)):
        ended = subprocess.run([benchmark, *wrong], capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        assert "usage: bench_gpu" in ended.stderr or "--threads must be from 1 to 64" in ended.stderr


def test_unknown_options_and_stages_are_named():
    ended = script("--fast")
    assert ended.returncode == 1
    assert 'unknown option "--fast"; there are --only, --rehearse, --pack and --stages' in ended.stderr
    assert "--only needs a stage" in script("--only").stderr
    ended = script("--only", "llama,lama")
    assert ended.returncode == 2
    assert 'there is no stage "lama"; there are look, devices, ' in ended.stderr


def test_the_stages_are_listed_with_their_times():
    listed = script("--stages")
    assert listed.returncode == 0
    for stage in gpu_stages.STAGES:
        assert re.search(rf"^{stage.name} +{stage.seconds} s  {re.escape(stage.what)}$", listed.stdout, re.MULTILINE)
    assert "scripts/test-gpu [--only STAGE,... | --rehearse | --pack | --stages]" in script("--help").stdout


def test_the_report_has_counts_and_figures(machine, monkeypatch):
    program(machine / "tests/accord_unit_some_test", QUICK_PROGRAM)
    monkeypatch.setenv("OUT", str(machine / "copies/here"))
    ended = check(machine, "--origin", "a pack")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    report = report_of(machine)
    assert report["gpus"] == ["A GPU, 580.1, 80 GiB"]
    assert report["passed"] == 5  # CudaPasses and four parts of the benchmark
    assert len(report["failed"]) == 2
    assert list(report["figures"]) == ["sums", "thresholds", "moe", "calls"]
    assert outcomes_of(machine)["torch"] == "left out: there is no Python module"
    assert outcomes_of(machine)["moe"] == "ok"
    text = (machine / "report/report.md").read_text()
    assert "5 passed, 2 failed, 1 skipped" in text
    assert "- programs: a pack\n" in text
    assert "## Sums and norms between ranks that share the GPU\n" in text
    assert "| 2 threads, all_reduce, in a graph, 1024 B, on the GPU | us | 4.000 | 4.000 | 1.000 |" in text
    assert "    all_reduce[memory=cuda,ranks=2-2]:0-inf=packet\n" in text
    assert "[1/16] look: accord sees the GPU, and a kernel runs on it (up to 15 s)\n" in ended.stdout
    assert "    Ranks/CudaFails: 1 failed (0 s)\n" in ended.stdout
    copies = sorted(path.name for path in (machine / "copies/here").iterdir())
    assert copies == sorted(gpu_report.FILES)
    with tarfile.open(machine / "copies/here/logs.tar.gz") as logs:
        assert {"logs/look.log", "logs/accord_unit_some_test.CudaPasses.log"} <= set(logs.getnames())


def test_one_stage_runs_alone_and_nothing_of_an_earlier_run_is_left(machine):
    program(machine / "tests/accord_unit_some_test", QUICK_PROGRAM)
    (machine / "report").mkdir()
    (machine / "report/report.md").write_text("of another run")
    ended = check(machine, "--only", "calls")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes_of(machine) == {"look": "ok", "calls": "ok"}
    assert list(report_of(machine)["figures"]) == ["calls"]
    assert "of another run" not in (machine / "report/report.md").read_text()


def processes_with(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in entry.read_bytes().decode(errors="replace"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_processes_and_leaves_a_report(machine, monkeypatch, number):
    monkeypatch.setenv("LEAVES_A_PROCESS", "")
    program_path = machine / "tests/accord_unit_some_test"
    command = [sys.executable, str(ROOT / "scripts/gpu_checks.py"), "--tests", str(machine / "tests")]
    command += ["--programs", str(machine / "bin"), "--output", str(machine / "report"), "--only", "rest,calls"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as checks:
        until = time.monotonic() + 60
        while not Path(f"{program_path}.hangs").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert len(processes_with(str(program_path))) >= 2
        checks.send_signal(number)
        output, _ = checks.communicate(timeout=60)
    assert checks.returncode == 128 + number
    assert f"interrupted by {number.name}; " in output
    assert not processes_with(str(program_path))
    assert outcomes_of(machine) == {"look": "ok", "calls": "ok", "rest": "interrupted"}
    assert "CudaHangs" not in "".join(report_of(machine)["failed"])


def test_a_command_that_takes_too_long_ends_with_everything_that_it_started(machine, monkeypatch):
    monkeypatch.setenv("LEAVES_A_PROCESS", "")
    program_path = machine / "tests/accord_unit_some_test"
    text = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import gpu_run
gpu_run.raise_when_interrupted()
ended = gpu_run.run([{str(program_path)!r}, "--gtest_filter=CudaHangs.*"], 3)
print(ended.code, "CudaHangs.one" in ended.output)
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "None True\n", ended.stderr
    assert Path(f"{program_path}.hangs").exists()
    assert not processes_with(str(program_path))


def test_a_gpu_that_accord_does_not_see_is_a_failure_and_not_a_skip(machine):
    program(machine / "path/nvidia-smi", "#!/bin/sh\necho 'A GPU, 550.54, 80 GiB'\n")
    program(machine / "bin/bench_gpu", BLIND)
    ended = check(machine)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert report_of(machine)["gpus"] == ["A GPU, 550.54, 80 GiB"]
    outcomes = outcomes_of(machine)
    assert outcomes.pop("look") == "failed"
    assert set(outcomes.values()) == {"not run"}
    assert "accord's programs do not see the GPU" in ended.stdout
    assert "needs driver 580 or newer" in ended.stdout
    (machine / "bin/bench_gpu").unlink()
    assert "there is no " in check(machine).stdout


def test_stages_that_do_not_fit_into_the_time_are_skipped_and_named(machine):
    ended = check(machine, "--minutes", "0.05")
    assert ended.returncode == 0
    assert set(outcomes_of(machine).values()) == {"left out: the time was over"}


def test_running_no_suite_is_a_failure(machine):
    program(machine / "tests/accord_unit_some_test", "#!/bin/sh\nprintf 'Plain.\\n  one\\n'\n")
    ended = check(machine, "--only", "devices")
    assert ended.returncode == 1
    assert "no suite with Cuda in its name was found" in ended.stdout


def test_libraries_of_the_machine_take_precedence(tmp_path):
    for name in ("libc.so.6", "libaccord_nobody_has.so.0"):
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / name).write_bytes(b"")
    assert [path.name for path in gpu_checks.lacking(tmp_path / "lib").iterdir()] == ["libaccord_nobody_has.so.0"]
