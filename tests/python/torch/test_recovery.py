"""A rank dies in the middle of training. The other ranks are notified within a second and continue without it."""
# ruff: noqa: F821 (names that ranks.py provides)

import os
import re
import signal
import subprocess
import sys

import pytest
from accord_command import ROOT, clean_environment
from ranks import TORCH_PROGRAM


def continue_without_dead_ranks(group, dead, folder):
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
        took, text = time.monotonic() - began, f"{type(error).__name__}: {error}"
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


@pytest.mark.alone
@pytest.mark.parametrize("dead", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_survivors_create_a_new_default_group(fresh_ranks, tmp_path, dead):
    ranks = fresh_ranks(3, program=TORCH_PROGRAM, environments=[{"PLACE": str(rank)} for rank in range(3)])
    outcomes = ranks.outcomes(continue_without_dead_ranks, dead, str(tmp_path), deadline=120)
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


def wait_for_a_dead_rank(group, folder):
    """Rank 3 dies, and rank 2 a little later. Returns what the other ranks observe while they wait for them in the
    store."""
    import datetime

    rank, long = dist.get_rank(), datetime.timedelta(seconds=25)
    found = {}

    def died(victim):
        if rank == victim:
            with open(f"{folder}/{victim}", "w") as file:
                file.write(repr(time.time()))
            os.kill(os.getpid(), 9)

    def refused(name, make, victim):
        try:
            make()
        except accord.PeerLost as error:
            with open(f"{folder}/{victim}") as file:
                found[name] = time.time() - float(file.read()), error.ranks, str(error)

    dist.barrier()
    if rank == 3:
        time.sleep(0.2)  # Lets the other ranks reach most of the states that they can be in.
    died(3)
    refused("dies", lambda: dist.new_group(timeout=long), 3)
    refused("died", lambda: dist.new_group([1, 3, 0], timeout=long), 3)
    left = dist.new_group([0, 1, 2], timeout=long)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=left)
    found["left"] = x.item()
    if rank == 0:
        refused("all", lambda: group.monitored_barrier(datetime.timedelta(seconds=0.3), True), 3)
    dist.barrier(group=left)
    refused("barrier", lambda: group.monitored_barrier(long), 3)
    dist.barrier(group=left)
    if rank == 2:
        time.sleep(0.2)
    died(2)
    refused("again", lambda: dist.new_group([0, 1, 2], timeout=long), 2)
    return found


@pytest.mark.alone
def test_ranks_waiting_in_the_store_are_notified_of_a_death_within_a_second(fresh_ranks, tmp_path):
    outcomes = fresh_ranks(4, program=TORCH_PROGRAM).outcomes(wait_for_a_dead_rank, str(tmp_path), deadline=50)
    for rank in (0, 1):
        assert outcomes[rank].error is None, outcomes[rank].error
        found = outcomes[rank].value
        assert found.pop("left") == 3
        named = {name: ranks for name, (_, ranks, _) in found.items() if name != "all"}
        assert named == {"dies": (3,), "died": (2,), "barrier": (3,), "again": (2,)}
        # A busy machine may take longer than the second that each of them takes.
        assert all(took < 5 for took, *_ in found.values()), found
        assert "rank 3 of the default group died" in found["dies"][2]
        assert "Rank 3 died or closed" in found["barrier"][2]
    assert "Ranks 1, 2, 3 failed to pass monitoredBarrier in 300 ms; Rank 3 died" in outcomes[0].value["all"][2]


def lose_the_store(group):
    """Rank 0 serves the store and dies."""
    import datetime

    rank, long = dist.get_rank(), datetime.timedelta(seconds=25)
    port = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port[0] = store.port
    dist.broadcast(port, 0)
    if rank > 0:
        store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    dist.destroy_process_group()
    dist.init_process_group("accord", store=store, rank=rank, world_size=3)
    dist.barrier()
    if rank == 0:
        time.sleep(0.2)  # Lets the other ranks reach most of the states that they can be in.
        os.kill(os.getpid(), 9)
    found = []
    calls = (lambda: dist.group.WORLD.monitored_barrier(long), lambda: dist.new_group(timeout=long))
    for call in calls if rank == 1 else calls[::-1]:
        began = time.monotonic()
        try:
            call()
        except accord.PeerLost as error:
            found.append((time.monotonic() - began, error.ranks))
    return found


@pytest.mark.alone
def test_a_store_that_dies_with_its_rank_is_not_a_separate_error(fresh_ranks):
    outcomes = fresh_ranks(3, program=TORCH_PROGRAM).outcomes(lose_the_store, deadline=50)
    for rank in (1, 2):
        assert outcomes[rank].error is None, outcomes[rank].error
        found = outcomes[rank].value
        assert [ranks for _, ranks in found] == [(0,), (0,)]
        assert all(took < 5 for took, _ in found), found


def run_the_example(timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "examples/torch/survive.py"],
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), **environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.alone
def test_the_example_resumes_from_its_last_checkpoint():
    result = run_the_example(180, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    noticed = re.findall(r"rank (\d), ([\d.]+) s after the kill: .*PeerLost.* rank 0 of group", result.stdout)
    assert sorted(rank for rank, _ in noticed) == ["1", "2"]
    assert all(float(seconds) < 1 for _, seconds in noticed)
    resumed = re.findall(r"rank (\d) goes on from step 10 with ranks \[1, 2\]", result.stdout)
    assert sorted(resumed) == ["1", "2"]
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", result.stdout)}
    assert sorted(losses) == [10, 20, 30] and losses[30] < losses[10]


def test_the_example_explains_how_to_start_it():
    result = run_the_example(60, RANK="0")
    assert result.returncode == 2
    assert "start it without a launcher: python examples/torch/survive.py" in result.stderr
