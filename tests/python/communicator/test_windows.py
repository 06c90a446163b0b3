"""accord.Window: memory that ranks share with each other, as arrays of NumPy and torch."""

import gc
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from accord_command import ROOT
from accord_command import accord as accord_command
from stopped_rank import use_window_of_a_stopped_rank
from tiers import mostly_slow

import accord


@pytest.fixture(scope="module")
def window():
    with accord.Communicator.create(accord.MemoryStore(), 0, 1) as comm:
        yield comm.window(1 << 16)


def pieces(comm):
    """Rank r puts its number into its own place on all ranks, and reads it back from its neighbour."""
    window = comm.window(4096)
    mine = np.full(4, comm.rank + 1, dtype=np.float64)
    for to in range(comm.size):
        window.put(mine, to, 32 * comm.rank)
        window.signal(to)
    for source in range(comm.size):
        window.wait(source)
    arrived = np.asarray(window.local).view(np.float64)[: 4 * comm.size].copy()
    fetched = np.empty(4)
    window.get(fetched, (comm.rank + 1) % comm.size, 32 * comm.rank)
    mapped = np.asarray(window.peer((comm.rank + 1) % comm.size)).view(np.float64)[:4].copy()
    comm.barrier()
    return arrived, fetched, mapped, window.nbytes()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_put_data_arrives_and_can_be_read_by_get_and_mapping(ranks, size):
    for rank, (arrived, fetched, mapped, nbytes) in enumerate(ranks(size).run(pieces)):
        np.testing.assert_array_equal(arrived, np.repeat(np.arange(1.0, size + 1), 4))
        np.testing.assert_array_equal(fetched, np.full(4, rank + 1.0))
        np.testing.assert_array_equal(mapped, np.full(4, 1.0))
        assert nbytes == 4096


def test_the_array_of_a_window_is_a_numpy_array_and_keeps_its_memory_alive(window):
    array = window.empty((3, 4), "float32")
    assert (array.shape, array.dtype, len(array), array.nbytes) == ((3, 4), "float32", 3, 48)
    view = np.asarray(array)
    view[:] = 7
    address = view.ctypes.data
    del array
    gc.collect()
    other = window.empty(12)
    assert np.asarray(other).ctypes.data != address
    assert view.sum() == 84
    del view, other
    gc.collect()
    assert np.asarray(window.empty(12)).ctypes.data == address


def test_the_last_view_releases_the_memory(window):
    first = window.empty(1 << 13, "float64")
    views = [np.asarray(first)[100:], memoryview(first)]
    del first
    for _ in range(2):
        gc.collect()
        with pytest.raises(accord.ResourceExhausted, match="no room for 64 KiB"):
            window.empty(1 << 13, "float64")
        views.pop()
    gc.collect()
    assert window.empty(1 << 13, "float64").nbytes == 1 << 16


def test_torch_sees_the_same_memory_and_keeps_it_alive(window):
    torch = pytest.importorskip("torch")
    array = window.empty((2, 3), "bfloat16")
    with pytest.raises(BufferError, match="bfloat16 has no buffer format"):
        memoryview(array)
    with pytest.raises(TypeError, match="torch.from_dlpack"):
        np.asarray(array)
    tensor = torch.from_dlpack(array)
    tensor.fill_(2)
    del array
    gc.collect()
    again = window.empty((2, 3), "bfloat16")
    assert torch.from_dlpack(again).data_ptr() != tensor.data_ptr()
    assert tensor.dtype == torch.bfloat16 and tensor.sum() == 12
    floats = window.empty(5)
    torch.from_dlpack(floats).copy_(torch.arange(5.0))
    np.testing.assert_array_equal(np.asarray(floats), np.arange(5.0))


def test_arrays_outlive_window_and_communicator():
    comm = accord.Communicator.create(accord.MemoryStore(), 0, 1)
    view = np.asarray(comm.window(4096).empty(100))
    view[:] = 3
    comm.close()
    del comm
    gc.collect()
    assert view.sum() == 300


def test_errors_name_the_bounds(window):
    with pytest.raises(
        accord.InvalidArgument, match="window put .*: 3 x int64 at offset 65520 do not fit into the 64 KiB"
    ):
        window.put(np.arange(3), 0, 65520)
    for offset in (-1, 1 << 64, 0.5):
        with pytest.raises(accord.InvalidArgument, match=f"offset: {offset} is not a number of bytes"):
            window.put(np.arange(3), 0, offset)
    with pytest.raises(accord.InvalidArgument, match="alignment: -1 is not a number of bytes"):
        window.empty(3, alignment=-1)
    with pytest.raises(accord.InvalidArgument, match="nbytes: -1 is not a number of bytes"):
        accord.Communicator.create(accord.MemoryStore(), 0, 1).window(-1)
    with pytest.raises(accord.InvalidArgument, match="array: is read-only"):
        window.get(b"12345678", 0)
    with pytest.raises(accord.InvalidArgument, match="1 is not a rank"):
        window.peer(1)
    with pytest.raises(accord.InvalidArgument, match="shape: -1 is negative"):
        window.empty((2, -1))
    with pytest.raises(accord.ResourceExhausted):
        window.empty((1 << 40, 1 << 40))
    with pytest.raises(TypeError):
        window.empty("three")
    with pytest.raises(accord.InvalidArgument, match="nearest|float"):
        window.empty(3, "floot32")


def test_a_wait_that_times_out_names_the_rank_and_may_be_repeated(window):
    with pytest.raises(accord.Timeout, match="wait for rank 0.*no signal arrived in time") as raised:
        window.wait(0, timeout=0.12)
    assert raised.value.ranks == (0,)
    window.signal(0)
    window.wait(0)


def test_signal_handlers_run_during_a_wait_and_may_wait_themselves(window):
    def waits(*_):
        window.signal(0)
        window.wait(0)

    def raises(*_):
        raise KeyError("from the handler")

    before = [signal.signal(signal.SIGUSR1, waits), signal.signal(signal.SIGUSR2, raises)]
    for seconds, number in ((0.1, signal.SIGUSR1), (0.4, signal.SIGUSR2)):
        threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
    start = time.monotonic()
    try:
        with pytest.raises(KeyError, match="from the handler"):
            window.wait(0, timeout=20)
        assert time.monotonic() - start < 15, "the wait continued to its own timeout"
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])


def test_a_wait_without_a_timeout_uses_that_of_the_communicator():
    with accord.Communicator.create(accord.MemoryStore(), 0, 1, timeout=0.2) as comm:
        window = comm.window(64)
        with pytest.raises(accord.Timeout, match="wait for rank 0"):
            window.wait(0)


def interrupted(comm):
    import signal
    import threading

    window = comm.window(64)
    if comm.rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            window.wait(1)
            return "no interrupt"
        except KeyboardInterrupt:
            comm.barrier()
    else:
        comm.barrier()
        window.signal(0)
    if comm.rank == 0:
        window.wait(1)
    comm.barrier()
    return comm.state


def test_ctrl_c_ends_a_wait_and_the_window_stays_usable(fresh_ranks):
    assert fresh_ranks(2).run(interrupted) == ["ready", "ready"]


def test_ctrl_c_ends_a_put_to_another_host_and_the_window_stays_usable(fresh_ranks):
    ranks = fresh_ranks(2, environments=[{"ACCORD_HOST_ID": "a"}, {"ACCORD_HOST_ID": "b"}])
    (errors, seconds, _, state), byte = ranks.run(use_window_of_a_stopped_rank, 0.3)
    assert [kind for kind, *_ in errors] == ["KeyboardInterrupt"] * 3 and seconds < 20
    assert state == "ready"
    assert byte == 7


def wait_for_a_dead_rank(comm):
    window = comm.window(4096)
    np.asarray(window.local)[:] = comm.rank + 1
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), 9)
    try:
        window.wait(1)
    except accord.PeerLost as error:
        return error.ranks, int(np.asarray(window.peer(1))[4095])
    return None


def test_a_dead_peer_ends_the_wait_but_its_memory_remains_readable(fresh_ranks):
    outcomes = fresh_ranks(2).outcomes(wait_for_a_dead_rank)
    assert outcomes[0].error is None and outcomes[0].value == ((1,), 2)
    assert outcomes[1].exit_code == -signal.SIGKILL


def working_directory(comm):
    return os.getcwd()


def test_ranks_run_in_the_working_directory_of_their_test(fresh_ranks, tmp_path, monkeypatch):
    fresh_ranks(2).run(working_directory)  # the server that forks ranks exists before the test changes its folder
    monkeypatch.chdir(tmp_path)
    assert fresh_ranks(2).run(working_directory) == [str(tmp_path)] * 2


def recorded_phases(comm, folder):
    import json

    array = comm.window(4096).empty(8)
    for buffer in (array, np.ones(8, dtype=np.float32)):
        comm.all_reduce(buffer)
        comm.all_reduce_async(buffer).wait()
    with open(comm.dump(f"{folder}/{comm.rank}")) as dump:
        record = json.load(dump)
    (calls,) = [order["operations"] for order in record["orders"] if order["kind"] == "collectives"]
    return [call["phase"] for call in calls if call["collective"] == "all_reduce"]


def test_a_call_on_buffers_in_windows_is_recorded_as_registered_whether_run_or_started(ranks, tmp_path):
    for phases in ranks(2).run(recorded_phases, str(tmp_path)):
        assert phases == ["registered"] * 2 + ["equal_parts"] * 2


def by_own_plan(comm, plan, folder):
    from accord import plan as plans

    plans.register(plan, bytes="0-inf")
    window = comm.window(1 << 16)
    array = window.empty(1000)
    np.asarray(array)[:] = comm.rank + 1
    comm.all_reduce(array)
    private = np.full(1000, comm.rank + 1, dtype=np.float32)
    comm.all_reduce(private)
    with open(comm.dump(f"{folder}/{comm.rank}")) as dump:
        names = dump.read()
    return np.asarray(array).copy(), private, "read_yours" in names


def test_a_user_plan_may_access_registered_buffers_of_peers(fresh_ranks, tmp_path):
    program = accord.plan.Program("all_reduce", ranks=2, name="read_yours", buffers="in_windows_apart")
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        mine.signal(peer).wait(peer)
        mine.reduce([program.rank(0).input[0], program.rank(1).input[0]], mine.output[0])
    with pytest.raises(accord.InvalidArgument, match="may still access input.* after rank . has returned"):
        program.verify()
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        mine.signal(peer, 1).wait(peer, 1)
    program.verify()
    program.buffers = "in_windows"
    with pytest.raises(accord.InvalidArgument, match="in place .*races with"):
        program.verify()

    right = accord.plan.Program("all_reduce", ranks=2, name="read_yours", buffers="in_windows", chunks=2)
    for mine, peer in ((right.rank(0), right.rank(1)), (right.rank(1), right.rank(0))):
        mine.signal(peer).wait(peer)
        part = mine.index
        mine.reduce([right.rank(0).input[part], right.rank(1).input[part]], [mine.output[part], peer.output[part]])
        mine.signal(peer, 1).wait(peer, 1)
    for summed, private, used in fresh_ranks(2).run(by_own_plan, right.json(), str(tmp_path)):
        assert (summed == 3).all() and (private == 3).all()
        assert used


def other_memory(comm):
    window = comm.window(1 << 16)
    array = window.empty(1000) if comm.rank == 0 else np.ones(1000, dtype=np.float32)
    try:
        comm.all_reduce(array)
    except accord.Mismatch as error:
        return str(error)
    return None


def test_buffers_registered_on_some_ranks_only_are_an_error_on_all(fresh_ranks):
    for message in fresh_ranks(2).run(other_memory):
        assert "the buffers of rank 0 are in windows of the group, those of rank 1 are not" in message


def forks(comm):
    window = comm.window(4096)
    array = window.empty(8)
    child = os.fork()
    if child == 0:
        try:
            window.signal(0)
        except accord.WrongState:
            del array, window
            os._exit(7)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    comm.all_reduce(array)
    comm.barrier()
    return code


def test_a_forked_child_cannot_use_or_disturb_the_window(fresh_ranks):
    assert fresh_ranks(2).run(forks) == [7, 7]


PAGE = (ROOT / "docs/windows.md").read_text()


@pytest.mark.parametrize("size", mostly_slow([1, 2, 3], 3))
def test_the_whole_guide_runs(tmp_path, size):
    program = tmp_path / "guide.py"
    program.write_text("".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)))
    result = accord_command("run", "-n", str(size), str(program))
    assert result.returncode == 0, result.stdout + result.stderr
