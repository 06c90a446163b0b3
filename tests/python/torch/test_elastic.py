"""accord.torch.ElasticGroup: training goes on without killed ranks and with new ones, and ends as without kills."""

import re

import pytest
import torch
from accord_command import ROOT, accord, program_environment, python_file

PAGE = ROOT / "docs/elastic.md"

# Fits a model to points that are shared out among the ranks, whatever their number. Rank R is killed in the midst of
# step K, once, for the pairs R:K in its arguments. From step 100 on there are WANTED ranks.
PROGRAM = """
import os, pathlib, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import accord.torch

folder, steps, wanted, *kills = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)

def make_step():
    replica, rank, ranks = DistributedDataParallel(model), dist.get_rank(), dist.get_world_size()
    print("group", elastic.round, rank, ranks, flush=True)
    group = dist.new_group(range(ranks))

    def step(number):
        points = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        mine = points[rank::ranks]
        while rank == 0 and number >= 100 and ranks < int(wanted) and not elastic._members.others_wait():
            pass  # so that all ranks take part in the end
        optimizer.zero_grad()
        loss = (replica(mine) - mine.sum(1, keepdim=True)).square().sum() / 12
        once = pathlib.Path(folder) / f"{os.environ['RANK']}:{number}"
        if once.name in kills and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (loss * ranks).backward()
        dist.all_reduce(torch.ones(1), group=group)
        optimizer.step()
    return step

with accord.torch.ElasticGroup.from_environment(last_call=60) as elastic:
    assert elastic.run(make_step, int(steps), state=[model, optimizer])
print("weights", *(value.hex() for value in torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()),
      flush=True)
"""
STEPS = 120


def expected() -> torch.Tensor:
    """The weights after the same steps in one process, by torch alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for number in range(STEPS):
        points = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        ((model(points) - points.sum(1, keepdim=True)).square().sum() / 12).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def run(tmp_path, options, wanted, kills):
    program = python_file(tmp_path, PROGRAM)
    result = accord("run", *options, program, tmp_path, STEPS, wanted, *kills, timeout=170, env=program_environment())
    assert result.returncode == 0, result.stdout + result.stderr
    weights = [
        torch.tensor([float.fromhex(value) for value in line.split()[2:]], dtype=torch.float64)
        for line in result.stdout.splitlines()
        if " weights " in line
    ]
    groups = re.findall(r"group (\d+) (\d+) (\d+)$", result.stdout, re.MULTILINE)
    sizes = {int(number): int(size) for number, _, size in groups}
    return weights, [size for _, size in sorted(sizes.items())]


def test_training_with_kills_ends_as_without(tmp_path):
    weights, sizes = run(tmp_path, ["--elastic", "1:3"], 3, ["1:20", "0:40", "2:60"])
    assert sizes[0] == 3
    assert 2 in sizes
    assert len(weights) == 3
    for found in weights:
        assert torch.equal(found, weights[0])
        torch.testing.assert_close(found, expected(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_job_goes_on_with_the_last_rank(tmp_path):
    weights, sizes = run(tmp_path, ["--elastic", "1:3", "--max-restarts", 0], 1, ["0:10", "2:10"])
    assert (sizes[0], sizes[-1]) == (3, 1)
    assert len(weights) == 1
    torch.testing.assert_close(weights[0], expected(), rtol=1e-9, atol=1e-12)


def test_a_failure_of_the_program_ends_that_rank_alone(tmp_path):
    text = PROGRAM.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('of the program')")
    program = python_file(tmp_path, text)
    result = accord(
        "run", "--elastic", "1:2", program, tmp_path, STEPS, 2, "1:5", timeout=170, env=program_environment()
    )
    assert result.returncode == 0, result.stderr
    assert "ValueError: of the program" in result.stderr
    assert "exited with code 1; starting it again (1 of 10)" in result.stderr
    assert result.stdout.count(" weights ") == 2


def test_a_program_that_was_not_started_as_elastic_is_told_so(tmp_path):
    program = python_file(tmp_path, "import accord.torch; accord.torch.ElasticGroup.from_environment()")
    result = accord("run", "-n", 1, program, env=program_environment())
    assert result.returncode == 1
    assert "ACCORD_ELASTIC is missing; accord run --elastic MIN:MAX sets it" in result.stderr


REPEATED = """
import accord.torch, torch, torch.distributed as dist

def make_step():
    return lambda number: dist.all_reduce(torch.zeros(2 + (dist.get_rank() if number == 3 else 0)))

with accord.torch.ElasticGroup.from_environment(last_call=60) as elastic:
    elastic.run(make_step, %d, state=[])
    elastic.run(make_step, 3, state=[])
"""


def test_a_mistake_of_the_program_is_not_repeated(tmp_path):
    program = python_file(tmp_path, REPEATED % 5)
    result = accord("run", "--elastic", "2:2", "--max-restarts", 0, program, timeout=100, env=program_environment())
    assert result.returncode != 0
    assert "Mismatch" in result.stderr


@pytest.mark.slow
def test_a_second_job_of_one_group_is_refused(tmp_path):
    program = python_file(tmp_path, REPEATED % 3)
    result = accord("run", "--elastic", "2:2", "--max-restarts", 0, program, timeout=100, env=program_environment())
    assert result.returncode == 1
    assert "the job of this elastic group is finished; another one needs another name" in result.stderr


def test_any_dense_state_reaches_a_new_rank(tmp_path):
    text = """
import os, signal
import torch, torch.distributed as dist, accord.torch

class State(torch.nn.Module):
    def __init__(self):
        super().__init__()
        kinds = [torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.zeros(4, 3).t()]
        for number, tensor in enumerate(kinds):
            self.register_buffer(str(number), tensor)

state = State()

def make_step():
    def step(number):
        dist.all_reduce(torch.zeros(1))
        if number == 10 and elastic.round == 1 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 20 and elastic.round == 2:  # until the other rank is there again
            while not elastic._members.others_wait():
                pass
        dist.all_reduce(torch.zeros(1))
        for tensor in state.buffers():
            tensor += 1
    return step

with accord.torch.ElasticGroup.from_environment(last_call=60) as elastic:
    elastic.run(make_step, 30, state=[state])
print("values", sorted({float(value) for tensor in state.buffers() for value in tensor.flatten()}), flush=True)
"""
    result = accord("run", "--elastic", "1:2", python_file(tmp_path, text), timeout=150, env=program_environment())
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("values [30.0]") == 2


def test_the_program_of_the_page_runs(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    result = accord("run", "--elastic", "2:2", python_file(tmp_path, program), env=program_environment())
    assert result.returncode == 0, result.stderr


def test_too_few_ranks_are_a_timeout(tmp_path):
    program = python_file(
        tmp_path,
        "import accord.torch, torch.distributed as dist\n"
        "elastic = accord.torch.ElasticGroup(dist.HashStore(), 2, form_timeout=0.2)\n"
        "try:\n    elastic.form()\nexcept accord.Timeout as error:\n    print(error)\n",
    )
    result = accord("run", "-n", 1, program, env=program_environment())
    assert "1 of at least 2 ranks came within 200 ms" in result.stdout, result.stderr
