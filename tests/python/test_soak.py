"""The soak test (tests/soak): a minute in the gate, ten in make test-full; and it fails when something is wrong."""

import os
import subprocess
import sys
import time

import pytest
from accord_command import BUILD, ROOT


def soak(seconds: float, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python"), **variables}
    command = [sys.executable, "tests/soak/soak.py", "--seconds", str(seconds), *more]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds + 300)
    print(result.stdout[-20_000:] + result.stderr[-5_000:])
    return result


def new_seed() -> str:
    """Another one every time; the output tells it, and --seed repeats the run."""
    return str(time.time_ns() % (1 << 31))


def assert_goes_well(seconds: float) -> None:
    result = soak(seconds, "--seed", new_seed())
    last = (result.stdout + result.stderr).strip().splitlines()[-1]
    assert result.returncode == 0 and "soak: ok, " in result.stdout, last


def test_a_minute_of_random_calls_groups_and_faults_goes_well():
    assert_goes_well(50)


@pytest.mark.slow
def test_ten_minutes_of_random_calls_groups_and_faults_go_well():
    assert_goes_well(600)


DEFECTS = {
    "a descriptor leaks": ("os.open('/', os.O_RDONLY)", "descriptors"),
    "a thread is left": (
        "__import__('threading').Thread(target=time.sleep, args=[1000], daemon=True).start()",
        "threads",
    ),
    "a result is wrong": ("__import__('calls').OPS['sum'] = np.maximum", "element"),
    "a rank ends": ("os._exit(5)", "ended"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_it_notices_when(defect):
    code, expected = DEFECTS[defect]
    result = soak(40, "--seed", "1", SOAK_DEFECT=code)
    assert result.returncode == 1 and "soak: FAILED" in result.stdout
    assert expected in result.stdout
