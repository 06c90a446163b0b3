"""A machine with a GPU for tests of scripts/test-gpu: fake programs in place of the tests, the benchmark and
nvidia-smi."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import gpu_run

# A GoogleTest program. The names of its suites describe their behaviour.
PROGRAM = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
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
    if "LEAVES_A_PROCESS" in os.environ:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", __file__], start_new_session=True)
    open(__file__ + ".hangs", "w").close()
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
QUICK_PROGRAM = PROGRAM.replace("CudaHangs.\\n  one\\n", "")

BENCHMARK = f"""#!{sys.executable}
import json, os, sys
if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "32":
    sys.exit("too few connections")
if "--look" in sys.argv:
    print("A GPU, 80 GiB")
    sys.exit()
print("a line of NCCL's")
part, ranks = sys.argv[1], int(sys.argv[2])
if part == "--experts" and ranks > 1:
    print("bench_gpu: skipped: expert groups need a GPU for each", file=sys.stderr)
    sys.exit(77)
call = {{"ranks": ranks, "as": "threads", "bytes": 1024, "device_us": 4.0, "host_us": 2.5}}
for what, by in (("all_reduce", "accord"), ("all_reduce", "nccl")):
    print(json.dumps({{**call, "what": what + ", in a graph", "by": "packet" if part == "--thresholds" else by}}))
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


def make_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, and a PATH with a GPU in it."""
    program(folder / "path/nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.1, 80 GiB'\n")
    monkeypatch.setenv("PATH", f"{folder / 'path'}:{os.environ['PATH']}")
    monkeypatch.delenv("OUT", raising=False)
    program(folder / "tests/accord_unit_some_test", PROGRAM)
    program(folder / "bin/bench_gpu", BENCHMARK)
    return folder


def check(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/gpu_checks.py"), "--tests", str(folder / "tests")]
    command += ["--programs", str(folder / "bin"), "--output", str(folder / "report"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def report_of(folder: Path) -> dict:
    return json.loads((folder / "report/report.json").read_text())


def outcomes_of(folder: Path) -> dict[str, str]:
    return {stage["name"]: stage["outcome"] for stage in report_of(folder)["stages"]}


def context_of(folder: Path, **more) -> gpu_run.Context:
    (folder / "logs").mkdir()
    return gpu_run.Context(folder / "tests", folder / "bin", folder / "logs", dict(os.environ), **more)


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/test-gpu"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
