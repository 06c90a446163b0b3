"""The stages of gpu_checks.py, in their order, with their times: the first three minutes tell most."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import gpu_suites
from gpu_run import ROOT, Context, Ended

#: Part of a benchmark's time that it needs to finish.
ENDING_SECONDS = 5
#: Suites that are small enough for compute-sanitizer, which slows every kernel down.
SANITIZED = "CudaDevice.*:CudaRuntime.*"
#: Exceptions: compute-sanitizer runs kernels one after the other.
NOT_SANITIZED = "CudaDevice.a_new_kernel_starts_while_another_waits"
NO_MODULE = "left out: there is no Python module"
#: Modules for the tests of torch tensors: to run them, and imported by their ranks.
TESTS_NEED = ("pytest", "numpy")
NOTHING_COLLECTED = 5  # pytest's exit code if a whole file is skipped
#: The engine benchmark's model where there is no GPU.
SMALL_MODEL = ["--device", "cpu", "--threads", "1", "--layers", "1", "--hidden", "256", "--vocabulary", "1000"]
SMALL_MODEL += ["--context", "8", "--steps", "4", "--rounds", "1", "--batches", "1"]


@dataclass(frozen=True)
class Stage:
    name: str
    seconds: int  # its share of the time; it may also use what the stages before it did not
    what: str
    #: Takes the seconds that it may use. Returns how it ended: "ok", "failed", or "left out: " and why.
    work: Callable[[Context, float], str]


def look(context: Context, seconds: float) -> str:
    """Checks that accord's programs see the GPU that nvidia-smi reports, and that a kernel runs on it: with a driver
    that is too old for CUDA, they would skip every test.
    """
    program = context.programs / "bench_gpu"
    failure = "accord's programs do not see the GPU"
    if not program.exists():
        context.tally.fail(failure, f"there is no {program}, which would say why")
        return "failed"
    ended = context.run_program([str(program), "--look", *_rehearsing(context)], seconds)
    context.log("look", ended.output)
    if ended.code == 0:
        return "ok"
    context.tally.fail(failure, ended.why())
    return "failed"


def suites(group: gpu_suites.SuiteGroup, context: Context, seconds: float) -> str:
    if context.suites is None:
        context.suites = gpu_suites.find_suites(context)
    return gpu_suites.run_group(context, group, context.suites, seconds)


def _rehearsing(context: Context) -> list[str]:
    """Returns the options with which bench_gpu starts everything without a GPU."""
    return [] if context.devices is None else ["--devices", str(context.devices), "--quick"]


def _outcome_of_benchmark(context: Context, name: str, ended: Ended) -> str:
    """Takes the lines that the benchmark has written, also if it failed later."""
    context.log(name, ended.output)
    figures = context.logs / f"{name}.json"
    if figures.exists():
        context.figures[name] = json.loads(figures.read_text())
    if ended.code != 0:
        context.tally.fail(name, ended.why())
        return "failed"
    if name not in context.figures and (
        why := re.search(r"^(?:bench_gpu: )?skipped: (.*)$", ended.output, re.MULTILINE)
    ):
        return f"left out: {why[1]}"
    context.tally.passed += 1
    return "ok"


def calls(part: str, context: Context, seconds: float) -> str:
    """Runs a part of bench/gpu."""
    if not (context.programs / "bench_gpu").exists():
        return "left out: there is no bench_gpu"
    command = [sys.executable, "-m", "bench.gpu", "--build", str(context.programs.parent), "--parts", part]
    command += ["--output", str(context.logs / f"{part}.json"), "--seconds", f"{seconds - ENDING_SECONDS:.0f}"]
    return _outcome_of_benchmark(context, part, context.run_program([*command, *_rehearsing(context)], seconds))


def llama(context: Context, seconds: float) -> str:
    """Runs bench/gpu_engine."""
    if context.module is None:
        return NO_MODULE
    command = [sys.executable, "-m", "bench.gpu_engine", "--output", str(context.logs / "llama.json")]
    command += SMALL_MODEL if context.devices else []
    command += ["--seconds", f"{max(seconds - 2 * ENDING_SECONDS, 1):.0f}"]
    return _outcome_of_benchmark(context, "llama", context.run_python(command, seconds))


def torch_tensors(context: Context, seconds: float) -> str:
    if context.module is None:
        return NO_MODULE
    if missing := [name for name in TESTS_NEED if importlib.util.find_spec(name) is None]:
        return f"left out: this Python has {' and '.join(f'no {name}' for name in missing)}"
    report = context.logs / "pytest.xml"
    file = str(ROOT / "tests" / "python" / "torch" / "test_cuda.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", file]
    ended = context.run_python(command, seconds)
    context.log("pytest", ended.output)
    failed = len(context.tally.failed)
    if report.exists():
        context.tally.add(report, "pytest")
    right = {0, NOTHING_COLLECTED} if context.devices else {0}
    if ended.code not in right and len(context.tally.failed) == failed:
        context.tally.fail("pytest", ended.why())
    return "ok" if len(context.tally.failed) == failed else "failed"


def sanitizer(context: Context, seconds: float) -> str:
    program = context.tests / "accord_unit_device_test"
    tool = shutil.which("compute-sanitizer")
    if tool is None or not program.exists():
        return f"left out: there is no {'compute-sanitizer' if tool is None else program.name}"
    # Tests make calls that CUDA rejects on purpose; these are not errors.
    command = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "99"]
    command += [str(program), f"--gtest_filter={SANITIZED}-{NOT_SANITIZED}"]
    ended = context.run_program(command, seconds)
    context.log("compute-sanitizer", ended.output)
    if ended.code == 0:
        context.tally.passed += 1
        return "ok"
    if "not supported" in ended.output.lower():
        return "left out: compute-sanitizer does not take this device"
    context.tally.fail("compute-sanitizer", ended.why())
    return "failed"


def _suites(name: str) -> Stage:
    group = next(group for group in gpu_suites.GROUPS if group.name == name)
    return Stage(name, group.seconds, f"C++ suites: {group.what}", partial(suites, group))


STAGES = (
    Stage("look", 15, "accord sees the GPU, and a kernel runs on it", look),
    *map(_suites, ("devices", "products", "engines", "threads", "experts")),
    Stage("sums", 20, "sums and norms between ranks that share the GPU", partial(calls, "sums")),
    Stage("llama", 120, "prompts and decoding of a Llama beside torch and torch.compile", llama),
    Stage("torch", 60, "tensors of torch: process groups, works, CUDA graphs, DDP, windows", torch_tensors),
    *map(_suites, ("processes", "nccl")),
    Stage("thresholds", 25, "sums by each plan and by NCCL, by size", partial(calls, "thresholds")),
    Stage("moe", 20, "calls of expert groups beside an all_to_all of NCCL", partial(calls, "moe")),
    Stage("calls", 15, "sums through the communicator and by NCCL's own functions", partial(calls, "calls")),
    Stage("sanitizer", 15, "compute-sanitizer's memcheck over the smallest suites", sanitizer),
    _suites("rest"),
)
