"""torch.distributed groups over accord: how they are created, fail and end."""
# ruff: noqa: F821 (names that ranks.py provides)

import os
import signal
import time

import pytest
from accord_command import wait_until
from ranks import TORCH_PROGRAM


def groups(group):
    rank = dist.get_rank()
    found = {"backend": dist.get_backend(), "name": group.name(), "devices": [str(d) for d in group._device_types]}
    evens = dist.new_group([0, 2])
    odds = dist.new_group([1], use_local_synchronization=True) if rank == 1 else None
    mine = evens if rank % 2 == 0 else odds
    x = torch.full((3,), float(rank))
    dist.all_reduce(x, group=mine)
    found["sum"] = x.tolist()
    found["ranks"] = dist.get_process_group_ranks(mine), dist.get_rank(mine), dist.get_world_size(mine)
    halves = dist.new_subgroups(1)[0]
    found["subgroup"] = dist.get_world_size(halves)
    part = group.split_group([2, 0], group_name="turned")
    if part is not None:
        y = torch.full((2,), float(rank))
        gathered = [torch.empty(2) for _ in range(2)]
        part.allgather([gathered], [y]).wait()
        found["split"] = part.rank(), [t[0].item() for t in gathered], part.group_name
    before = group._get_sequence_number_for_group()
    dist.barrier()
    found["counted"] = group._get_sequence_number_for_group() - before
    if rank % 2 == 0:
        dist.destroy_process_group(evens)
    dist.all_reduce(x)
    return found


def test_subgroups(torch_ranks):
    found = torch_ranks(3).run(groups)
    assert {f["backend"] for f in found} == {"accord"} and {f["name"] for f in found} == {"accord"}
    assert [f["devices"] for f in found] == [["cpu"]] * 3
    assert [f["sum"] for f in found] == [[2.0] * 3, [1.0] * 3, [2.0] * 3]
    assert [f["ranks"] for f in found] == [([0, 2], 0, 2), ([1], 0, 1), ([0, 2], 1, 2)]
    assert [f["subgroup"] for f in found] == [1] * 3
    assert found[0]["split"] == (1, [2.0, 0.0], "turned") and found[2]["split"] == (0, [2.0, 0.0], "turned")
    assert "split" not in found[1]
    assert {f["counted"] for f in found} == {1}


def made_by_their_members(group):
    """Groups that only their members create, to which torch gives the same name, and the communicators of engines
    over them."""
    from accord.process_groups import shared_communicator

    pair = [0, 1] if dist.get_rank() < 2 else [2, 3]
    sums, shared = [], []
    for _ in range(8):
        mine = dist.new_group(pair)
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, group=mine)
        mine.monitored_barrier()
        sums.append(x.item())
        y = np.array([float(dist.get_rank())])
        shared_communicator(mine).communicator.all_reduce(y)
        shared.append(y.item())
    return mine.group_name, sums, shared


def test_disjoint_groups_may_share_a_name(torch_ranks):
    found = torch_ranks(4).run(made_by_their_members)
    assert len({name for name, _, _ in found}) == 1
    for rank, (_, sums, shared) in enumerate(found):
        assert sums == shared == [1.0 if rank < 2 else 5.0] * 8


def again(group, folder):
    """Destroys and recreates the group several times, with operations in progress and subgroups left behind."""
    import gc

    rank, size = dist.get_rank(), dist.get_world_size()
    sums = []
    for attempt in range(4):
        left_behind = dist.new_group(list(range(size)))
        x = torch.ones(1 << 16)
        work = dist.all_reduce(x, group=left_behind, async_op=True)
        if attempt % 2 == 0:
            work.wait()
            del left_behind
            gc.collect()
        else:
            dist.barrier()
            work.wait()
        dist.destroy_process_group()
        sums.append(x[0].item())
        store = dist.FileStore(f"{folder}/{attempt}", size)
        dist.init_process_group("accord", store=store, rank=rank, world_size=size)
    return sums


def test_a_group_can_be_recreated(torch_ranks, tmp_path):
    assert torch_ranks(2).run(again, str(tmp_path)) == [[2.0] * 4] * 2


def threads(group):
    """Each thread has its own group. Then one thread lists calls while another one runs some."""
    import threading

    rank = dist.get_rank()
    mine = [dist.new_group() for _ in range(3)]
    errors = []

    def work(number):
        try:
            for i in range(50):
                x = torch.full((100,), float(rank + number))
                dist.all_reduce(x, group=mine[number], async_op=i % 2 == 0) and dist.barrier(group=mine[number])
                if i % 2 == 1:
                    assert x[0] == 2 * number + 1, x[0]
        except BaseException as error:
            errors.append(repr(error))

    started = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    inside = threading.Event()
    done = threading.Event()
    other = torch.ones(4)

    def beside():
        inside.wait()
        dist.all_reduce(other, group=mine[0])
        done.set()

    thread = threading.Thread(target=beside)
    thread.start()
    listed = torch.full((4,), 5.0)
    with dist._coalescing_manager(mine[1], torch.device("cpu")):
        dist.broadcast(listed, 0, group=mine[1])
        inside.set()
        done.wait()
    thread.join()
    return errors, other.tolist(), listed.tolist()


def test_threads(torch_ranks):
    assert torch_ranks(2).run(threads) == [([], [2.0] * 4, [5.0] * 4)] * 2


def disagree(group):
    rank = dist.get_rank()
    turned = dist.new_group([1, 2])
    failure = None
    if rank > 0:
        try:
            dist.all_reduce(torch.ones(rank), group=turned)
        except dist.DistBackendError as error:
            failure = type(error).__name__, isinstance(error, accord.Mismatch), str(error), error.ranks, error.__notes__
    x = torch.ones(2)
    dist.all_reduce(x)  # the other group is unaffected
    slow = []
    store = group.get_group_store()
    dist.group.WORLD.set_timeout(__import__("datetime").timedelta(seconds=0.3))
    if rank != 1:
        try:
            dist.barrier()
        except accord.Timeout as error:
            slow.append((isinstance(error, TimeoutError), list(error.ranks)))
        store.set(f"done {rank}", "")
    else:
        store.wait(["done 0", "done 2"])
    return failure, x.tolist(), slow


def test_errors_are_types_of_accord_and_torch_and_give_global_ranks(torch_ranks):
    found = torch_ranks(3).run(disagree)
    for rank in (1, 2):
        name, is_mismatch, text, ranks, notes = found[rank][0]
        assert (name, is_mismatch) == ("Mismatch", True) and "all_reduce" in text
        assert ranks and notes == [f"global ranks: {', '.join(str(r + 1) for r in ranks)}"]
    assert [f[1] for f in found] == [[3.0, 3.0]] * 3
    assert found[0][2] == found[2][2] == [(True, [1])]


def mixed(group, folder):
    """A second backend for tensors of another device: torch's fake backend, which returns without doing anything."""
    # Registers the backend "fake" if torch has not done so.
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401

    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/mixed", size)
    dist.init_process_group("cpu:accord,meta:fake", store=store, rank=rank, world_size=size)
    x, y = torch.ones(3), torch.ones(3, device="meta")
    try:
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cuda")):
            pass
    except TypeError as error:
        assert "cpu:accord,cuda:BACKEND" in str(error)
    dist.all_reduce(x)  # runs, although torch had begun to list calls
    dist.all_reduce(y)
    dist.all_gather_into_tensor(torch.empty(6, device="meta"), y)
    with dist.distributed_c10d._coalescing_manager(device=y.device, async_ops=True) as block:
        dist.broadcast(y, 0)
    block.wait()
    assert dist.batch_isend_irecv([dist.P2POp(dist.isend, y, 0), dist.P2POp(dist.irecv, y, 0)])
    part = dist.new_group([0, 1])
    dist.all_reduce(y, group=part)
    try:
        dist.all_reduce(torch.ones(2).to_sparse())
    except TypeError as error:
        return x.tolist(), sorted(map(str, dist.group.WORLD._device_types)), str(error)


def test_other_devices_use_the_backend_named_for_them(torch_ranks, tmp_path):
    for x, devices, message in torch_ranks(2).run(mixed, str(tmp_path)):
        assert x == [2.0] * 3 and devices == ["cpu", "meta"] and "sparse" in message


def split_by_torch(group):
    """Creates groups with dist.split_group: one in another order, one of a split group, one with its own timeout."""
    from datetime import timedelta

    rank, found = dist.get_rank(), []

    def made_and_used(**how):
        part = dist.split_group(**how)
        if part is dist.GroupMember.NON_GROUP_MEMBER:
            found.append(None)
            return None
        x = torch.full((2,), float(rank + 1))
        dist.all_reduce(x, group=part)
        ranks = dist.get_process_group_ranks(part)
        timeout = part._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        found.append((x.tolist(), dist.get_rank(part), ranks, part.group_desc, timeout, dist.get_backend(part)))
        return part

    pair = made_and_used(split_ranks=[[1, 0], [2]])
    made_and_used(split_ranks=[[0, 2]], timeout=timedelta(seconds=77), group_desc="ends", backend=dist.get_backend())
    made_and_used(parent_pg=pair, split_ranks=[[0]])
    dist.barrier()
    return found


def test_torch_splits_groups(torch_ranks):
    pytest.importorskip("torch", "2.15", reason="torch splits groups without an accelerator from 2.15")
    over_gloo = torch_ranks(3).run(split_by_torch, backend="gloo")
    over_accord = torch_ranks(3).run(split_by_torch)
    assert over_accord == [[one and (*one[:-1], "accord") for one in rank] for rank in over_gloo]
    assert over_accord[0][1] == ([4.0, 4.0], 0, [0, 2], "ends", 77.0, "accord") and over_accord[1][1] is None


def futures(group):
    """Futures that hooks are chained to complete by themselves, with the tensors or with an error."""
    rank = dist.get_rank()
    x = torch.full((70_000,), float(rank))
    halved = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] / 2)
    value = halved.wait()[0].item()
    spread = torch.zeros(8)
    received = dist.broadcast(spread[::2], 0, async_op=True).get_future() if rank else None
    if rank == 0:
        dist.broadcast(torch.full((4,), 3.0), 0)
    else:
        received.wait()
    failed = dist.new_group()
    work = dist.all_reduce(torch.ones(2 + rank), group=failed, async_op=True)
    message = None
    try:
        work.get_future().wait()
    except RuntimeError as error:
        message = str(error)
    return value, spread.tolist(), message, work.is_completed(), work.is_success(), type(work.exception()).__name__


def test_futures_complete_with_the_operation(torch_ranks):
    for rank, (value, spread, message, completed, success, error) in enumerate(torch_ranks(2).run(futures)):
        assert value == 0.5
        assert spread == ([3.0, 0.0] * 4 if rank else [0.0] * 8)
        assert "Mismatch" in message and (completed, success, error) == (True, False, "Mismatch")


def die_in_a_step(group, victim, folder):
    rank = dist.get_rank()
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(50, 50))
    x = torch.ones(100)
    dist.all_reduce(x)
    os.mkdir(os.path.join(folder, str(rank)))
    if rank == victim:
        time.sleep(60)
    try:
        model(torch.ones(1, 50)).sum().backward()
    except RuntimeError as error:
        return time.time(), str(error)


def test_a_rank_killed_in_a_step_of_ddp_is_named_within_a_second(fresh_ranks, tmp_path):
    killed = []

    def kill(processes):
        wait_until(lambda: len(os.listdir(tmp_path)) == 3, "all ranks to have begun", 50)
        killed.append(time.time())
        processes[1].send_signal(signal.SIGKILL)

    outcomes = fresh_ranks(3, program=TORCH_PROGRAM).outcomes(die_in_a_step, 1, str(tmp_path), while_running=kill)
    for rank in (0, 2):
        when, message = outcomes[rank].value
        assert "PeerLost" in message and "rank 1" in message
        assert when - killed[0] < 3, "a busy machine may take longer than the second that it takes"


def own_plan(group, folder):
    program = accord.plan.Program("all_reduce", ranks=2, name="of_torchs_user")
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        mine.copy(mine.input[0], mine.scratch[0]).signal(peer).wait(peer)
        mine.reduce(sorted([mine.input[0], peer.scratch[0]]), mine.output[0])
    program.register(bytes="0-4k")
    sums = [torch.full((n,), dist.get_rank() + 1.0) for n in (100, 4000)]
    for values in sums:
        dist.all_reduce(values)
    with open(group.communicator.dump(folder)) as dumped:
        served = dumped.read().count("of_torchs_user")
    return [values.unique().tolist() for values in sums], served


def test_a_user_plan_serves_calls_of_its_sizes(torch_ranks, tmp_path):
    for sums, served in torch_ranks(2).run(own_plan, str(tmp_path)):
        assert sums == [[3.0], [3.0]]
        assert served == 1


def in_detail(group, folder):
    """Calls with torch's detailed checks enabled, in a process that had them disabled."""
    from torch.distributed import distributed_c10d

    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        store = dist.FileStore(f"{folder}/detail", size)
        dist.init_process_group("accord", store=store, rank=rank, world_size=size)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        model(torch.ones(1, 3)).sum().backward()
        x = torch.ones(2)
        dist.all_reduce(x)
        message = ""
        try:
            dist.all_reduce(torch.ones(2 + rank))
        except RuntimeError as error:
            message = str(error)
        return x.tolist(), message, distributed_c10d.get_backend()
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def test_torchs_debug_level_detail(torch_ranks, tmp_path):
    for x, message, backend in torch_ranks(2).run(in_detail, str(tmp_path)):
        assert x == [2.0, 2.0] and backend == "accord"
        assert "all_reduce" in message and "2 x float32" in message and "3 x float32" in message
