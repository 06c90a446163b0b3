"""A rank dies in the middle of a training: the others learn of it within a second and go on without it."""
# ruff: noqa: F821 (what ranks.py gives to functions)

import os
import re
import signal
import subprocess
import sys

import pytest
from accord_command import ROOT, clean_environment
from ranks import TORCH_PROGRAM


def go_on_without_the_dead(group, dead, folder):
    import datetime

    import accord.torch

    dist.destroy_process_group()
    dist.init_process_group(
        "accord",
        store=dist.FileStore(f"{folder}/store", 3),
        rank=int(os.environ["PLACE"]),
        world_size=3,
        timeout=datetime.timedelta(seconds=25),
        pg_options=accord.torch.Options(hints="recorder_size=64"),
    )
    rank = dist.get_rank()
    part = dist.new_group([0, 1, 2])
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    def die(_):
        if rank == dead:
            os.kill(os.getpid(), 9)

    model(torch.ones(2, 4)).sum().backward()
    model.module.weight.register_hook(die)
    began = time.monotonic()
    try:
        model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        took, text = time.monotonic() - began, str(error)
    state = accord.torch.communicator().state
    left = accord.torch.shrink()
    now = dist.group.WORLD
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.full((1, 4), float(rank))).sum().backward()
    return {
        "took": took,
        "text": text,
        "state": state,
        "left": left,
        "rank": (dist.get_rank(), dist.get_world_size()),
        "sum": x.item(),
        "gradient": model.module.weight.grad.flatten().tolist(),
        "made": (dist.get_backend(), now.timeout.total_seconds(), now.options_given.hints),
        "part": part in dist.distributed_c10d._world.pg_map,
    }


@pytest.mark.parametrize("dead", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_ranks_that_are_left_make_a_new_default_group(fresh_ranks, tmp_path, dead):
    ranks = fresh_ranks(3, program=TORCH_PROGRAM, environments=[{"PLACE": str(rank)} for rank in range(3)])
    outcomes = ranks.outcomes(go_on_without_the_dead, dead, str(tmp_path), deadline=120)
    assert outcomes[dead].exit_code == -signal.SIGKILL
    left = [rank for rank in range(3) if rank != dead]
    for place, rank in enumerate(left):
        assert outcomes[rank].error is None, outcomes[rank].error
        found = outcomes[rank].value
        assert found["took"] < 1
        assert "PeerLost" in found["text"] and f"rank {dead} of group" in found["text"]
        assert found["state"] == "failed" and not found["part"]
        assert found["left"] == left and found["rank"] == (place, 2)
        assert found["sum"] == sum(left) and found["gradient"] == [sum(left) / 2] * 4
        assert found["made"] == ("accord", 25, "recorder_size=64")


def test_the_example_goes_on_from_its_last_checkpoint():
    result = subprocess.run(
        [sys.executable, ROOT / "examples/torch/survive.py"],
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    noticed = re.findall(r"rank (\d) after ([\d.]+) s: .*PeerLost.* rank 0 of group", result.stdout)
    assert sorted(rank for rank, _ in noticed) == ["1", "2"]
    assert all(float(seconds) < 1 for _, seconds in noticed)
    goes_on = re.findall(r"rank (\d) goes on from step 10 with ranks \[1, 2\]", result.stdout)
    assert sorted(goes_on) == ["1", "2"]
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", result.stdout)}
    assert sorted(losses) == [10, 20, 30] and losses[30] < losses[10]
