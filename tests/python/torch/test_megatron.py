"""megatron-core's GPT trains on CPUs over accord as over gloo: bit-identical where sums are over two ranks."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util
import json

import pytest
from accord_command import SUPPORT, accord, program_environment, python_file

if importlib.util.find_spec("megatron") is None:
    pytest.skip("needs the package megatron-core", allow_module_level=True)


STEPS = 40  # 20 steps of two microbatches


def training(group, folder, tensor, pipeline, sequence, through_mesh=False):
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import megatron_runs

    if not through_mesh:
        return megatron_runs.gpt(tensor, pipeline, sequence)
    from accord import megatron

    megatron.install()
    try:
        return megatron_runs.gpt(tensor, pipeline, sequence)
    finally:
        megatron.uninstall()


@pytest.mark.parametrize(
    ("tensor", "pipeline", "sequence"),
    [
        pytest.param(2, 1, False, id="tensor parallel"),
        pytest.param(2, 1, True, id="sequence parallel", marks=pytest.mark.slow),
        pytest.param(1, 2, False, id="pipeline parallel", marks=pytest.mark.slow),
    ],
)
def test_the_gpt_of_megatron_core_is_bit_identical_to_gloo(torch_ranks, tensor, pipeline, sequence):
    expected = torch_ranks(2).run(training, SUPPORT, tensor, pipeline, sequence, backend="gloo", deadline=180)
    found = torch_ranks(2).run(training, SUPPORT, tensor, pipeline, sequence, deadline=180)
    assert found == expected
    assert len(expected[-1]) > STEPS and expected[-1][STEPS - 1] < expected[-1][0]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "accord"])
def test_training_through_a_mesh_is_bit_identical_to_gloo(torch_ranks, backend):
    for ranks, tensor in ((2, 2), (4, 2)):  # TP 2, TP 2 x DP 2
        arguments = SUPPORT, tensor, 1, False
        expected = torch_ranks(ranks).run(training, *arguments, backend="gloo", deadline=180)
        found = torch_ranks(ranks).run(training, *arguments, True, backend=backend, deadline=180)
        assert found == expected
        assert len(expected[0]) > STEPS


# A typical user's script: it names gloo and nothing of accord.
SCRIPT = """
import json, sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
import megatron_runs
found = [None] * dist.get_world_size()
dist.all_gather_object(found, megatron_runs.gpt(2, 1, False))
if dist.get_rank() == 0:
    print(json.dumps([found, sorted(name for name in sys.modules if name.startswith("accord"))]))
dist.destroy_process_group()
"""


def losses_of(tmp_path, ranks: int, *options: str):
    program = python_file(tmp_path, SCRIPT)
    environment = program_environment(PYTHONWARNINGS="ignore")
    result = accord("run", *options, "-n", ranks, program, SUPPORT, env=environment, timeout=180)
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("[0] [[["))
    return json.loads(line.removeprefix("[0] "))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4], ids=["TP 2", "TP 2 x DP 2"])
def test_a_gloo_script_trains_equally_with_the_switch_on_and_off(tmp_path, ranks):
    off, nothing = losses_of(tmp_path, ranks)
    on, loaded = losses_of(tmp_path, ranks, "--route")
    assert nothing == ["accord_autoload"]
    assert "accord.torch.process_group" in loaded
    assert on == off
    assert len(off[0]) > STEPS
