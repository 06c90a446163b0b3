"""Runs torch's own distributed tests, which ship in its wheel, over one backend. Ranks are forked from this process.

    distributed_tests.py BACKEND RANKS OUTCOMES [NAME ...]

OUTCOMES receives a line of JSON per test: its name, its outcome, the reason, and its seconds. NAMEs select tests;
without them all tests run. The tests are written for the backends that torch knows. For every backend, this program
selects the tests that apply to gloo, including some that torch skips (GATES), and `Name` makes the tests' comparisons
with "gloo" true for the backend.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
import traceback
import types
import unittest
from pathlib import Path
from unittest import mock

DEADLINE = 60  # seconds per test, after which its ranks are killed
# Reasons for skipping a test that do not apply here: what once only MPI could do, what fails on the machines of
# torch's CI, and a store that is created twice.
GATES = re.compile(
    r"Only MPI supports (CPU )?all_to_all|https://github.com/pytorch/pytorch/issues/|Requires file:// initialization method"
)


class Name(str):
    """The name of a backend that compares equal to "gloo" but is printed as it is."""

    def __hash__(self) -> int:
        return hash("gloo")

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other


def torchs_tests(backend: str, ranks: int) -> types.ModuleType:
    """Returns torch's module of tests, which reads its configuration from the environment when it is imported."""
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(DEADLINE),
    }
    from torch.testing._internal import common_distributed

    needs_gpus = common_distributed.skip_if_lt_x_gpu

    def skip_if_lt_x_gpu(gpus: int, **options):
        """Runs the tests of subgroups without GPUs: they ask for GPUs but use none."""
        needs = needs_gpus(gpus, **options)
        return lambda test: test if test.__name__.startswith("test_new_subgroups") else needs(test)

    common_distributed.skip_if_lt_x_gpu = skip_if_lt_x_gpu
    common_distributed.skip_if_small_worldsize = lambda test: test  # allows fewer than 8 ranks
    common_distributed.TIMEOUT_OVERRIDE.clear()
    from torch.testing._internal.distributed import distributed_test as module

    tests = module.DistributedTest._DistTestBase
    for name, test in list(vars(tests).items()):
        if GATES.match(getattr(test, "__unittest_skip_why__", "")):
            if test.__code__.co_name == "skip_wrapper":
                test = test.__wrapped__
            test.__unittest_skip__ = False
            setattr(tests, name, test)
    module.dist = distributed_as_seen_by_tests(module.dist, backend)
    module.BACKEND = Name(backend)
    return module


def distributed_as_seen_by_tests(dist: types.ModuleType, backend: str) -> types.ModuleType:
    """Returns torch.distributed with `backend` in place of "gloo" and with backend names that compare equal to
    "gloo". All other code in torch sees plain names."""
    seen = types.ModuleType(dist.__name__)
    seen.__getattr__ = lambda name: getattr(dist, name)

    def plain(function):
        def call(*arguments, **options):
            if options.get("backend") == "gloo":
                options["backend"] = backend
            return function(*arguments, **options)

        return call

    def monitored_barrier(*arguments, **options):
        """torch's function rejects backend names other than "gloo"."""
        with mock.patch.object(dist.distributed_c10d, "get_backend", seen.get_backend):
            dist.monitored_barrier(*arguments, **options)

    seen.monitored_barrier = monitored_barrier
    get_backend = dist.get_backend
    seen.get_backend = lambda *arguments: Name(get_backend(*arguments))
    seen.init_process_group, seen.new_group = plain(dist.init_process_group), plain(dist.new_group)
    return seen


def forking(*bases: type) -> type[unittest.TestCase]:
    """Returns a class of torch's tests whose ranks are forked."""
    from torch import multiprocessing

    class TorchDistributed(*bases):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)
            self.forked = list(self.processes)

        def tearDown(self) -> None:
            super().tearDown()
            for process in self.forked:
                process.kill()
                process.join()

        def _check_return_codes(self, fn, elapsed_time: float) -> None:
            """Compares all exit codes: torch checks only the first rank's if no rank has raised."""
            super()._check_return_codes(fn, elapsed_time)
            codes = [process.exitcode for process in self.processes]
            if fn not in self.skip_return_code_checks and len(set(codes)) > 1:
                raise RuntimeError(f"ranks ended with different exit codes: {codes}")

    return TorchDistributed


def distributed_test(backend: str, ranks: int) -> type[unittest.TestCase]:
    module = torchs_tests(backend, ranks)

    class TestDistBackend(module.TestDistBackend):
        def setUp(self) -> None:
            super().setUp()
            module.INIT_METHOD = os.environ["INIT_METHOD"]

    return forking(TestDistBackend, module.DistributedTest._DistTestBase)


def ddp_under_dist_autograd_test(backend: str) -> list[type[unittest.TestCase]]:
    """Tests of DDP together with torch's RPC. They have a fixed number of ranks."""
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test as module
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    module.dist = distributed_as_seen_by_tests(module.dist, backend)
    return [
        forking(TensorPipeRpcAgentTestFixture, tests, MultiProcessTestCase)
        for tests in (module.DdpUnderDistAutogradTest, module.DdpComparisonTest)
    ]


def why(error: BaseException) -> str:
    """Returns the last line of the first rank's error, without torch's C++ stack."""
    text = str(error).split("\nException raised from ")[0].split("\nC++ CapturedTraceback")[0].strip()
    raised = re.findall(
        r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Timeout|Lost|Mismatch|Aborted)\b.*$", text, re.MULTILINE
    )
    return (raised or text.splitlines() or [type(error).__name__])[0 if raised else -1]


class Outcomes(unittest.TestResult):
    """Writes a line for each test as it ends."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("w")

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self.began = time.monotonic()
        self.outcome, self.message, self.detail = "passed", "", ""
        print(f"--- {test._testMethodName}", flush=True)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.outcome, self.message = "skipped", reason

    def addFailure(self, test: unittest.TestCase, error: tuple) -> None:  # noqa: N802
        self.outcome, self.message = "failed", why(error[1])
        self.detail = "".join(traceback.format_exception(*error))

    addError = addFailure  # noqa: N815

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        row = {"test": test._testMethodName, "outcome": self.outcome, "message": self.message}
        row |= {"seconds": round(time.monotonic() - self.began, 2), "detail": self.detail}
        print(json.dumps(row), file=self.file, flush=True)


def main() -> None:
    backend, ranks, outcomes, names = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    if backend == "accord":  # once, rather than in every rank
        importlib.import_module("accord.torch")
    classes = [distributed_test(backend, ranks), *(ddp_under_dist_autograd_test(backend) if ranks == 4 else [])]
    cases = {name: cases(name) for cases in classes for name in unittest.TestLoader().getTestCaseNames(cases)}
    unittest.TestSuite(cases[name] for name in names or cases).run(Outcomes(outcomes))


if __name__ == "__main__":
    main()
