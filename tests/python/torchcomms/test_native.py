"""accord.torchcomms._native: data that torchcomms passes to a backend in C++ only. Built if ACCORD_TORCHCOMMS is
set."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util

import pytest
from accord_command import SUPPORT

pytest.importorskip("torchcomms", reason="torchcomms is not installed; it is built from its sources")
if importlib.util.find_spec("accord.torchcomms._native") is None:
    pytest.skip("accord.torchcomms._native is not built (ACCORD_TORCHCOMMS)", allow_module_level=True)


def premultiplied(comm, dtype_name):
    rank, dtype = comm.get_rank(), getattr(torch, dtype_name)
    found = []
    for factor in (0.5, torch.tensor([rank + 2.0]), torch.tensor(3.0, dtype=dtype)):
        op = torchcomms.ReduceOp.PREMUL_SUM(factor)
        values = torch.full((6,), 4.0, dtype=dtype)[::2]
        comm.all_reduce(values, op, False)
        part, on_root = torch.empty(2, dtype=dtype), torch.full((2,), 4.0, dtype=dtype)
        comm.reduce_scatter_single(part, torch.full((4,), 4.0, dtype=dtype), op, True).wait()
        comm.reduce(on_root, 1, op, False)
        found.append([t.unique().tolist() for t in (values, part, on_root)])
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_premul_sum_uses_each_ranks_factor(torchcomms_ranks, dtype):
    for rank, found in enumerate(torchcomms_ranks(2).run(premultiplied, dtype)):
        assert found == [[[s], [s], [s if rank == 1 else 4.0]] for s in (4.0, 20.0, 24.0)]


def batches(comm):
    rank, other = comm.get_rank(), 1 - comm.get_rank()
    received = []
    for is_async in [False, True]:
        batch = comm.batch_op_create()
        mine = [torch.full((200_000,), 10.0 * rank + i) for i in range(2)]
        theirs = [torch.zeros(200_000, 2)[:, 1] for _ in range(2)]
        for i in range(2):
            batch.send(mine[i], other)
        for i in range(2):
            batch.recv(theirs[i], other)
        batch.issue(is_async).wait()
        received.append([tensor.unique().tolist() for tensor in theirs])
    try:
        comm.batch_op_create().issue(False)
    except RuntimeError as error:
        return received, str(error)


def test_messages_of_a_batch_may_be_in_any_order(torchcomms_ranks):
    for rank, (received, errors) in enumerate(torchcomms_ranks(2).run(batches)):
        expected = [[10.0 * (1 - rank)], [10.0 * (1 - rank) + 1]]
        assert received == [expected, expected]
        assert "Cannot issue empty batch operation" in errors


def tags(comm):
    """Sends through c10d, whose messages have tags. Rank 1 receives the second message first."""
    from torchcomms._comms import _BackendWrapper

    wrapper, found = _BackendWrapper(comm), []
    if comm.get_rank() == 0:
        works = [wrapper.send([torch.full((3,), float(tag))], 1, tag) for tag in (5, 7)]
    else:
        received = {tag: torch.zeros(3) for tag in (7, 5)}
        works = [wrapper.recv([received[tag]], 0, tag) for tag in (7, 5)]
    for work in works:
        work.wait()
    if comm.get_rank() == 1:
        found = [received[tag].tolist() for tag in (5, 7)]
    comm.barrier(False)
    return found


def test_messages_are_matched_by_their_tags(torchcomms_ranks):
    assert torchcomms_ranks(2).run(tags) == [[], [[5.0] * 3, [7.0] * 3]]


def options_of_calls(comm):
    rank, errors = comm.get_rank(), []

    def record_error(call):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))

    assert comm.get_backend_version() == accord.__version__
    assert comm.get_backend_impl().communicator.size == 2
    assert comm.is_abort_supported()
    assert not comm.is_aborted()
    quick = comm.split([0, 1], "quick")
    if rank == 0:
        work = quick.recv(torch.ones(1), 1, True, timeout=datetime.timedelta(milliseconds=200))
        assert not work.is_completed()
        record_error(work.wait)
        assert not work.is_completed()
        assert quick.is_aborted()
    comm.barrier(False)
    if rank == 1:
        comm.abort()
        assert comm.is_aborted()
    record_error(lambda: comm.barrier(False))
    return errors


def test_a_call_has_its_own_timeout_and_abort_ends_all_ranks(torchcomms_ranks):
    first, second = torchcomms_ranks(2).run(options_of_calls)
    for errors in (first, second):
        assert "abort() of torchcomms" in errors[-1]
    assert 'recv from rank 1 on group "quick" (ranks 0 and 1): rank 1 did not arrive in time' in first[0]
    assert [len(first), len(second)] == [2, 1]


def windows(comm):
    import copy

    rank, other = comm.get_rank(), 1 - comm.get_rank()
    mine = torch.zeros(2, 3, dtype=torch.bfloat16)
    window, found = comm.new_window(mine), []
    found.append((window.get_size(), window.get_tensor() is mine, [*window.shape], window.device.type))
    attributes = window.get_attr(other)
    found.append(attributes.access_type == torchcomms.TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED)
    work = window.put(torch.full((2,), 5.0 + rank, dtype=torch.bfloat16), other, 4, True)
    found.append(work.is_completed())
    window.signal(other, False)
    window.wait_signal(other, False)
    found.append(mine.flatten().tolist())
    waiting = window.wait_signal(other, True)
    found.append(waiting.is_completed())
    comm.barrier(False)
    window.signal(other, False)
    waiting.wait()
    found.append(waiting.is_completed())
    cloned = copy.deepcopy(window)
    found.append((cloned.get_size(), torch.equal(cloned.get_tensor(), mine), cloned.get_tensor() is mine))
    cloned.tensor_deregister()
    window.tensor_deregister()
    found.append((window.get_size(), window.get_tensor()))
    window.tensor_register(mine, owning=False)
    found.append((window.get_size(), window.get_tensor()))
    try:
        window.wait_signal(other, False, timeout=datetime.timedelta(milliseconds=20))
    except RuntimeError as error:
        found.append(str(error))
    window.tensor_deregister()
    return found


def test_windows_of_torchcomms_are_put_signalled_and_cloned(torchcomms_ranks):
    for rank, found in enumerate(torchcomms_ranks(2).run(windows)):
        assert found.pop(0) == (12, True, [2, 3], "cpu")
        assert found.pop(0) is True
        assert found.pop(0) is True
        assert found.pop(0) == [0, 0, 0, 0, 6 - rank, 6 - rank]
        assert (found.pop(0), found.pop(0)) == (False, True)
        assert found.pop(0) == (12, True, False)
        assert found.pop(0) == (0, None)
        assert found.pop(0) == (12, None)
        assert f"rank {1 - rank}" in found.pop(0)
        assert found == []


def persistent(comm):
    rank, size = comm.get_rank(), comm.get_size()
    output, given, found = torch.zeros(4 * size), torch.zeros(4), []
    handle = comm.all_gather_p_init(output)
    for step in range(3):
        given.fill_(10 * step + rank)
        comm.all_gather_p_exec(handle, given, step % 2 == 0, timeout=datetime.timedelta(seconds=20)).wait()
        found.append(output.tolist())
    comm.all_gather_p_free(handle)

    def refused(call, *arguments):
        try:
            call(*arguments)
        except RuntimeError as error:
            found.append(str(error))

    refused(comm.all_gather_p_exec, handle, given, False)
    refused(comm.all_gather_p_free, handle)
    comm.tensor_register(given)
    comm.tensor_deregister(given)
    refused(comm.tensor_deregister, given)
    comm.set_hints({"async": "background"})
    refused(comm.set_hints, {"wayt": "spin"})
    found.append(dict(comm.get_options().hints))
    return found


def test_a_persistent_all_gather_runs_until_it_is_freed(torchcomms_ranks):
    for found in torchcomms_ranks(2).run(persistent):
        for step in range(3):
            assert found.pop(0) == [10.0 * step] * 4 + [10.0 * step + 1] * 4
        for _ in range(2):
            assert 'communicator "world" has no persistent all_gather with this handle: it was freed' in found.pop(0)
        assert "a tensor of shape (4,) on cpu is not registered" in found.pop(0)
        assert 'unknown hint "wayt"' in found.pop(0)
        assert found == [{"async": "background"}]


def reconfigured(comm, support, folder):
    sys.path.append(support)
    from handle_folder import gather_handles

    who, found, fired = comm.get_rank(), [], []
    elastic = torchcomms.new_comm("accord", torch.device("cpu"), "elastic", enable_reconfigure=True)
    hook = elastic.register_abort_hook(lambda: fired.append(len(found)))

    def refused(call, *arguments, **keywords):
        try:
            call(*arguments, **keywords)
        except RuntimeError as error:
            return str(error)

    def form(uuid, members, **options):
        handles = gather_handles(folder, str(uuid), who, members, elastic.get_init_handle())
        elastic.reconfigure(uuid, handles, datetime.timedelta(seconds=20), **options).wait()

    def total():
        x = torch.tensor([who + 1.0])
        elastic.all_reduce(x, torchcomms.ReduceOp.SUM, False)
        return elastic.get_rank(), elastic.get_size(), x.item()

    found.append(refused(elastic.get_rank))
    found.append(refused(elastic.send, torch.ones(1), 1, False))
    form(1, [1, 0])
    found.append(total())
    form(2, [who])
    found.append(total())
    form(3, [0, 1])
    found.append(refused(form, 3, [0, 1]))
    found.append(total())
    quick = datetime.timedelta(milliseconds=100)
    if who == 0:  # a failure of which a work tells, then of a call, then abort(): the hook runs once
        work = elastic.recv(torch.ones(1), 1, True, timeout=quick)
        found.append("timed out" in refused(work.wait))
    else:
        found.append(refused(elastic.recv, torch.ones(1), 0, False) is not None)
    found.append(refused(elastic.barrier, False) is not None)
    elastic.abort()
    found.append((elastic.is_aborted(), len(fired)))
    form(4, [0, 1])
    found.append((elastic.is_aborted(), total()))
    comm.barrier(False)
    if who == 1:
        elastic.abort()
    found.append(refused(elastic.barrier, False) is not None)
    found.append(len(fired))
    del hook
    elastic.finalize()
    return found


def test_a_communicator_of_torchcomms_is_formed_and_healed(torchcomms_ranks, tmp_path):
    for who, found in enumerate(torchcomms_ranks(2).run(reconfigured, SUPPORT, str(tmp_path))):
        for _ in range(2):
            assert 'communicator "elastic" is not formed yet; call reconfigure() first' in found.pop(0)
        assert found.pop(0) == (1 - who, 2, 3)
        assert found.pop(0) == (0, 1, who + 1)
        assert "already used" in found.pop(0)
        assert found.pop(0) == (who, 2, 3)
        assert (found.pop(0), found.pop(0)) == (True, True)
        assert found.pop(0) == (True, 1)
        assert found.pop(0) == (False, (who, 2, 3))
        assert (found.pop(0), found.pop(0)) == (True, 2)
        assert found == []


def hooks_at_failures(comm, folder):
    import threading
    import time

    from torchcomms.hooks import FlightRecorderHook

    os.environ["TORCHCOMM_HEALTH_CHECK_WAIT_MS"] = "2000"  # in the abort hook of the flight recorder, which is in C++
    rank, fired, longest, done = comm.get_rank(), [], 0.0, threading.Event()

    def measure_gaps():
        nonlocal longest
        last = time.monotonic()
        while not done.is_set():
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    def fail(name, **options):
        store = dist.FileStore(os.path.join(folder, name), 2)
        made = torchcomms.new_comm("accord", torch.device("cpu"), name, store=store, **options)
        hook = made.register_abort_hook(lambda: fired.append(name))
        if name == "recorded":
            FlightRecorderHook(max_entries=10, isolated=True).register_with_comm(made)
        if rank == 0:
            try:
                made.recv(torch.ones(1), 1, False, timeout=datetime.timedelta(milliseconds=50))
            except RuntimeError as error:
                assert "timed out" in str(error)
        comm.barrier(False)
        del hook

    fail("handled", abort_process_on_timeout_or_error=False)
    other = threading.Thread(target=measure_gaps)
    other.start()
    fail("recorded")
    done.set()
    other.join()
    return fired, longest


def test_abort_hooks_run_beside_other_threads_and_only_where_asked_for(torchcomms_ranks, tmp_path):
    first, second = torchcomms_ranks(2).run(hooks_at_failures, str(tmp_path))
    assert first[0] == ["recorded"] and first[1] < 1.8
    assert second[0] == []
