"""The first programs of the README, run as their first lines describe."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import ACCORD, BUILD, ROOT, clean_environment

PROGRAMS = [
    ROOT / "examples/hello_communicator.py",
    BUILD / "examples/hello_communicator",
    BUILD / "examples/hello_communicator_c",
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_first_program_adds_over_two_ranks(program: Path):
    if not program.exists():
        pytest.skip(f"{program} is not built")
    result = subprocess.run(
        [ACCORD, "run", "-n", "2", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
    )
    assert result.returncode == 0, result.stderr
    ranks = re.findall(r"rank (\d) of 2: \[?3\.? 3\.? 3\.? 3\.?", result.stdout)
    assert sorted(ranks) == ["0", "1"], result.stdout


def test_python_m_accord_runs_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "accord", "info", "--json"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert '"version"' in result.stdout
