"""The GoogleTest suites that need a GPU: those with "Cuda" in their names, in groups. The first groups say most and
take least."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_run import Context

#: Maximum seconds for a single suite, which runs in a process of its own.
SUITE_SECONDS = 45
LISTING_SECONDS = 20


@dataclass(frozen=True)
class SuiteGroup:
    name: str
    seconds: int
    what: str
    suites: tuple[str, ...]  # patterns of names, in the order in which suites run


GROUPS = (
    SuiteGroup(
        "devices",
        20,
        "memory, streams, graphs and kernels of one GPU",
        ("CudaRuntime*", "CudaDevice*", "CudaMappedMemory*"),
    ),
    SuiteGroup("products", 15, "products by cuBLASLt", ("CudaProducts*",)),
    SuiteGroup("engines", 60, "engine kernels and small models beside loops and the engine on the CPU", ("Cuda/*",)),
    SuiteGroup(
        "threads",
        25,
        "plans and user kernels between ranks that are threads",
        ("*CudaPlansOfThreads*", "CudaSwitch*"),
    ),
    SuiteGroup("experts", 20, "expert groups of one and two processes", ("*CudaExpert*",)),
    SuiteGroup("processes", 30, "plans between ranks that are processes", ("*CudaPlansOfProcesses*",)),
    SuiteGroup("nccl", 45, "calls over NCCL, of 1 to 4 processes", ("*CudaNccl", "*CudaNccl[!O]*")),
    SuiteGroup("rest", 35, "every dtype between processes; suites in no other group", ("*OfEveryDType", "*")),
)


def suites_in(listing: str) -> list[str]:
    """Returns the suites with "Cuda" in their names from --gtest_list_tests output, in the form that filters use."""
    names = [line.split("#")[0].strip().rstrip(".") for line in listing.splitlines() if line and not line[0].isspace()]
    return [name for name in names if "Cuda" in name and " " not in name]


def group_of(suite: str) -> SuiteGroup:
    return next(group for group in GROUPS if any(fnmatchcase(suite, pattern) for pattern in group.suites))


def place_of(suite: str) -> int:
    """Returns the suite's place within its group."""
    patterns = group_of(suite).suites
    return next(place for place, pattern in enumerate(patterns) if fnmatchcase(suite, pattern))


def find_suites(context: Context) -> list[tuple[Path, str]]:
    """Returns all suites and their programs. A program that cannot list its suites is a failure."""
    found = []
    for program in sorted(context.tests.glob("accord_*_test")):
        listed = context.run_program([str(program), "--gtest_list_tests"], LISTING_SECONDS)
        if listed.code == 0:
            found += [(program, suite) for suite in suites_in(listed.output)]
        else:
            context.tally.fail(f"{program.name}: does not start", listed.why())
    if not found:
        context.tally.fail("no suite with Cuda in its name was found", str(context.tests))
    return found


def counts_of(context: Context) -> dict[str, int]:
    tally = context.tally
    return {"passed": tally.passed, "failed": len(tally.failed), "skipped": len(tally.skipped)}


def run_suite(context: Context, program: Path, suite: str, seconds: float) -> None:
    name = f"{program.name}.{suite}".replace("/", ".")
    report = context.logs / f"{name}.xml"
    command = [str(program), f"--gtest_filter={suite}.*", f"--gtest_output=xml:{report}"]
    tally = context.tally
    before = counts_of(context)
    ended = context.run_program(command, seconds)
    context.log(name, ended.output)
    if report.exists():
        tally.add(report, program.name)
    else:  # killed: count the tests that ran before
        tally.passed += len(re.findall(r"^\[ +OK \] ", ended.output, re.MULTILINE))
        for test in re.findall(r"^\[  FAILED  \] ([^ ,]+) \(", ended.output, re.MULTILINE):
            tally.fail(f"{program.name}: {test}", "see the log of its suite")
    if ended.code != 0 and len(tally.failed) == before["failed"]:
        tally.fail(f"{program.name}: {suite}", ended.why())
    changes = [f"{count - before[how]} {how}" for how, count in counts_of(context).items() if count > before[how]]
    print(f"    {suite}: {', '.join(changes) or 'no tests'} ({ended.seconds:.0f} s)", flush=True)


def run_group(context: Context, group: SuiteGroup, suites: list[tuple[Path, str]], seconds: float) -> str:
    """Runs those of `suites` that are in the group. Returns how that ended."""
    until = time.monotonic() + seconds
    failed = len(context.tally.failed)
    mine = sorted(
        ((program, suite) for program, suite in suites if group_of(suite) is group), key=lambda it: place_of(it[1])
    )
    if not mine:
        return "left out: there is no such suite"
    for program, suite in mine:
        left = until - time.monotonic()
        if left > 1:
            run_suite(context, program, suite, min(SUITE_SECONDS, left + 2))
        else:
            context.tally.skipped.append(f"suite {suite}: the time was over")
    return "ok" if len(context.tally.failed) == failed else "failed"
