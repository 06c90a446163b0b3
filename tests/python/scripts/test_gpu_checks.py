"""scripts/test-gpu and the modules that it calls, as far as they work without a GPU. Fake programs replace the tests
and nvidia-smi."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import cuda_ranks
import pytest
from accord_command import BUILD, ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import gpu_checks
import gpu_pack
import gpu_report

# A GoogleTest program. The names of its suites describe their behaviour.
PROGRAM = f"""#!{sys.executable}
import os, signal, sys, time
options = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:] if "=" in argument)
if "--gtest_list_tests" in sys.argv:
    print("Running main() from somewhere")
    print("Plain.\\n  one\\nCudaPasses.\\n  one\\n  two\\nRanks/CudaFails.\\n  one/of_2  # GetParam() = 2\\nCudaSkips.\\n  one")
    print("CudaHangs.\\n  one\\nCudaCrashes.\\n  one")
    sys.exit()
suite = options["gtest_filter"].removesuffix(".*")
if suite == "CudaHangs":
    print("[ RUN      ] CudaHangs.before\\n[       OK ] CudaHangs.before (0 ms)")
print("[ RUN      ]", suite + ".one", flush=True)
if suite == "CudaHangs":
    time.sleep(600)
if suite == "CudaCrashes":
    os.kill(os.getpid(), signal.SIGSEGV)
inside = {{
    "Ranks/CudaFails": '<failure message="1 is not 2"/>',
    "CudaSkips": '<skipped message="there is no second GPU"/>',
}}.get(suite, "")
case = f'<testcase name="one" classname="{{suite}}" status="run">{{inside}}</testcase>'
report = options["gtest_output"].removeprefix("xml:")
open(report, "w").write(f"<testsuites><testsuite>{{case}}</testsuite></testsuites>")
sys.exit(suite == "Ranks/CudaFails")
"""

BENCHMARK = f"""#!{sys.executable}
import json, os, sys
if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "32":
    sys.exit("too few connections")
if "--look" in sys.argv:
    print("A GPU, 80 GiB")
    sys.exit()
print("a line of NCCL's")
ranks = {{"ranks": int(sys.argv[2]), "as": "processes" if sys.argv[1] == "--ranks" else "threads"}}
print(json.dumps({{**ranks, "what": "all_reduce", "bytes": 1024, "by": "accord", "device_us": 4.0, "host_us": 2.5}}))
"""

# bench_gpu on a machine whose driver is too old.
BLIND = """#!/bin/sh
echo "bench_gpu: skipped: the NVIDIA driver supports CUDA up to 12.4, but this build uses CUDA 13.0, which needs driver 580 or newer" >&2
exit 77
"""

# The benchmark gpu_engine. The time that it is given is its result.
ENGINE = """
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
line = {"name": "gpu_engine", "case": "decode, batch 1", "unit": "ms", "accord": float(options["--seconds"]), "limit": None}
open(options["--output"], "w").write(json.dumps([line | {"peers": {"torch eager": 9.0}, "ratio": 3.5}]))
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder of programs, and a PATH with a GPU in it."""
    program(tmp_path / "path/nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.1, 80 GiB'\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    program(tmp_path / "tests/accord_unit_some_test", PROGRAM)
    program(tmp_path / "bin/bench_gpu", BENCHMARK)
    return tmp_path


def check(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/gpu_checks.py"), "--tests", str(folder / "tests")]
    command += ["--programs", str(folder / "bin"), "--output", str(folder / "report"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def checks_of(folder: Path, seconds: float, **more) -> gpu_checks.Checks:
    (folder / "report").mkdir()
    until = time.monotonic() + seconds
    return gpu_checks.Checks(folder / "tests", folder / "bin", folder / "report", dict(os.environ), until, **more)


def test_without_a_gpu_the_exit_code_is_77_and_the_reason_is_printed(tmp_path, monkeypatch):
    program(tmp_path / "path/nvidia-smi", "#!/bin/sh\necho 'it sees no driver'\nexit 9\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    ended = check(tmp_path)
    assert ended.returncode == gpu_checks.NO_GPU == 77
    assert "no NVIDIA GPU: it sees no driver; nothing was checked" in ended.stdout
    assert not (tmp_path / "report").exists()
    script = subprocess.run([str(ROOT / "scripts/test-gpu")], capture_output=True, text=True, timeout=60, check=False)
    if not (ROOT / "build/gpu.tar.xz").exists():
        assert script.returncode == 77
        assert "no NVIDIA GPU" in script.stdout


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
    wrong = subprocess.run([benchmark, "--rank", "2"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 1
    assert "usage: bench_gpu" in wrong.stderr


def test_an_unknown_option_is_named():
    ended = subprocess.run(
        [str(ROOT / "scripts/test-gpu"), "--fast"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert 'unknown option "--fast"; there is --pack' in ended.stderr


def test_suites_are_selected_by_name_and_a_hang_or_crash_does_not_affect_others(machine, monkeypatch):
    monkeypatch.setattr(gpu_checks, "SUITE_SECONDS", 2)
    checks = checks_of(machine, 60)
    assert checks.run_suites() == "failed"
    assert checks.tally.passed == 2  # CudaPasses, and the test that had ended before CudaHangs hung
    failed = "\n".join(checks.tally.failed)
    assert len(checks.tally.failed) == 3
    assert "Ranks/CudaFails" in failed
    assert "1 is not 2" in failed
    assert "CudaHangs\n    took more than 2 s in CudaHangs.one" in failed
    assert "CudaCrashes\n    exit code 139 in CudaCrashes.one" in failed
    assert checks.tally.skipped == ["accord_unit_some_test: CudaSkips.one: there is no second GPU"]


def test_the_report_has_counts_and_figures(machine):
    hangs = PROGRAM.replace("CudaHangs.\\n  one\\n", "")
    assert hangs != PROGRAM
    program(machine / "tests/accord_unit_some_test", hangs)
    ended = check(machine, "--minutes", "1")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    report = json.loads((machine / "report/report.json").read_text())
    assert report["gpus"] == ["A GPU, 580.1, 80 GiB"]
    assert report["passed"] == 1
    assert len(report["failed"]) == 2
    assert [figure["ranks"] for figure in report["figures"]] == [1, 2, 2, 4]
    assert {stage["name"]: stage["outcome"] for stage in report["stages"]}["torch tensors"] == (
        "left out: there is no Python module"
    )
    text = (machine / "report/report.md").read_text()
    assert "1 passed, 2 failed, 1 skipped" in text
    assert "| 2 threads | all_reduce | 1024 | accord | 4.00 | 2.50 | 0.26 |" in text


def test_a_gpu_that_accord_does_not_see_is_a_failure_and_not_a_skip(machine):
    program(machine / "path/nvidia-smi", "#!/bin/sh\necho 'A GPU, 550.54, 80 GiB'\n")
    program(machine / "bin/bench_gpu", BLIND)
    ended = check(machine, "--minutes", "1")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    report = json.loads((machine / "report/report.json").read_text())
    assert report["gpus"] == ["A GPU, 550.54, 80 GiB"]
    assert [stage["outcome"] for stage in report["stages"]] == ["failed"]
    assert "accord's programs do not see the GPU" in ended.stdout
    assert "needs driver 580 or newer" in ended.stdout
    (machine / "bin/bench_gpu").unlink()
    assert "there is no " in check(machine, "--minutes", "1").stdout


def test_the_engine_benchmark_has_its_own_time_and_a_table_in_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_checks, "ROOT", tmp_path)
    program(tmp_path / "bench/gpu_engine/__main__.py", ENGINE)
    checks = checks_of(tmp_path, 60.5, module=tmp_path)
    checks.stage("engines", checks.run_engine)
    assert (checks.stages[0].outcome, checks.tally.passed) == ("ok", 1)
    report = checks.report(["A GPU"], 1.0)
    assert 45 <= report["engine"][0]["accord"] <= 60.5 - gpu_checks.ENDING_SECONDS
    text = gpu_report.markdown_of(report | {"engine": [report["engine"][0] | {"accord": 2.5}]})
    assert "| | unit | accord | torch eager | ratio |\n|---|---|---|---|---|\n" in text
    assert "| decode, batch 1 | ms | 2.500 | 9.000 | 3.500 |" in text
    program(tmp_path / "bench/gpu_engine/__main__.py", "raise SystemExit('error: that is more than 0.05')")
    (tmp_path / "report/gpu_engine.json").unlink()
    assert checks.run_engine() == "failed"
    assert "exit code 1: error: that is more than 0.05" in checks.tally.failed[0]


def test_engines_are_skipped_with_a_reason(tmp_path, monkeypatch):
    checks = checks_of(tmp_path, 60)
    assert checks.run_torch() == checks.run_engine() == gpu_checks.NO_MODULE
    checks.module = tmp_path
    monkeypatch.setattr(gpu_checks, "ROOT", tmp_path)
    program(tmp_path / "bench/gpu_engine/__main__.py", "print('skipped: torch sees no GPU')")
    assert checks.run_engine() == "left out: torch sees no GPU"
    assert not checks.tally.failed


def test_tests_of_torch_are_skipped_if_python_lacks_their_requirements(tmp_path, monkeypatch):
    checks = checks_of(tmp_path, 60, module=tmp_path)
    for missing, why in (({"numpy"}, "no numpy"), ({"pytest", "numpy"}, "no pytest and no numpy")):
        monkeypatch.setattr(
            gpu_checks.importlib.util, "find_spec", lambda name, lacks=missing: name not in lacks or None
        )
        assert checks.run_torch() == f"left out: this Python has {why}"
    assert not checks.tally.failed


def test_programs_but_not_python_get_cublaslt_from_the_python_packages(machine, monkeypatch):
    library = machine / "packages/nvidia/cu13/lib/libcublasLt.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setenv("PYTHONPATH", str(machine / "packages"))
    monkeypatch.delenv("ACCORD_CUBLASLT", raising=False)
    program(machine / "bin/bench_gpu", "#!/bin/sh\necho library: $ACCORD_CUBLASLT\nexit 77\n")
    assert f"library: {library}\n" in check(machine, "--minutes", "1").stdout
    monkeypatch.setenv("ACCORD_CUBLASLT", "another")
    assert "library: another\n" in check(machine, "--minutes", "1").stdout
    monkeypatch.delenv("ACCORD_CUBLASLT")
    checks = gpu_checks.Checks(machine, machine, machine, dict(os.environ), time.monotonic() + 60)
    checks.libraries = {"ACCORD_CUBLASLT": "there"}
    checks.module = machine
    monkeypatch.setattr(gpu_checks, "ROOT", machine)
    program(machine / "bench/gpu_engine/__main__.py", "import os\nprint('skipped:', os.environ.get('ACCORD_CUBLASLT'))")
    assert checks.run_engine() == "left out: None"


def test_process_ranks_use_the_first_visible_gpu(monkeypatch):
    monkeypatch.setattr(cuda_ranks, "Ranks", lambda size, environment, **_: environment["CUDA_VISIBLE_DEVICES"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_ranks.started(2, "") == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5e2a,1")
    assert cuda_ranks.started(2, "") == "GPU-5e2a"


def test_the_shares_of_all_stages_fit_into_the_time():
    assert sum(gpu_checks.SHARES.values()) <= 9 * 60


def test_stages_that_do_not_fit_into_the_time_are_skipped_and_named(machine):
    ended = check(machine, "--minutes", "0.05")
    report = json.loads((machine / "report/report.json").read_text())
    assert ended.returncode == 0
    assert {stage["outcome"] for stage in report["stages"]} == {"left out: the time was over"}


def test_running_no_suite_is_a_failure(machine):
    program(machine / "tests/accord_unit_some_test", "#!/bin/sh\nprintf 'Plain.\\n  one\\n'\n")
    ended = check(machine, "--minutes", "1")
    assert ended.returncode == 1
    assert "no suite with Cuda in its name was found" in ended.stdout


def test_libraries_of_the_machine_take_precedence(tmp_path):
    for name in ("libc.so.6", "libaccord_nobody_has.so.0"):
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / name).write_bytes(b"")
    assert [path.name for path in gpu_checks.lacking(tmp_path / "lib").iterdir()] == ["libaccord_nobody_has.so.0"]


def test_the_packed_libraries_exclude_the_c_and_cpp_runtimes():
    found = gpu_pack.libraries_of(Path("/usr/bin/env"))
    assert not any(name.startswith(("libc.", "ld-")) for name in found)
