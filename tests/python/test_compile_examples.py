"""The examples of examples/compile, as a user starts them: what they compute is what PyTorch computes, on every rank."""

import os
import re
import subprocess
import sys

import pytest
from accord_command import ACCORD, ROOT, clean_environment

pytest.importorskip("transformers")

# name, ranks, lines of each rank that compare with PyTorch
EXAMPLES = [
    ("mlp_tensor_parallel", 2, 2),
    ("rotary_attention", 2, 2),
    ("llama_tensor_parallel", 2, 2),
    ("qwen_tensor_parallel", 2, 2),
    ("llama_export", 2, 2),
    ("llama_in_data_parallel", 4, 1),
    ("gpt2_data_parallel", 2, 1),
    ("split_prompts", 2, 1),
    ("encoder_decoder", 2, 2),
]


def run_example(name: str, ranks: int, folder) -> str:
    result = subprocess.run(
        [str(ACCORD), "run", "-n", str(ranks), str(ROOT / f"examples/compile/{name}.py"), str(folder)],
        env=clean_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "lines"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_example(name, ranks, lines, tmp_path):
    text = run_example(name, ranks, tmp_path)
    told = re.findall(r"rank (\d): .* differs from PyTorch by ([\d.e+-]+)", text)
    assert sorted(int(rank) for rank, _ in told) == sorted(list(range(ranks)) * lines)
    assert all(float(difference) < 1e-5 for _, difference in told)
    if "report" in (ROOT / f"examples/compile/{name}.py").read_text():
        assert "all_reduce over 'world': engine" in text
        assert "0 in PyTorch" in text


def test_every_example_is_run():
    files = {path.stem for path in (ROOT / "examples/compile").glob("*.py")} - {"small_models"}
    assert files == {name for name, _, _ in EXAMPLES}
