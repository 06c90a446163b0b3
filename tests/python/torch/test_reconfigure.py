"""Process groups that are formed again and again of other ranks, by torch's interface for fault tolerance."""
# ruff: noqa: F821 (names that ranks.py provides)

import os
import signal

import pytest
import torch
from accord_command import SUPPORT, wait_until
from ranks import TORCH_PROGRAM

# The tests call the group's own methods, which torch's functions (dist._reconfigure, from 2.14 on) call as well.


def form_and_leave_out(group, support, folder):
    import datetime
    import types

    import accord.torch

    sys.path.append(support)
    from handle_folder import gather_handles

    who = dist.get_rank()
    dist.destroy_process_group()
    dist.init_process_group(
        "accord",
        store=dist.FileStore(f"{folder}/store", 3),
        rank=who,
        world_size=3,
        timeout=datetime.timedelta(seconds=25),
        pg_options=accord.torch.Options(enable_reconfigure=True, window_bytes=1 << 20),
    )
    group = dist.group.WORLD
    seen = [("new", dist.get_rank(), dist.get_world_size(), group.supports_reconfigure)]

    def refused():
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            return type(error).__name__, str(error)

    def form(uuid, members, timeout=None, kind=list):
        handles = gather_handles(folder, str(uuid), who, members, group.get_reconfigure_handle())
        options = types.SimpleNamespace(uuid=uuid, handles=kind(handles), timeout=timeout, hints={})
        group.reconfigure(options).wait()

    def total():
        x = torch.tensor([float(who + 1)])
        dist.all_reduce(x)
        return dist.get_rank(), dist.get_world_size(), x.item()

    seen.append(refused())
    form(1, [0, 1, 2])
    seen.append(total())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.full((1, 2), float(who))).sum().backward()
    seen.append(model.module.weight.grad.flatten().tolist())
    seen.append(accord.torch.empty(3).shape)
    group.monitored_barrier()
    if who != 1:
        form(2, [2, 0])
        seen.append(total())
        group.monitored_barrier()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.full((1, 2), float(who))).sum().backward()
        seen.append(model.module.weight.grad.flatten().tolist())
    form(3, [1, 0, 2], kind=set)
    seen.append((sorted(dist.get_process_group_ranks(group)), total()[1:]))
    try:
        form(3, [0, 1, 2])
    except RuntimeError as error:
        seen.append((type(error).__name__, "already used" in str(error), total()[2]))
    part = dist.new_group([0, 2])
    seen.append(part.size() if dist.get_rank() != 1 else None)
    return seen


def test_a_group_is_formed_leaves_ranks_out_and_takes_them_in(torch_ranks, tmp_path):
    outcomes = torch_ranks(3).outcomes(form_and_leave_out, SUPPORT, str(tmp_path), deadline=120)
    for who, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        seen = outcome.value
        assert seen.pop(0) == ("new", who, 3, True)
        kind, text = seen.pop(0)
        assert kind == "WrongState" and "the group is not formed yet" in text
        assert seen.pop(0) == (who, 3, 6)
        assert seen.pop(0) == [1, 1]  # the mean of 0, 1 and 2
        assert seen.pop(0) == (3,)
        if who != 1:
            assert seen.pop(0) == ({2: 0, 0: 1}[who], 2, 4)
            assert seen.pop(0) == [1, 1]  # the mean of 0 and 2
        assert seen.pop(0) == ([0, 1, 2], (3, 6))
        assert seen.pop(0) == ("InvalidArgument", True, 6)
        assert seen in ([2], [None])


def heal(group, support, folder):
    import datetime
    import types

    import accord.torch

    sys.path.append(support)
    from accord_command import wait_until
    from handle_folder import gather_handles

    who = dist.get_rank()
    dist.destroy_process_group()
    options = accord.torch.Options(enable_reconfigure=True)
    store = dist.FileStore(f"{folder}/store", 3)
    dist.init_process_group("accord", store=store, rank=who, world_size=3, pg_options=options)
    group = dist.group.WORLD
    fired = []

    def form(uuid, members):
        handles = gather_handles(folder, str(uuid), who, members, group.get_reconfigure_handle())
        limit = datetime.timedelta(seconds=20)
        group.reconfigure(types.SimpleNamespace(uuid=uuid, handles=handles, timeout=limit, hints={})).wait()

    def error():
        return str(group.get_error()).removeprefix("ErrorType.")

    form(1, [0, 1, 2])
    seen = [error()]
    group.register_abort_hook(7, lambda: fired.append("hook"))
    group.set_timeout(datetime.timedelta(milliseconds=50))
    if who == 1:
        try:
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        except RuntimeError as late:
            seen += [type(late).__name__, error()]
            wait_until(lambda: fired, "the hook has run, on whichever thread")
            seen.append(list(fired))
    group.set_timeout(datetime.timedelta(seconds=20))
    store.set(f"timed out {who}", "")
    store.wait([f"timed out {rank}" for rank in range(3)])
    form(2, [0, 1, 2])
    group.abort()
    seen.append(error())
    form(3, [0, 1, 2])
    os.mkdir(f"{folder}/ready {who}")
    try:
        while True:
            dist.all_reduce(torch.ones(1))
    except RuntimeError as lost:
        seen += [type(lost).__name__, error()]
    form(4, [0, 1])
    x = torch.tensor([float(who + 1)])
    dist.all_reduce(x)
    return *seen, x.item()


@pytest.mark.alone
def test_a_group_heals_after_a_timeout_an_abort_and_a_death(fresh_ranks, tmp_path):
    def kill(processes):
        wait_until(lambda: (tmp_path / "ready 2").exists(), "the ranks compute")
        processes[2].send_signal(signal.SIGKILL)

    outcomes = fresh_ranks(3, program=TORCH_PROGRAM).outcomes(
        heal, SUPPORT, str(tmp_path), deadline=120, while_running=kill
    )
    assert outcomes[2].exit_code == -signal.SIGKILL
    assert [outcomes[who].error for who in (0, 1)] == [None, None]
    assert outcomes[0].value == ("SUCCESS", "SUCCESS", "PeerLost", "REMOTE_ERROR", 3)
    assert outcomes[1].value == ("SUCCESS", "Timeout", "TIMEOUT", ["hook"], "SUCCESS", "PeerLost", "REMOTE_ERROR", 3)


def end_early(group, folder):
    import types

    import accord.torch

    dist.destroy_process_group()
    options = accord.torch.Options(enable_reconfigure=True)
    dist.init_process_group(
        "accord", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1, pg_options=options
    )
    group, fired, seen = dist.group.WORLD, [], []
    group.register_abort_hook(1, lambda: fired.append(1))

    def failure(call, *arguments):
        try:
            call(*arguments)
        except (RuntimeError, TypeError, AttributeError) as error:
            return type(error).__name__

    def start(uuid, handles):
        return group.reconfigure(types.SimpleNamespace(uuid=uuid, handles=handles, timeout=None, hints={}))

    seen.append(failure(dist.all_reduce, torch.ones(1)))
    seen.append(failure(group.recv_anysource, [torch.ones(1)]))
    seen.append(failure(start, "bad", None))
    work = start("text", [group.get_reconfigure_handle(), 7])
    seen += [failure(work.wait), type(work.exception()).__name__]
    seen.append((list(fired), str(group.get_error())))
    with accord.Communicator.alone() as silent:
        work = start("aborted", [group.get_reconfigure_handle(), silent.handle()])
        seen.append(failure(start, "second", []))
        group.abort()
        seen.append(failure(work.wait))
    start("alone", [group.get_reconfigure_handle()]).wait()
    x = torch.ones(1)
    dist.all_reduce(x)
    seen.append((x.item(), list(fired)))
    seen.append(failure(lambda: dist.new_group(pg_options=options)))
    return seen


def test_a_reconfiguration_can_be_aborted_and_wrong_arguments_change_nothing(torch_ranks, tmp_path):
    (outcome,) = torch_ranks(1).outcomes(end_early, str(tmp_path))
    assert outcome.error is None, outcome.error
    assert outcome.value == [
        "WrongState",
        "WrongState",
        "TypeError",
        "TypeError",
        "TypeError",
        ([], "ErrorType.SUCCESS"),
        "WrongState",
        "Closed",
        (1, [1]),
        "Unsupported",
    ]


def interrupt(group, folder):
    import os
    import signal
    import threading

    import accord.torch

    dist.destroy_process_group()
    options = accord.torch.Options(enable_reconfigure=True)
    store = dist.FileStore(f"{folder}/store", 1)
    dist.init_process_group("accord", store=store, rank=0, world_size=1, pg_options=options)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def when_it_waits():
        while not {"reconfigure", "wait"} <= {frame.f_code.co_name for frame in callers()}:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    def callers():
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            yield frame
            frame = frame.f_back

    with accord.Communicator.alone() as silent:
        threading.Thread(target=when_it_waits).start()
        try:
            accord.torch.reconfigure("first", [accord.torch.reconfigure_handle(), silent.handle()])
        except KeyboardInterrupt:
            accord.torch.reconfigure("second", [accord.torch.reconfigure_handle()])
            x = torch.ones(1)
            dist.all_reduce(x)
            return x.item(), dist.get_world_size()


def test_ctrl_c_ends_a_reconfiguration_and_the_next_one_works(torch_ranks, tmp_path):
    (outcome,) = torch_ranks(1).outcomes(interrupt, str(tmp_path))
    assert outcome.error is None, outcome.error
    assert outcome.value == (1, 1)


def interrupt_at_start(group, folder, is_started):
    import threading

    import accord.torch

    dist.destroy_process_group()
    options = accord.torch.Options(enable_reconfigure=True)
    store = dist.FileStore(f"{folder}/store", 1)
    dist.init_process_group("accord", store=store, rank=0, world_size=1, pg_options=options)
    start, threads = threading.Thread.start, []

    def interrupted_start(thread):
        if is_started:
            start(thread)
        threads.append(thread)
        raise KeyboardInterrupt

    threading.Thread.start = interrupted_start
    with accord.Communicator.alone() as silent:
        try:
            accord.torch.reconfigure("first", [accord.torch.reconfigure_handle(), silent.handle()])
        except KeyboardInterrupt:
            threading.Thread.start = start
            if not is_started:  # a thread that starts after all does nothing
                start(threads[0])
            threads[0].join()
            accord.torch.reconfigure("second", [accord.torch.reconfigure_handle()])
            x = torch.ones(1)
            dist.all_reduce(x)
            return x.item(), dist.get_world_size()


@pytest.mark.parametrize("is_started", [False, True])
def test_ctrl_c_while_the_thread_starts_ends_a_reconfiguration(torch_ranks, tmp_path, is_started):
    (outcome,) = torch_ranks(1).outcomes(interrupt_at_start, str(tmp_path), is_started)
    assert outcome.error is None, outcome.error
    assert outcome.value == (1, 1)


def use_torchs_functions(group, support, folder):
    import datetime

    sys.path.append(support)
    from handle_folder import gather_handles

    who = dist.get_rank()
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("accord", store=store, rank=who, world_size=2, enable_reconfigure=True)
    handles = gather_handles(folder, "torch", who, [1, 0], dist._get_reconfigure_handle())
    work = dist._reconfigure(uuid=5, handles=handles, timeout=datetime.timedelta(seconds=20), hints={"any": "thing"})
    return work.wait(), work.is_success(), dist._supports_reconfigure(), dist.get_rank(), dist.get_world_size()


@pytest.mark.skipif(
    not hasattr(torch.distributed, "_reconfigure"),
    reason=f"torch {torch.__version__} has no dist._reconfigure (2.14 has)",
)
def test_torchs_functions_call_it(torch_ranks, tmp_path):
    outcomes = torch_ranks(2).outcomes(use_torchs_functions, SUPPORT, str(tmp_path))
    assert [outcome.value for outcome in outcomes] == [(True, True, True, 1, 2), (True, True, True, 0, 2)]
