"""Unusual uses of torch.distributed over accord: forking, arriving late, chaining, dropping, pickling."""
# ruff: noqa: F821 (names that ranks.py provides)

import os

from accord_command import accord, python_file


def forked(group, folder):
    """Each rank forks a child, which tries the parent's group and then uses a group of the children's own. The
    parents continue afterwards."""
    import json

    rank, size = dist.get_rank(), dist.get_world_size()
    child = os.fork()
    if child == 0:
        found = []
        try:
            dist.all_reduce(torch.ones(2))
        except accord.WrongState as error:
            found.append("forked" in str(error))
        dist.destroy_process_group()
        dist.init_process_group("accord", store=dist.FileStore(f"{folder}/s", size), rank=rank, world_size=size)
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.destroy_process_group()
        with open(f"{folder}/{rank}", "w") as file:
            json.dump([found, x.tolist()], file)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    x = torch.ones(2)
    dist.all_reduce(x)
    with open(f"{folder}/{rank}") as file:
        return ended, json.load(file), x.tolist()


def test_a_forked_child_can_have_its_own_group(torch_ranks, tmp_path):
    assert torch_ranks(2).run(forked, str(tmp_path)) == [(0, [[True], [2.0, 2.0]], [2.0, 2.0])] * 2


def late_to_barriers(group, folder):
    """Rank 1 is late for the first barrier. The barriers after it hold again, also in a new group on the same
    store."""
    import datetime
    import threading

    rank, size, seconds = dist.get_rank(), dist.get_world_size(), lambda s: datetime.timedelta(seconds=s)
    store = dist.FileStore(f"{folder}/barriers", size)
    outcomes, order = [], []

    def enter(limit):
        try:
            dist.group.WORLD.monitored_barrier(seconds(limit), True)
            outcomes.append("passed")
        except RuntimeError as error:
            outcomes.append(str(error))

    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("accord", store=store, rank=rank, world_size=size)
        if rank == 0:
            enter(0.2)
        dist.barrier()
        if rank == 1:
            enter(0.2)
        dist.barrier()
        # Now both: rank 0 must not pass before rank 1 has arrived.
        if rank == 1:
            threading.Event().wait(0.3)
            store.set(f"arrived {_}", "")
        enter(20)
        order.append(store.check([f"arrived {_}"]))
    return outcomes, order


def test_a_late_arrival_at_a_monitored_barrier_does_not_count_for_the_next_one(torch_ranks, tmp_path):
    found = torch_ranks(2).run(late_to_barriers, str(tmp_path))
    for rank, (outcomes, order) in enumerate(found):
        assert order == [True, True]
        assert len(outcomes) == 4 and outcomes[1] == outcomes[3] == "passed"
        for failed in (outcomes[0], outcomes[2]):
            assert ("Ranks 1 failed to pass" if rank == 0 else "Rank 1 successfully reached") in failed


def chains(group):
    """A callback chained to a future may communicate, whichever thread completes the operation."""
    a, b, c = torch.ones(4), torch.ones(4), torch.ones(60_000)
    first, second = dist.all_reduce(a, async_op=True), dist.all_reduce(c, async_op=True)
    chained = first.get_future().then(lambda _: dist.all_reduce(b))
    second.wait()
    chained.wait()
    return b.tolist()


def test_callbacks_chained_to_a_future_may_communicate(torch_ranks):
    for _ in range(5):
        assert torch_ranks(2).run(chains) == [[2.0] * 4] * 2


def call_in_unusual_ways(group):
    import pickle

    import accord.torch

    errors = []
    for call in (
        lambda: dist.irecv(torch.ones(2), src=None, tag=1 << 33).wait(),
        lambda: dist.all_reduce(torch.ones(1).expand(4)),
    ):
        try:
            call()
        except Exception as error:
            errors.append((type(error).__name__, str(error)))
    try:
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR)
    except accord.torch.InvalidArgument as error:
        errors.append((type(pickle.loads(pickle.dumps(error))).__name__, str(error)))
    with torch.inference_mode():
        inferred = torch.zeros(6)
    dist.all_reduce(inferred[::2], async_op=True).get_future().wait()
    dropped = torch.zeros(8)
    dropped[::2] = 1
    dist.all_reduce(dropped[::2], async_op=True)  # never waited for
    until = time.monotonic() + 10
    while dropped.sum() < 8 and time.monotonic() < until:
        time.sleep(0.001)
    return errors, inferred.tolist(), dropped.tolist()


def test_invalid_calls_inference_tensors_and_dropped_works_are_handled(torch_ranks):
    for errors, inferred, dropped in torch_ranks(2).run(call_in_unusual_ways):
        assert [kind for kind, _ in errors] == ["TypeError", "ValueError", "InvalidArgument"]
        assert "expanded" in errors[1][1] and "bxor" in errors[2][1]
        assert inferred == [0.0] * 6 and dropped == [2.0, 0.0] * 4


ENDS_IN_A_CALLBACK = """
import sys, time
import numpy as np
import accord

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1)  # the interpreter's end takes a while, as with torch

comm = accord.Communicator.from_environment()
begun = []
values = np.ones(100_000, np.float32)
if comm.rank == 0:
    sys.modules["slow"] = Slow()
    def end(error):
        begun.append(error)
        time.sleep(0.5)
        print("ended well", flush=True)
    comm.all_reduce_async(values).on_end(end)
    comm.send(values, 1)
    while not begun:
        time.sleep(0.001)
else:
    comm.recv(values, 0)
    comm.all_reduce(values)
"""


def test_a_program_may_exit_during_a_callback(tmp_path):
    result = accord("run", "-n", "2", python_file(tmp_path, ENDS_IN_A_CALLBACK), timeout=60)
    assert result.returncode == 0, result.stderr
    assert "ended well" in result.stdout
