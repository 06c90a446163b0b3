"""Runs everything that needs a GPU and writes a report: gpu_checks.py --tests FOLDER --programs FOLDER --output
FOLDER and others; or only looks for a GPU, or lists the stages.

gpu_stages.py has the stages: whether accord's programs see the GPU (otherwise all tests would skip, so this is a
failure, and the end); the GoogleTest suites with "Cuda" in their names, each in a process of its own; benchmarks; the
tests of torch tensors; and the smallest suites under compute-sanitizer. Each stage has a share of the time, so that
one that hangs does not cost another its time. Stages for which fewer than 10 seconds are left are left out, and named.
After each stage gpu_report.py writes the report so far: what passed, failed and was skipped, and why, and the figures.

With --rehearse, the stages run without a GPU: benchmarks on the tests' devices over host memory, with few calls, and
tests skip. It shows that nothing is missing or misspelled.

Exits with 0 if nothing failed, 1 if something did, 128 and the signal's number if it was interrupted, and 77 if there
is no GPU, which is printed and leaves no report.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import gpu_report
from gpu_run import ROOT, Context, Interrupted, raise_when_interrupted, run
from gpu_stages import STAGES, Stage

NO_GPU = 77
#: A stage with less time left is left out.
MIN_SECONDS = 10


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


def environment_of(libraries: Path | None, devices: Path | None) -> dict[str, str]:
    """Returns the environment of all programs."""
    environment = dict(os.environ)
    if libraries is not None:
        folders = [lacking(libraries.resolve()), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    if devices is not None:
        environment["CUDA_TEST_NCCL"] = environment["ACCORD_NCCL"] = str(devices)
    elif "CUDA_TEST_NCCL" not in environment and (path := nccl_path()) is not None:
        environment["CUDA_TEST_NCCL"] = path
    # The kernels of ranks that are threads wait for each other, and must not share a queue of the GPU.
    environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    return environment


def chosen_stages(names: str | None) -> list[Stage]:
    """Returns all stages, or those whose names `names` lists, after the first one. Raises ValueError for an unknown
    name.
    """
    if names is None:
        return list(STAGES)
    chosen = names.split(",")
    for name in chosen:
        if name not in {stage.name for stage in STAGES}:
            raise ValueError(f'there is no stage "{name}"; there are {", ".join(stage.name for stage in STAGES)}')
    return [stage for stage in STAGES if stage is STAGES[0] or stage.name in chosen]


def run_stages(
    stages: list[Stage], context: Context, seconds: float, report: Callable[[list[gpu_report.Done]], None]
) -> list[gpu_report.Done]:
    """Runs `stages` within `seconds`. `report` is called after each of them. A stage may use the time that earlier
    ones did not, but not the shares of later ones.
    """
    began = time.monotonic()
    stretch = max(1.0, seconds / sum(stage.seconds for stage in stages))
    done: list[gpu_report.Done] = []
    shares = 0.0
    for number, stage in enumerate(stages, start=1):
        shares += stage.seconds * stretch
        left = min(shares, seconds) - (time.monotonic() - began)
        print(f"[{number}/{len(stages)}] {stage.name}: {stage.what} (up to {max(left, 0):.0f} s)", flush=True)
        started = time.monotonic()
        try:
            outcome = stage.work(context, left) if left >= MIN_SECONDS else "left out: the time was over"
        except Exception as error:  # of a stage itself: the others still run
            outcome = "failed"
            context.log(f"{stage.name}-error", traceback.format_exc())
            context.tally.fail(stage.name, f"{type(error).__name__}: {error}")
        except Interrupted:
            done.append(gpu_report.Done(stage.name, stage.what, "interrupted", time.monotonic() - started))
            report(done)
            raise
        done.append(gpu_report.Done(stage.name, stage.what, outcome, time.monotonic() - started))
        print(f"[{number}/{len(stages)}] {stage.name}: {outcome} ({done[-1].seconds:.0f} s)", flush=True)
        report(done)
        if stage is STAGES[0] and outcome == "failed":
            break
    return done


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs what needs a GPU and writes a report.")
    parser.add_argument("--only-look", action="store_true", help="only says whether there is a GPU, by the exit code")
    parser.add_argument("--stages", action="store_true", help="only lists the stages")
    parser.add_argument("--only", metavar="STAGE,...", help="runs only these stages, after the first one")
    parser.add_argument(
        "--tests", type=Path, default=ROOT / "build/release/tests", help="the folder of the GoogleTest programs"
    )
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin", help="that of the benchmark")
    parser.add_argument("--output", type=Path, help="that of the report, which is made anew")
    parser.add_argument("--libraries", type=Path, help="shared libraries that programs need and this machine may lack")
    parser.add_argument("--module", type=Path, help="the folder of the Python package, which PYTHONPATH names")
    parser.add_argument("--minutes", type=float, default=9.0, help="all is over by then")
    parser.add_argument("--rehearse", type=Path, metavar="DEVICES", help="library of the tests' devices, for no GPU")
    parser.add_argument("--origin", default="", help="where the programs come from, for the report")
    arguments = parser.parse_args()
    try:
        arguments.chosen = chosen_stages(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    if arguments.output is None and not arguments.only_look and not arguments.stages:
        parser.error("--output is required")
    return arguments


def main() -> int:
    began = time.monotonic()
    arguments = parsed_arguments()
    if arguments.stages:
        for stage in STAGES:
            print(f"{stage.name:12}{stage.seconds:>4} s  {stage.what}")
        return 0
    devices, why_none = (["the tests' devices"], "") if arguments.rehearse else gpus()
    if not devices:
        print(f"no NVIDIA GPU: {why_none}; nothing was checked")
        return NO_GPU
    if arguments.only_look:
        return 0
    raise_when_interrupted()
    shutil.rmtree(arguments.output, ignore_errors=True)
    logs = arguments.output / "logs"
    logs.mkdir(parents=True)
    context = Context(
        tests=arguments.tests,
        programs=arguments.programs,
        logs=logs,
        environment=environment_of(arguments.libraries, arguments.rehearse),
        module=arguments.module,
        devices=arguments.rehearse,
    )
    if "ACCORD_CUBLASLT" not in context.environment and (path := cublaslt_path()) is not None:
        context.libraries["ACCORD_CUBLASLT"] = path

    def report(done: list[gpu_report.Done]) -> None:
        gpu_report.write(
            arguments.output, devices, arguments.origin, time.monotonic() - began, context, done, arguments.chosen
        )

    try:
        run_stages(arguments.chosen, context, 60 * arguments.minutes - (time.monotonic() - began), report)
    except Interrupted as error:
        print(f"interrupted by {error}; {arguments.output} has the report so far", flush=True)
        return 128 + error.number
    print((arguments.output / "report.md").read_text())
    return 1 if context.tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
