"""megatron-core's GPT trains on CPUs over accord as over gloo: the same bits on two ranks."""
# ruff: noqa: F821 (what ranks.py gives to functions)

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("megatron") is None:
    pytest.skip("needs the package megatron-core", allow_module_level=True)

FOLDER = str(Path(__file__).parent)


def training(group, folder, tensor, pipeline, sequence):
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import megatron_runs

    return megatron_runs.gpt(tensor, pipeline, sequence)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "sequence"),
    [
        pytest.param(2, 1, False, id="tensor parallel"),
        pytest.param(2, 1, True, id="sequence parallel", marks=pytest.mark.slow),
        pytest.param(1, 2, False, id="pipeline parallel", marks=pytest.mark.slow),
    ],
)
def test_the_gpt_of_megatron_core_gives_the_bits_that_it_gives_over_gloo(torch_ranks, tensor, pipeline, sequence):
    expected = torch_ranks(2).run(training, FOLDER, tensor, pipeline, sequence, backend="gloo", deadline=180)
    found = torch_ranks(2).run(training, FOLDER, tensor, pipeline, sequence, deadline=180)
    assert found == expected
    steps = 40
    assert len(expected[-1]) > steps and expected[-1][steps - 1] < expected[-1][0]
