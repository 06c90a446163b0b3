"""Runs everything that needs a GPU and writes a report: gpu_checks.py --tests FOLDER --programs FOLDER --output
FOLDER and others; or only looks for a GPU.

Each stage has a time limit of its own, so that one that hangs does not cost another its time. The stages: whether
accord's programs see the GPU (otherwise all tests would skip, so this is a failure, and the end); the GoogleTest
suites with "Cuda" in their names, each in a process of its own; the smallest of them under compute-sanitizer; the
benchmark; the tests of torch tensors; and the benchmark of engines. Stages that do not fit into the time are left
out, and named. report.md and report.json in the output folder list what passed, failed and was skipped, and why, and
the figures.

Exits with 0 if nothing failed, 1 if something did, and 77 if there is no GPU, which is printed and leaves no report.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_report import Stage, markdown_of
from tally import Tally, why_program_failed

ROOT = Path(__file__).resolve().parent.parent
NO_GPU = 77
#: Maximum seconds for a single suite, and for whole stages.
SUITE_SECONDS = 45
LISTING_SECONDS = 20
SHARES = {"look": 20, "suites": 180, "sanitizer": 40, "benchmark": 45, "torch": 75, "engine": 105}
#: Part of an engine's share that its benchmark needs to finish.
ENDING_SECONDS = 10
#: Suites that are small enough for compute-sanitizer, which slows every kernel down.
SANITIZED = "CudaDevice.*:CudaRuntime.*"
#: Exceptions: compute-sanitizer runs kernels one after the other.
NOT_SANITIZED = "CudaDevice.a_new_kernel_starts_while_another_waits"
NO_MODULE = "left out: there is no Python module"
#: Modules for the tests of torch tensors: to run them, and imported by their ranks.
TESTS_NEED = ("pytest", "numpy")


@dataclass
class Ended:
    """How a command ended: its exit code, 128 + a signal, or None if it took too long; and its output."""

    code: int | None
    output: str
    seconds: float


def run(command: list[str], seconds: float, environment: dict[str, str] | None = None, cwd: Path = ROOT) -> Ended:
    """Never takes much longer than `seconds`: then the command and everything that it started are killed."""
    began = time.monotonic()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        cwd=cwd,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(seconds, 0.1))
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Ended(None, output, time.monotonic() - began)
    return Ended(code if code >= 0 else 128 - code, output, time.monotonic() - began)


def suites_in(listing: str) -> list[str]:
    """Returns the suites with "Cuda" in their names from --gtest_list_tests output, in the form that filters use."""
    names = [line.split("#")[0].strip().rstrip(".") for line in listing.splitlines() if line and not line[0].isspace()]
    return [name for name in names if "Cuda" in name and " " not in name]


@dataclass
class Checks:
    """One run. `until`: the time.monotonic() at which everything must be over."""

    tests: Path
    programs: Path
    output: Path
    environment: dict[str, str]
    until: float
    libraries: dict[str, str] = field(
        default_factory=dict
    )  # variables for C++ programs; Python uses the libraries that torch loads
    module: Path | None = None  # value of PYTHONPATH
    tally: Tally = field(default_factory=Tally)
    stages: list[Stage] = field(default_factory=list)
    figures: list[dict] = field(default_factory=list)
    engine: list[dict] = field(default_factory=list)  # lines of bench/report.py

    def left(self) -> float:
        return self.until - time.monotonic()

    def stage(self, name: str, work: Callable[[], str]) -> None:
        """Runs `work`, which returns how it ended, unless there is no time left."""
        began = time.monotonic()
        outcome = work() if self.left() > 5 else "left out: the time was over"
        self.stages.append(Stage(name, outcome, time.monotonic() - began))
        print(f"{name}: {outcome} ({self.stages[-1].seconds:.0f} s)", flush=True)

    def log(self, name: str, text: str) -> None:
        (self.output / f"{name.replace('/', '.')}.log").write_text(text)

    def run_program(self, command: list[str], seconds: float) -> Ended:
        """Runs a C++ program."""
        return run(command, seconds, self.environment | self.libraries)

    def report(self, devices: list[str], seconds: float) -> dict:
        return {
            "gpus": devices,
            "seconds": round(seconds, 1),
            "passed": self.tally.passed,
            "failed": self.tally.failed,
            "skipped": self.tally.skipped,
            "stages": [vars(stage) for stage in self.stages],
            "figures": self.figures,
            "engine": self.engine,
        }

    # C++

    def look(self) -> str:
        """Checks that accord's programs see the GPU that nvidia-smi reports: with a driver that is too old for CUDA,
        they would skip every test.
        """
        program = self.programs / "bench_gpu"
        failure = "accord's programs do not see the GPU"
        if not program.exists():
            self.tally.fail(failure, f"there is no {program}, which would say why")
            return "failed"
        ended = self.run_program([str(program), "--look"], min(SHARES["look"], self.left()))
        self.log("look", ended.output)
        if ended.code == 0:
            return "ok"
        end = "took too long" if ended.code is None else f"exit code {ended.code}"
        self.tally.fail(failure, why_program_failed(end, ended.output))
        return "failed"

    def run_suite(self, program: Path, suite: str, seconds: float) -> None:
        name = f"{program.name}.{suite}".replace("/", ".")
        report = self.output / f"{name}.xml"
        command = [str(program), f"--gtest_filter={suite}.*", f"--gtest_output=xml:{report}"]
        ended = self.run_program(command, seconds)
        self.log(name, ended.output)
        failed_before = len(self.tally.failed)
        if report.exists():
            self.tally.add(report, program.name)
        else:  # killed: count the tests that ran before
            self.tally.passed += len(re.findall(r"^\[ +OK \] ", ended.output, re.MULTILINE))
            for test in re.findall(r"^\[  FAILED  \] ([^ ,]+) \(", ended.output, re.MULTILINE):
                self.tally.fail(f"{program.name}: {test}", "see the log of its suite")
        if ended.code != 0 and len(self.tally.failed) == failed_before:
            end = f"took more than {seconds:.0f} s" if ended.code is None else f"exit code {ended.code}"
            self.tally.fail(f"{program.name}: {suite}", why_program_failed(end, ended.output))

    def run_suites(self) -> str:
        until = time.monotonic() + min(SHARES["suites"], self.left())
        failed = len(self.tally.failed)
        left_out, found = [], 0
        # Tests within one process first: they say most, and hang least.
        for program in sorted(self.tests.glob("accord_*_test"), key=lambda it: ("unit" not in it.name, it.name)):
            listed = self.run_program([str(program), "--gtest_list_tests"], LISTING_SECONDS)
            if listed.code != 0:
                self.tally.fail(
                    f"{program.name}: does not start", why_program_failed(f"exit code {listed.code}", listed.output)
                )
                continue
            for suite in suites_in(listed.output):
                found += 1
                if time.monotonic() > until:
                    left_out.append(suite)
                else:
                    self.run_suite(program, suite, min(SUITE_SECONDS, until - time.monotonic() + 5))
        for suite in left_out:
            self.tally.skipped.append(f"suite {suite}: the time was over")
        if found == 0:
            self.tally.fail("no suite with Cuda in its name was found", str(self.tests))
        return "ok" if len(self.tally.failed) == failed else "failed"

    def run_sanitizer(self) -> str:
        program = self.tests / "accord_unit_device_test"
        sanitizer = shutil.which("compute-sanitizer")
        if sanitizer is None or not program.exists():
            return f"left out: there is no {'compute-sanitizer' if sanitizer is None else program.name}"
        # Tests make calls that CUDA rejects on purpose; these are not errors.
        command = [sanitizer, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "99"]
        command += [str(program), f"--gtest_filter={SANITIZED}-{NOT_SANITIZED}"]
        ended = self.run_program(command, min(SHARES["sanitizer"], self.left()))
        self.log("compute-sanitizer", ended.output)
        if ended.code == 0:
            self.tally.passed += 1
            return "ok"
        if "not supported" in ended.output.lower():
            return "left out: compute-sanitizer does not take this device"
        end = "took too long" if ended.code is None else f"exit code {ended.code}"
        self.tally.fail("compute-sanitizer", why_program_failed(end, ended.output))
        return "failed"

    def run_benchmark(self) -> str:
        program = self.programs / "bench_gpu"
        if not program.exists():
            return f"left out: there is no {program.name}"
        until = time.monotonic() + min(SHARES["benchmark"], self.left())
        failed = False
        for option, ranks in (("--ranks", 1), ("--ranks", 2), ("--threads", 2), ("--threads", 4)):
            ended = self.run_program([str(program), option, str(ranks)], until - time.monotonic())
            self.log(f"bench{option.removeprefix('-')}-{ranks}", ended.output)
            lines = [line for line in ended.output.splitlines() if line.startswith("{")]
            self.figures += [json.loads(line) for line in lines]
            if ended.code == NO_GPU:
                return f"left out: {ended.output.strip().splitlines()[-1]}"
            if ended.code != 0:
                failed = True
                end = "took too long" if ended.code is None else f"exit code {ended.code}"
                self.tally.fail(f"bench_gpu {option} {ranks}", why_program_failed(end, ended.output))
        return "failed" if failed else "ok"

    # Python

    def run_torch(self) -> str:
        if self.module is None:
            return NO_MODULE
        if missing := [name for name in TESTS_NEED if importlib.util.find_spec(name) is None]:
            return f"left out: this Python has no {' and no '.join(missing)}"
        report = self.output / "pytest.xml"
        file = str(ROOT / "tests" / "python" / "torch" / "test_cuda.py")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", file]
        environment = self.environment | {"PYTHONPATH": str(self.module)}
        ended = run(command, min(SHARES["torch"], self.left()), environment)
        self.log("pytest", ended.output)
        failed = len(self.tally.failed)
        if report.exists():
            self.tally.add(report, "pytest")
        if ended.code != 0 and len(self.tally.failed) == failed:
            end = "took too long" if ended.code is None else f"exit code {ended.code}"
            self.tally.fail("pytest", why_program_failed(end, ended.output))
        return "ok" if len(self.tally.failed) == failed else "failed"

    def run_engine(self) -> str:
        if self.module is None:
            return NO_MODULE
        seconds = min(SHARES["engine"], self.left())
        figures = self.output / "gpu_engine.json"
        command = [sys.executable, "-m", "bench.gpu_engine", "--output", str(figures)]
        command += ["--seconds", f"{max(seconds - ENDING_SECONDS, 1):.0f}"]
        ended = run(command, seconds, self.environment | {"PYTHONPATH": str(self.module)}, ROOT)
        self.log("gpu_engine", ended.output)
        if figures.exists():
            self.engine = json.loads(figures.read_text())
        if ended.code == 0 and (why := re.search(r"^skipped: (.*)$", ended.output, re.MULTILINE)):
            return f"left out: {why[1]}"
        if ended.code == 0:
            self.tally.passed += 1
            return "ok"
        end = "took too long" if ended.code is None else f"exit code {ended.code}"
        self.tally.fail("bench.gpu_engine", why_program_failed(end, ended.output))
        return "failed"


def gpus() -> tuple[list[str], str]:
    """Returns names and drivers of this machine's GPUs, or the reason why there are none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], "there is no nvidia-smi"
    asked = run([tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 30)
    if asked.code != 0 or not asked.output.strip():
        return [], asked.output.strip() or "nvidia-smi tells of none"
    return asked.output.strip().splitlines(), ""


def nvidia_library(*places: str) -> str | None:
    """Returns the first existing library of `places` in NVIDIA's packages for this Python."""
    try:
        import nvidia
    except ImportError:
        return None
    files = [Path(folder) / place for place in places for folder in nvidia.__path__]
    return next((str(file) for file in files if file.exists()), None)


def nccl_path() -> str | None:
    return nvidia_library("nccl/lib/libnccl.so.2")


def cublaslt_path() -> str | None:
    """Returns the library of CUDA 13, or else of CUDA 12: the tests report a version that differs from the build's."""
    return nvidia_library("cu13/lib/libcublasLt.so.13", "cublas/lib/libcublasLt.so.12")


def lacking(libraries: Path) -> Path:
    """Creates a folder with links to those of `libraries` that this machine lacks: its own libraries match the rest
    of the machine (Python's ssl, torch).
    """
    folder = libraries.parent / "lacking"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for library in sorted(libraries.iterdir()):
        try:
            ctypes.CDLL(library.name)
        except OSError:
            (folder / library.name).symlink_to(library)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs what needs a GPU and writes a report.")
    parser.add_argument("--only-look", action="store_true", help="only says whether there is a GPU, by the exit code")
    parser.add_argument(
        "--tests", type=Path, default=ROOT / "build/release/tests", help="the folder of the GoogleTest programs"
    )
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin", help="that of the benchmark")
    parser.add_argument("--output", type=Path, required=True, help="that of the report, which is made anew")
    parser.add_argument("--libraries", type=Path, help="shared libraries that programs need and this machine may lack")
    parser.add_argument("--module", type=Path, help="the folder of the Python package, which PYTHONPATH names")
    parser.add_argument("--minutes", type=float, default=9.0, help="all is over by then")
    arguments = parser.parse_args()
    began = time.monotonic()
    devices, why_none = gpus()
    if not devices:
        print(f"no NVIDIA GPU: {why_none}; nothing was checked")
        return NO_GPU
    if arguments.only_look:
        return 0
    shutil.rmtree(arguments.output, ignore_errors=True)
    arguments.output.mkdir(parents=True)
    environment = dict(os.environ)
    if arguments.libraries is not None:
        folders = [lacking(arguments.libraries.resolve()), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    if "CUDA_TEST_NCCL" not in environment and (path := nccl_path()) is not None:
        environment["CUDA_TEST_NCCL"] = path
    libraries = {}
    if "ACCORD_CUBLASLT" not in environment and (path := cublaslt_path()) is not None:
        libraries["ACCORD_CUBLASLT"] = path
    # The kernels of ranks that are threads wait for each other, and must not share a queue of the GPU.
    environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    until = began + 60 * arguments.minutes
    checks = Checks(
        arguments.tests, arguments.programs, arguments.output, environment, until, libraries, arguments.module
    )
    checks.stage("accord sees the GPU", checks.look)
    if not checks.tally.failed:
        checks.stage("C++ suites", checks.run_suites)
        checks.stage("benchmark", checks.run_benchmark)
        checks.stage("compute-sanitizer", checks.run_sanitizer)
        checks.stage("torch tensors", checks.run_torch)
        checks.stage("engines", checks.run_engine)
    report = checks.report(devices, time.monotonic() - began)
    (arguments.output / "report.json").write_text(json.dumps(report, indent=1))
    (arguments.output / "report.md").write_text(markdown_of(report))
    print(markdown_of(report))
    return 1 if checks.tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
