"""The soak test (tests/soak): one minute in the gate, ten in make test-full. It fails if something is wrong."""

import contextlib
import os
import subprocess
import sys
import time

import pytest
from accord_command import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests/soak"))

from soak import Soak, SoakFailed
from tiers import mostly_slow


def run(script: str, *options: str, timeout: float, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python"), **variables}
    command = [sys.executable, f"tests/soak/{script}", *options]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    print(result.stdout[-20_000:] + result.stderr[-5_000:])
    return result


def soak(seconds: float, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("soak.py", "--seconds", str(seconds), *more, timeout=seconds + 300, **variables)


@pytest.fixture(scope="module")
def soak_requests(tmp_path_factory):
    """A function that runs the soak test of requests. The model is created once."""
    for needed in ("torch", "transformers"):
        pytest.importorskip(needed)
    model = str(tmp_path_factory.mktemp("model"))

    def soak(number: int, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        options = ["--requests", str(number), "--model", model, *more]
        return run("requests_soak.py", *options, timeout=300 + number / 5, **variables)

    return soak


def new_seed() -> str:
    """Returns a different seed every time. The output shows it, and --seed repeats the run."""
    return str(time.time_ns() % (1 << 31))


def assert_passes(result: subprocess.CompletedProcess[str]) -> None:
    last = (result.stdout + result.stderr).strip().splitlines()[-1]
    assert result.returncode == 0 and "soak: ok, " in result.stdout, last


@pytest.mark.slow
def test_some_seconds_of_random_calls_groups_and_faults_pass():
    assert_passes(soak(20, "--seed", new_seed()))


@pytest.mark.slow
def test_ten_minutes_of_random_calls_groups_and_faults_pass():
    assert_passes(soak(600, "--seed", new_seed()))


@pytest.mark.slow
def test_forty_random_requests_to_a_language_model_with_kills_pass(soak_requests):
    assert_passes(soak_requests(40, "--seed", new_seed()))


@pytest.mark.slow
def test_ten_thousand_random_requests_to_a_language_model_with_kills_pass(soak_requests):
    assert_passes(soak_requests(10_000, "--seed", new_seed()))


@pytest.mark.slow
def test_the_soak_test_detects_a_wrong_answer(soak_requests):
    result = soak_requests(100, SOAK_DEFECT="sys.modules['__main__'].WAYS['greedy'] = {'temperature': 5.0}")
    assert result.returncode == 1
    assert "soak: FAILED" in result.stdout and "instead of" in result.stdout, result.stdout


def ended(members: list[int], *errors: str) -> dict:
    return {"members": members, "errors": [[error, [2], ""] for error in errors]}


@pytest.mark.parametrize(
    ("fault", "first", "second", "is_fine"),
    [
        ("kill", ended([0, 1], "PeerLost"), ended([0, 1], "PeerLost"), True),
        ("kill", ended([0, 1], "PeerLost"), ended([1], "PeerLost"), False),
        # Rank 0 had completed its last call, and rank 1 had not.
        ("kill", ended([0, 1, 2]), ended([1], "PeerLost"), True),
        ("kill", ended([0, 1, 2]), ended([0, 1], "PeerLost"), False),
        ("kill", ended([0, 1, 2], "PeerLost"), ended([1]), False),
        ("exit", ended([0, 1, 2]), ended([1], "PeerLost"), False),  # no rank completes its last call without rank 2
    ],
)
def test_diverged_ranks_are_distinguished_from_a_rank_that_had_ended(fault, first, second, is_fine):
    expectation = (
        contextlib.nullcontext() if is_fine else pytest.raises(SoakFailed, match="went on in different groups")
    )
    with expectation:
        Soak.judge(fault, [2], [first, second, None])


DEFECTS = {
    "a descriptor leaks": ("os.open('/', os.O_RDONLY)", "descriptors"),
    "a thread is left": (
        "__import__('threading').Thread(target=time.sleep, args=[1000], daemon=True).start()",
        "threads",
    ),
    "a result is wrong": ("__import__('calls').OPS['sum'] = __import__('numpy').maximum", "element"),
    "a rank ends": ("os._exit(5)", "ended"),
}


@pytest.mark.parametrize("defect", mostly_slow(DEFECTS, "a result is wrong", "a rank ends"))
def test_the_soak_test_detects_each_defect(defect):
    code, expected = DEFECTS[defect]
    result = soak(40, "--seed", "1", SOAK_DEFECT=code)
    assert result.returncode == 1 and "soak: FAILED" in result.stdout
    assert expected in result.stdout
