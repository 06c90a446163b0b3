"""The programs of examples/torch, started as a user starts them: they learn, and those that differ only in how they
divide the work learn the same."""

import importlib.util
import re
import sys

import pytest
from accord_command import ACCORD, ROOT, accord, python_file
from torch_examples import rank_environment, run_example

ACCORD_RUN = [str(ACCORD), "run", "-n", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STEPS = 40


def check_it_learns(losses: dict[int, float]) -> None:
    """After 40 steps the model guesses better than character frequencies alone would (3.25)."""
    assert list(losses) == [20, 40]
    assert losses[40] < 3


@pytest.fixture(scope="module")
def data_parallel() -> tuple[dict[int, float], str]:
    return run_example(ACCORD_RUN, "train_ddp.py", "--steps", STEPS)


def test_data_parallel_training(data_parallel):
    losses, text = data_parallel
    check_it_learns(losses)
    assert "'The " in text


def test_a_rank_leaves_and_comes_back():
    result = accord("run", "-n", 3, ROOT / "examples/torch/reconfigure.py", timeout=120, env=rank_environment())
    assert result.returncode == 0, result.stderr
    phases = re.findall(r"phase (\d): (\d) ranks, loss ([\d.]+)", result.stdout)
    assert [(number, ranks) for number, ranks, _ in phases] == [("0", "3"), ("1", "2"), ("2", "3")]
    losses = [float(loss) for *_, loss in phases]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.slow
def test_training_goes_on_while_ranks_are_killed(tmp_path):
    log, plot = tmp_path / "log.csv", tmp_path / "plot.svg"
    result = accord(
        "run",
        "--elastic=2:5",
        "--max-restarts=100",
        ROOT / "examples/torch/elastic.py",
        "--steps=150",
        "--kill-every=3",
        "--late=1",
        f"--log={log}",
        f"--plot={plot}",
        timeout=170,
        env=rank_environment(),
    )
    assert result.returncode == 0, result.stderr
    assert "150 steps are done" in result.stdout
    assert "was killed by SIGKILL; starting it again" in result.stderr
    rows = [line.split(",") for line in log.read_text().splitlines()]
    losses = {int(step): float(loss) for _, step, _, loss in rows}
    assert len(losses) > 130  # a rank may be killed before it writes
    assert losses[max(losses)] < 2.6
    assert len({ranks for *_, ranks, _ in rows}) > 1
    assert plot.read_text().startswith("<?xml")


@pytest.mark.slow
def test_torchrun_starts_the_same_program(data_parallel):
    assert run_example(TORCHRUN, "train_ddp.py", "--steps", STEPS)[0] == data_parallel[0]


@pytest.mark.slow
def test_sharded_training_matches_and_resumes_from_its_checkpoint(data_parallel, tmp_path):
    arguments = ["train_fsdp2.py", "--steps", STEPS // 2, "--checkpoint", tmp_path]
    losses = run_example(ACCORD_RUN, *arguments)[0] | run_example(TORCHRUN, *arguments)[0]
    assert losses == pytest.approx(data_parallel[0], abs=1e-3)


@pytest.mark.slow
def test_tensor_parallel_training():
    check_it_learns(run_example(ACCORD_RUN, "train_tensor_parallel.py", "--steps", STEPS)[0])


@pytest.mark.slow
def test_indivisible_heads_are_reported():
    result = accord(
        "run", "-n", 3, ROOT / "examples/torch/train_tensor_parallel.py", timeout=120, env=rank_environment()
    )
    assert result.returncode != 0
    assert "4 heads cannot be divided among 3 ranks: start 1, 2 or 4" in result.stderr


@pytest.mark.slow
def test_pipeline_parallel_training():
    check_it_learns(run_example(ACCORD_RUN, "train_pipeline.py", "--steps", STEPS)[0])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="there is no accelerate")
def test_training_with_accelerate_matches_and_prompts_are_divided(data_parallel):
    losses, text = run_example(ACCORD_RUN, "generate_accelerate.py", "--steps", STEPS)
    assert losses == pytest.approx(data_parallel[0], abs=1e-3)
    prompts = re.findall(r"^\[0\] '(The|A class|If the|Python|An object) ", text, re.MULTILINE)
    assert prompts == ["The", "A class", "If the", "Python", "An object"]


def test_the_guide_runs(tmp_path):
    snippets = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/pytorch.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 4
    if importlib.util.find_spec("transformers") is None:
        snippets = [snippet for snippet in snippets if "from transformers" not in snippet]
    folder = f"folder = {str(tmp_path / 'checkpoint')!r}\n"
    program = python_file(tmp_path, folder + "\n".join(snippets) + "print('end', values.tolist())\n")
    result = accord("run", "-n", 2, program, timeout=120, env=rank_environment())
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("end [6.0, 6.0, 6.0, 6.0]") == 2
