"""Dead peers, timeouts, aborts and mismatches: every other rank gets the right exception in time, with the ranks at
fault."""

import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from accord_command import wait_until

import accord


def wait_for_a_dead_rank(comm, victim, how, folder):
    import time

    x = np.ones(10, np.float32)
    comm.all_reduce(x)
    os.mkdir(os.path.join(folder, str(comm.rank)))
    if comm.rank == victim:
        time.sleep(60)
    try:
        if how == "sync":
            comm.all_reduce(x)
        elif how == "async":
            comm.all_reduce_async(x).wait()
        else:
            comm.recv(x, victim)
    except accord.PeerLost as error:
        when, first = time.time(), error
    try:
        comm.barrier()
    except accord.PeerLost as again:
        return when, first.ranks, first.code, comm.state, again.ranks, str(first)


@pytest.mark.parametrize("how", ["sync", "async", "recv"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_peer_is_named_on_all_others_within_a_second(fresh_ranks, tmp_path, how, victim):
    delays = []
    # One attempt in time is enough: on a busy machine the ranks may not run for a second.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()

        killed = []

        def kill(processes: list[subprocess.Popen], folder=folder, killed=killed) -> None:
            wait_until(lambda: len(os.listdir(folder)) == 3, "all ranks to have begun")
            killed.append(time.time())
            processes[victim].send_signal(signal.SIGKILL)

        outcomes = fresh_ranks(3).outcomes(wait_for_a_dead_rank, victim, how, str(folder), while_running=kill)
        assert outcomes[victim].exit_code == -signal.SIGKILL
        delays.append(0.0)
        for rank in {0, 1, 2} - {victim}:
            assert outcomes[rank].error is None, outcomes[rank].error
            when, ranks, code, state, ranks_again, message = outcomes[rank].value
            assert (ranks, code, state, ranks_again) == ((victim,), "peer_lost", "failed", (victim,))
            assert f"rank {victim}" in message and "world" in message
            delays[-1] = max(delays[-1], when - killed[0])
        if delays[-1] < 1.0:
            return
    raise AssertionError(f"the survivors learned of it after {delays} s")


def too_late(comm, over):
    import time

    while comm.rank == 1 and not os.path.exists(over):
        time.sleep(0.01)
    start = time.monotonic()
    try:
        comm.barrier(timeout=0.3 if comm.rank == 0 else 5)
    except accord.Error as error:
        took = time.monotonic() - start
        open(over, "w").close()
        return type(error).__name__, error.ranks, isinstance(error, TimeoutError), took
    return "nothing"


def test_a_timeout_names_the_missing_rank(ranks, tmp_path):
    first, second = ranks(2).run(too_late, str(tmp_path / "over"))
    assert first[:3] == ("Timeout", (1,), True)
    assert 0.3 <= first[3] < 20, "the call's own timeout, not the communicator's 30 s"
    assert second[0] in ("Timeout", "PeerLost"), "the failure is sticky on the other side too"


def absent(folder: str) -> float:
    start = time.monotonic()
    with pytest.raises(accord.Timeout) as caught:
        accord.Communicator.create(accord.FileStore(folder), 0, 3, timeout=0.5)
    assert caught.value.ranks == (1, 2)
    return time.monotonic() - start


def test_create_names_the_missing_ranks(tmp_path):
    assert absent(str(tmp_path / "store")) < 3


def aborted(comm):
    import threading

    if comm.rank == 0:
        threading.Timer(0.3, comm.abort, ["the loss is not a number"]).start()
    if comm.rank < 2:
        try:
            comm.recv(np.zeros(1, np.float32), 2)
        except accord.Aborted as error:
            message = str(error)
    else:
        try:
            comm.all_reduce_async(np.zeros(1, np.float32)).wait()
        except accord.Aborted as error:
            message = str(error)
    return "the loss is not a number" in message, comm.state


def test_abort_ends_calls_on_all_ranks_with_its_reason(ranks):
    assert ranks(3).run(aborted) == [(True, "failed")] * 3


def disagree(comm):
    x = np.zeros(4 + comm.rank, np.float32)
    try:
        comm.all_reduce(x)
    except accord.Mismatch as error:
        return str(error)
    return "nothing"


def test_a_mismatch_reports_the_call_of_each_rank(ranks):
    for message in ranks(2).run(disagree):
        assert "all_reduce" in message and "world" in message
        assert "4" in message and "5" in message and "rank" in message


def closed(comm):
    comm.close()
    comm.close()
    errors = []
    for call in (comm.barrier, lambda: comm.all_reduce_async(np.zeros(1, np.float32)).wait(), lambda: comm.split(0)):
        try:
            call()
        except accord.Closed as error:
            errors.append(error.code)
    return comm.state, errors, comm.rank


def test_calls_after_close_raise_closed(ranks):
    assert ranks(2).run(closed) == [("closed", ["closed"] * 3, rank) for rank in range(2)]


def leave_by_error(comm):
    group = comm.split(0, name="inner")
    try:
        with group:
            if comm.rank == 0:
                raise KeyError("weights")
            group.barrier()
    except KeyError:
        return "KeyError", group.state
    except accord.Aborted as error:
        return str(error), group.state


def test_a_with_block_left_by_an_error_reports_it_to_the_others(ranks):
    first, second = ranks(2).run(leave_by_error)
    assert first == ("KeyError", "closed")
    assert "rank 0 left its `with` block with KeyError: 'weights'" in second[0] and second[1] == "closed"


def wait_with_timeout(comm):
    x = np.full(2, comm.rank, np.int32)
    if comm.rank == 0:
        work = comm.recv_async(x, 1)
        first = work.wait(timeout=0.2), work.test()
        comm.send(x, 1)
        return first, work.wait(), x.tolist()
    comm.recv(np.zeros(2, np.int32), 0)
    comm.send(x, 0)


def test_wait_with_a_timeout_returns_false_and_the_work_continues(ranks):
    assert ranks(2).run(wait_with_timeout)[0] == ((False, False), True, [1, 1])


def forks(comm):
    import gc

    work = comm.all_reduce_async(np.zeros(1, np.float32))
    work.wait()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for use in (comm.barrier, lambda: comm.rank, lambda: comm.close(), work.wait, lambda: comm.split(0)):
            try:
                use()
            except accord.WrongState as error:
                texts.append(str(error))
        texts.append(repr(comm))
        del comm, work, use
        gc.collect()
        solo = accord.Communicator.create(accord.MemoryStore(), 0, 1)
        solo.all_reduce(np.ones(3, np.float32))
        os.write(write, "\n".join(texts).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    x = np.ones(1, np.float32)
    comm.all_reduce(x)
    return text.split("\n"), x[0]


def test_a_forked_child_gets_an_error_and_does_not_disturb_others(ranks):
    for lines, value in ranks(2).run(forks):
        assert value == 2
        assert len(lines) == 6 and all("was forked and belongs to its parent" in line for line in lines[:5])
        assert lines[5] == "<accord.Communicator of the parent process>"


EXITS = {
    "nothing is closed": "",
    "works are under way": "works = [comm.all_reduce_async(np.zeros(100_000, np.float32)) for _ in range(3)]",
    "a work's handle is dropped": "comm.recv_async(np.zeros(4, np.float32), 1 - comm.rank)",
    "a cycle holds it": "cycle = [comm]; cycle.append(cycle)",
    "another thread waits": """
import threading
def wait():
    try:
        comm.recv(np.zeros(4, np.float32), 1 - comm.rank)
    except accord.Error:
        pass
threading.Thread(target=wait, daemon=True).start()""",
    "the store is a Python object": """
class Wrapped:
    def __init__(self): self.store = accord.FileStore(sys.argv[1] + "2")
    def set(self, key, value): self.store.set(key, value)
    def get(self, key): return self.store.get(key)
    def add(self, key, amount): return self.store.add(key, amount)
other = accord.Communicator.create(Wrapped(), comm.rank, 2, name="other")
other.barrier()""",
    "an exception ends it": "raise SystemExit(0)",
}


@pytest.mark.parametrize("how", EXITS)
def test_a_process_may_end_in_any_state(tmp_path, how):
    program = f"""
import os, sys, numpy as np, accord
comm = accord.Communicator.create(accord.FileStore(sys.argv[1]), int(sys.argv[2]), 2, timeout=20)
comm.barrier()
{EXITS[how]}
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=30)
        assert (process.returncode, output) == (0, ""), output


def test_errors_derive_from_the_matching_built_in_exceptions():
    pairs = {
        accord.InvalidArgument: ValueError,
        accord.Unsupported: NotImplementedError,
        accord.NotFound: (FileNotFoundError, LookupError),
        accord.PeerLost: ConnectionError,
        accord.Timeout: TimeoutError,
        accord.IoError: OSError,
        accord.WrongState: RuntimeError,
        accord.InternalError: RuntimeError,
        accord.Mismatch: accord.Error,
        accord.Aborted: accord.Error,
        accord.Closed: accord.Error,
        accord.Corrupt: accord.Error,
        accord.ResourceExhausted: accord.Error,
    }
    for error, others in pairs.items():
        assert issubclass(error, accord.Error)
        for other in others if isinstance(others, tuple) else (others,):
            assert issubclass(error, other)
        assert error.__module__ == "accord" and error.code and error.__doc__
        raised = error("what happened")
        assert str(raised) == "what happened" and raised.ranks == ()
        assert type(pickle.loads(pickle.dumps(raised))) is error
    assert len({error.code for error in pairs}) == len(pairs)


def test_a_communicator_cannot_be_pickled_or_constructed_without_create():
    with accord.Communicator.create(accord.MemoryStore(), 0, 1) as comm:
        with pytest.raises(TypeError):
            pickle.dumps(comm)
    with pytest.raises(TypeError):
        accord.Communicator()


def test_create_rejects_invalid_arguments():
    for rank, size in [(1, 1), (-1, 2), (0, 0)]:
        with pytest.raises(accord.InvalidArgument):
            accord.Communicator.create(accord.MemoryStore(), rank, size, timeout=1)
    with pytest.raises(accord.NotFound, match='unknown transport "inprok"; did you mean "inproc"'):
        accord.Communicator.create(accord.MemoryStore(), 0, 1, transport="inprok")
    with pytest.raises(TypeError, match="store: .* int has no set"):
        accord.Communicator.create(3, 0, 1)


def test_from_environment_reads_the_launchers_variables(tmp_path):
    program = """
import accord, numpy as np
with accord.Communicator.from_environment(timeout=20) as comm:
    x = np.full(3, comm.rank + 1, np.float32)
    comm.all_reduce(x)
    print(comm.rank, comm.size, x.tolist())
"""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert outputs == ["0 2 [3.0, 3.0, 3.0]\n", "1 2 [3.0, 3.0, 3.0]\n"]


def test_without_a_launcher_the_group_has_one_rank(monkeypatch):
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith(("OMPI_", "PMI", "SLURM_")):
            monkeypatch.delenv(name)
    result = subprocess.run(
        [sys.executable, "-c", "import accord; print(accord.Communicator.from_environment())"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == '<accord.Communicator "world", rank 0 of 1, ready>\n'


def test_a_failed_group_keeps_no_arrays():
    x = np.ones(4, np.float32)
    comm = accord.Communicator.create(accord.MemoryStore(), 0, 1)
    comm.abort("enough")
    before = sys.getrefcount(x)
    for _ in range(20):
        with pytest.raises(accord.Aborted, match="enough"):
            comm.all_reduce(x)
        with pytest.raises(accord.Aborted):
            comm.all_reduce_async(x).wait()
        comm.all_reduce_async(x)

    def drop_references() -> bool:
        # Every new Work also releases the finished ones that were dropped.
        comm.all_reduce_async(bytearray(4), dtype="int32")
        return sys.getrefcount(x) == before

    wait_until(drop_references, "the release of the arrays")
