"""Runs the programs of examples/torch."""

import os
import re
import subprocess

from accord_command import ROOT, clean_environment


def rank_environment() -> dict[str, str]:
    return clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), OMP_NUM_THREADS="1")


def run_example(launcher: list[str], name: str, *arguments: object) -> tuple[dict[int, float], str]:
    """Returns the losses by step, and the whole output."""
    result = subprocess.run(
        [*launcher, str(ROOT / "examples/torch" / name), *map(str, arguments)],
        env=rank_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", result.stdout)}
    return losses, result.stdout
