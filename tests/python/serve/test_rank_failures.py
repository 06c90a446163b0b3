"""Ranks die or stand still under load: clients get the same tokens as without, and nothing is left behind."""

import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from accord_command import is_running, process_state, program_environment, wait_until
from http_clients import metric
from served_model import ServedModel, served
from stream_reader import Reader

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.alone  # its ranks compute all the time


def ready_status(server: ServedModel) -> int:
    try:
        with urllib.request.urlopen(f"{server.url}/ready", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture(scope="module")
def server(endless):
    with served(endless, "--cache-tokens", 32768, "--stall-seconds", 3, ranks=2) as running:
        yield running


REQUESTS = [
    {"seed": 1},
    {"seed": 2, "n": 3, "max_tokens": 1500},
    {"seed": 3, "frequency_penalty": 1.5, "presence_penalty": 1.0, "extra_body": {"repetition_penalty": 1.3}},
    {"seed": 4, "temperature": 0, "prompt": "The quick brown"},
]


@pytest.fixture(scope="module")
def expected(server) -> list[list[str]]:
    """The answers of a run in which nothing fails."""
    return [Reader(server, **request).result() for request in REQUESTS]


def readers_with_answers(server: ServedModel) -> list[Reader]:
    """Sends all requests, and returns once each of them has a part of its answer."""
    readers = [Reader(server, **request) for request in REQUESTS]
    for reader in readers:
        wait_until(lambda reader=reader: reader.events >= 8 or not reader.is_alive(), "each stream has begun")
    assert all(reader.is_alive() for reader in readers)
    return readers


@pytest.mark.parametrize("rank", [0, 1])
def test_answers_continue_with_the_same_tokens_after_a_rank_was_killed(server, expected, rank):
    starts = len(server.events("ready"))
    readers = readers_with_answers(server)
    os.kill(server.rank_process(rank), signal.SIGKILL)
    assert [reader.result() for reader in readers] == expected
    assert server.events("ready")[starts]["resumed"] == len(REQUESTS)


def test_answers_survive_several_deaths(server, expected):
    readers = readers_with_answers(server)
    for rank in (1, 0, 1):
        starts = len(server.events("ready"))
        os.kill(server.rank_process(rank), signal.SIGKILL)
        server.wait_ready(starts + 1)
    assert [reader.result() for reader in readers] == expected


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stands_still_is_replaced(server, expected, rank):
    starts = len(server.events("ready"))
    readers = readers_with_answers(server)
    stopped = server.rank_process(rank)
    os.kill(stopped, signal.SIGSTOP)
    assert [reader.result() for reader in readers] == expected
    assert "no progress for 3 s" in server.events("ranks_ended")[-1]["reason"]
    assert len(server.events("ready")) > starts
    assert not is_running(stopped)


def test_not_ready_while_ranks_start_again_and_new_requests_wait(server, expected):
    starts = len(server.events("ready"))
    os.kill(server.rank_process(1), signal.SIGKILL)
    wait_until(lambda: ready_status(server) == 503 or len(server.events("ready")) > starts, "not ready")
    reader = Reader(server, **REQUESTS[3])
    assert reader.result() == expected[3]
    assert ready_status(server) == 200


def test_nothing_is_left_of_ranks_that_died(server, expected):
    def shared_segments() -> int:
        return sum(1 for _ in Path("/dev/shm").iterdir())

    segments, descriptors = shared_segments(), None
    for _ in range(4):
        starts = len(server.events("ready"))
        before = server.rank_processes()
        os.kill(before[1], signal.SIGKILL)
        server.wait_ready(starts + 1)
        assert not any(is_running(process) for process in before.values())
        assert Reader(server, **REQUESTS[3]).result() == expected[3]
        count = wait_until(lambda: server.descriptors(), "the descriptors are counted")
        if descriptors is not None:
            wait_until(lambda limit=descriptors: server.descriptors() <= limit, "descriptors are closed")
        descriptors = count if descriptors is None else descriptors
    assert not server.events("asyncio")  # no warning of it
    assert shared_segments() <= segments
    assert len(server.rank_processes()) == 2


def test_no_rank_outlives_a_server_that_was_killed(endless):
    with served(endless, ranks=2) as server:
        reader = Reader(server, seed=1, max_tokens=4000)
        wait_until(lambda: reader.events >= 4, "the stream has begun")
        ranks = server.rank_processes()
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGSTOP)  # which would not notice that the others end
        server.process.kill()
        server.process.wait(10)
        wait_until(lambda: not any(is_running(process) for process in ranks.values()), "all ranks have ended")
        reader.join(30)
        assert reader.error is not None


def test_a_request_that_the_ranks_never_survive_is_a_503(endless):
    """Ranks that are killed whenever they become ready, before a token."""
    with served(endless, ranks=1) as server:
        os.kill(server.rank_process(0), signal.SIGSTOP)  # so that no token arrives
        reader = Reader(server, seed=1)
        wait_until(lambda: metric(server, "accord_open_requests") == 1, "the request has arrived")
        known = set()
        while reader.is_alive():
            process = wait_until(
                lambda: next(iter(set(server.rank_processes().values()) - known), None) or not reader.is_alive(),
                "a new rank",
            )
            if process is True:
                break
            known.add(process)
            os.kill(process, signal.SIGKILL)
        assert isinstance(reader.error, openai.InternalServerError)
        assert reader.error.status_code == 503
        server.wait_ready()


def test_a_server_whose_rank_stands_still_ends_after_sigterm(endless):
    with served(endless, ranks=1) as server:
        process = server.rank_process(0)
        os.kill(process, signal.SIGSTOP)
        wait_until(lambda: process_state(process) == "T", "the rank has stopped")
        assert server.stop() == 0
        assert not is_running(process)


def test_a_server_that_waits_for_another_start_ends_after_sigterm(endless, tmp_path):
    package = tmp_path / "moved.accord"
    shutil.copytree(endless, package)
    with served(package, ranks=1) as server:
        process = server.rank_process(0)
        next(package.glob("weights-*.safetensors")).unlink()
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: len(server.events("ranks_ended")) >= 5, "several starts have failed")
        assert server.stop(seconds=3) == 0  # the next start is due in 4 s


# Rank 1 writes its process id into the file "loads", and goes on loading once that file is gone.
SLOW_LOAD = """
import os
import pathlib
import sys
import time

if os.environ.get("RANK") == "1" and sys.argv[:1] == ["-m"]:
    import accord

    inspect, loads = accord.inspect, pathlib.Path({path!r})

    def wait_and_inspect(package):
        loads.write_text(str(os.getpid()))
        while loads.exists():
            time.sleep(0.01)
        return inspect(package)

    accord.inspect = wait_and_inspect
"""


def test_a_rank_that_stands_still_while_it_loads_is_replaced(endless, tmp_path):
    loads = tmp_path / "loads"
    (tmp_path / "sitecustomize.py").write_text(SLOW_LOAD.format(path=str(loads)))
    path = f"{tmp_path}{os.pathsep}{program_environment()['PYTHONPATH']}"
    server = ServedModel(endless, "--stall-seconds", 2, ranks=2, PYTHONPATH=path)
    try:
        wait_until(lambda: loads.exists() and loads.read_text(), "rank 1 loads")
        loads.unlink()
        server.wait_ready()
        os.kill(server.rank_process(1), signal.SIGKILL)
        process = int(wait_until(lambda: loads.exists() and loads.read_text(), "rank 1 loads again"))
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 4, "a load that takes twice as long as a stall")
        assert is_running(process)
        os.kill(process, signal.SIGSTOP)
        loads.unlink()
        wait_until(lambda: len(server.events("ranks_ended")) == 2, "the stopped rank is noticed", seconds=10)
        assert server.events("ranks_ended")[1]["reason"] == "silent for 2 s while loading: rank 1"
        wait_until(lambda: loads.exists() and loads.read_text(), "rank 1 loads once more")
        loads.unlink()
        server.wait_ready(2)
        assert not is_running(process)
    finally:
        loads.unlink(missing_ok=True)
        server.end()
