"""Communicators whose members change, by torchcomms' reconfigure interface. torchcomms passes these calls to a backend
in C++ only: here a stand-in for torchcomms takes the place of both, in test_native.py they come from torchcomms."""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest
from accord_command import SUPPORT
from ranks import TORCH_PROGRAM

pytest.importorskip("torch")


def form_and_leave_out(group, support, folder):
    import datetime

    sys.path.append(support)
    import torchcomms_stand_in as stand_in
    from handle_folder import gather_handles

    who, seen = dist.get_rank(), []
    backend = stand_in.install()()
    seconds = datetime.timedelta(seconds=25)
    backend.init(torch.device("cpu"), "elastic", stand_in.options(enable_reconfigure=True, timeout=seconds))
    seen.append((backend.get_rank(), backend.get_size(), backend.is_ready(), backend.is_failed()))

    def refused(call, *arguments):
        try:
            call(*arguments)
        except RuntimeError as error:
            return type(error).__name__, str(error)

    def form(uuid, members, kind=list, **hints):
        handles = gather_handles(folder, str(uuid), who, members, backend.get_init_handle())
        backend.reconfigure(uuid, kind(handles), hints, datetime.timedelta(seconds=20))

    def total():
        x = torch.tensor([float(who + 1)])
        backend.all_reduce(x, stand_in.ADD, False)
        return backend.get_rank(), backend.get_size(), x.item()

    seen.append(refused(backend.all_reduce, torch.ones(1), stand_in.ADD, False)[1])
    seen.append(refused(backend.split, [0], "part", stand_in.options())[1])
    seen.append(refused(backend.new_window().tensor_register, torch.ones(1))[1])
    assert backend.get_init_handle() == backend.get_init_handle()
    form(1, [0, 1, 2])
    assert backend.is_ready()
    seen.append(total())
    if who != 1:
        form(2, [2, 0])
        seen.append(total())
    form(3, [1, 0, 2], kind=set, **{"async": "background"})
    seen.append(total()[1:])
    seen.append(backend.all_reduce(torch.ones(1), stand_in.ADD, True) is not None)  # by the hint
    backend.barrier(False)
    seen.append(refused(form, 3, [0, 1, 2]))
    seen.append(total()[1:])
    with_unknown = refused(backend.reconfigure, 4, [backend.get_init_handle()], {"wayt": "spin"})
    seen.append(with_unknown[1])
    part = backend.split([0, 1], "part", stand_in.options()) if backend.get_rank() < 2 else None
    if part is not None:
        part.reconfigure(5, [part.get_init_handle()], {})
        seen.append((part.get_rank(), part.get_size()))
        part.finalize()
    dist.barrier()  # of another group: all have left the calls above
    backend.communicator.abort("for a test")
    seen.append((backend.is_failed(), backend.is_ready(), refused(backend.barrier, False)[0]))
    form(6, [0, 1, 2])
    seen.append(total())
    backend.finalize()
    return seen


def test_a_communicator_is_formed_leaves_ranks_out_and_heals(torch_ranks, tmp_path):
    outcomes = torch_ranks(3).outcomes(form_and_leave_out, SUPPORT, str(tmp_path), deadline=120)
    parts = 0
    for who, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        seen = outcome.value
        assert seen.pop(0) == (-1, 0, False, False)
        for call in ("all_reduce", "split_ranks", "window"):
            assert f'{call} on group "elastic": the communicator is not formed yet' in seen.pop(0)
        assert seen.pop(0) == (who, 3, 6)
        if who != 1:
            assert seen.pop(0) == ({2: 0, 0: 1}[who], 2, 4)
        assert seen.pop(0) == (3, 6)
        assert seen.pop(0) is True
        kind, text = seen.pop(0)
        assert kind == "InvalidArgument" and "already used" in text
        assert seen.pop(0) == (3, 6)
        assert 'unknown hint "wayt"; did you mean "wait"?' in seen.pop(0)
        if seen[0] == (0, 1):
            parts += 1
            seen.pop(0)
        assert seen.pop(0) == (True, False, "Aborted")
        assert seen.pop(0) == (who, 3, 6)
        assert seen == []
    assert parts == 2


def outlive(group, support, folder):
    import signal

    sys.path.append(support)
    import torchcomms_stand_in as stand_in
    from handle_folder import gather_handles

    who = dist.get_rank()
    backend = stand_in.install()()
    backend.init(torch.device("cpu"), "elastic", stand_in.options(enable_reconfigure=True))

    def form(uuid, members):
        handles = gather_handles(folder, str(uuid), who, members, backend.get_init_handle())
        backend.reconfigure(uuid, handles, {})

    form(1, [0, 1, 2])
    window, failures = backend.new_window(), []
    window.tensor_register(torch.zeros(1))
    if who == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    calls = [
        (backend.all_reduce, torch.ones(1), stand_in.ADD, False),
        (window.signal, 0, False),
        (backend.send, torch.ones(1), 2 - who, True),
        (backend.batch_op_issue, [(False, torch.ones(1), 2 - who)], True),
    ]
    for call, *arguments in calls:
        try:
            call(*arguments)
        except RuntimeError as error:
            failures.append((type(error).__name__, list(error.ranks), backend.is_failed()))
    form(2, [2, 0])
    x = torch.tensor([who + 1.0])
    backend.all_reduce(x, stand_in.ADD, False)
    return failures, backend.get_rank(), backend.is_failed(), x.item()


def test_the_others_go_on_after_a_rank_was_killed(fresh_ranks, tmp_path):
    ranks = fresh_ranks(3, program=TORCH_PROGRAM)
    first, killed, third = ranks.outcomes(outlive, SUPPORT, str(tmp_path))
    assert (killed.value, killed.error) == (None, None)
    for outcome, rank in ((first, 1), (third, 0)):
        assert outcome.error is None, outcome.error
        assert outcome.value == ([("PeerLost", [1], True)] * 4, rank, False, 4)


def abort_while_forming(group, support, folder):
    import threading

    sys.path.append(support)
    import torchcomms_stand_in as stand_in
    from handle_folder import gather_handles

    who, seen = dist.get_rank(), []
    backend = stand_in.install()()
    backend.init(torch.device("cpu"), "elastic", stand_in.options(enable_reconfigure=True))
    handles = gather_handles(folder, "first", who, [0, 1], backend.get_init_handle())
    if who == 0:  # rank 1 does not call

        def form():
            try:
                backend.reconfigure(1, handles, {})
            except RuntimeError as error:
                seen.append(type(error).__name__)

        former = threading.Thread(target=form)
        former.start()
        while "being reconfigured" not in getattr(backend.communicator, "_why", ""):
            pass
        try:
            backend.reconfigure(1, handles, {})
        except RuntimeError as error:
            seen.append(str(error))
        backend.communicator.abort("for a test")
        former.join()
    dist.barrier()
    handles = gather_handles(folder, "second", who, [0, 1], backend.get_init_handle())
    backend.reconfigure(2, handles, {})
    x = torch.tensor([who + 1.0])
    backend.all_reduce(x, stand_in.ADD, False)
    return seen, x.item()


def test_abort_ends_a_reconfiguration_for_which_a_rank_is_missing(torch_ranks, tmp_path):
    (seen, sum_of_first), (_, sum_of_second) = torch_ranks(2).run(abort_while_forming, SUPPORT, str(tmp_path))
    assert seen[0] == 'communicator "elastic" is being reconfigured already'
    assert seen[1] in ("Closed", "Aborted")
    assert (sum_of_first, sum_of_second) == (3, 3)


def change_hints(group, support, folder):
    sys.path.append(support)
    import torchcomms_stand_in as stand_in

    os.environ.update(TORCHCOMM_RANK=str(dist.get_rank()), TORCHCOMM_SIZE=str(dist.get_world_size()))
    backend, seen = stand_in.install()(), []
    store = dist.FileStore(f"{folder}/store", dist.get_world_size())
    given = {"wait": "yield", "persistent_store": "1"}
    backend.init(torch.device("cpu"), "hinted", stand_in.options(store=store, hints=given))

    def started():
        work = backend.all_reduce(torch.ones(1), stand_in.ADD, True)
        if work is not None:
            work.wait()
        return work is not None

    def refused(**hints):
        try:
            backend.set_hints(hints)
        except RuntimeError as error:
            return str(error)

    seen.append(started())
    backend.set_hints({"async": "background", "wait": "yield"})
    seen.append(started())
    for hints in ({"async": "maybe"}, {"wait": "spin"}, {"wayt": "spin"}, {"select": "all_reduce:0-inf=ring"}):
        seen.append(refused(**{"async": "at_once"} | hints))
    seen.append(started())  # a refused set changes nothing
    backend.set_hints({"async": "at_once"})
    seen.append(started())
    backend.finalize()
    return seen


def test_hints_change_only_what_can_change(torch_ranks, tmp_path):
    for seen in torch_ranks(2).run(change_hints, SUPPORT, str(tmp_path)):
        assert seen[:2] == [False, True]
        assert 'hint "async" is "maybe"' in seen[2]
        assert 'hint "wait" cannot change: it counts when a communicator is created or split' in seen[3]
        assert 'unknown hint "wayt"; did you mean "wait"?' in seen[4]
        assert 'hint "select" cannot change' in seen[5]
        assert seen[6:] == [True, False]
