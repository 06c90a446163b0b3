"""`accord diagnose` on real processes that hang, and on dumps. It must name the rank that the others wait for."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import accord, clean_environment, end, python_file, start_accord, stop, wait_until

# The program of each rank of a job. A case is the code that the ranks run after a barrier. `pause` never returns.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import accord
comm = accord.Communicator.from_environment(timeout=120)
x = np.ones(1000, np.float32)

def pause():
    while True:
        time.sleep(1000)

comm.barrier()
CASE
pause()
"""
CASES = {
    "one never arrives": "pause() if comm.rank == 1 else comm.all_reduce(x)",
    "stopped": "comm.all_reduce(x)\nif comm.rank == 2: os.kill(os.getpid(), signal.SIGSTOP)\ncomm.reduce(x, 1)",
    "message": "comm.recv(x, 2) if comm.rank == 0 else comm.send(x, 2) if comm.rank == 1 else pause()",
    "another group": """
color = 0 if comm.rank < 2 else 1
pair = comm.split(color, name=["pair", "rest"][color])
if comm.rank == 0: pair.barrier()
comm.all_gather(x, np.ones(3000, np.float32)) if comm.rank else None
""",
    "forked": "os.fork() or pause()\nif comm.rank == 1: pause()\ncomm.barrier()",
    "queued": "works = [comm.all_reduce_async(x) for _ in range(4)] if comm.rank else []",
}


@pytest.fixture
def job(tmp_path):
    """A function that starts the ranks of one of the CASES (three by default) and returns the launcher's process."""
    started = []

    def start(case: str, size: int = 3) -> subprocess.Popen:
        program = python_file(tmp_path, PROGRAM.replace("CASE", CASES[case]))
        environment = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
        started.append(start_accord("run", "-n", size, "--", sys.executable, program, env=environment))
        return started[-1]

    yield start
    for process in started:
        for rank in descendants(process.pid):
            try_kill(rank, signal.SIGKILL)
    end(*started)


def try_kill(process: int, number: int):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def descendants(process: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def look(process: int) -> dict[str, dict]:
    """Returns the communicators of the job by name; empty while it has none."""
    result = accord("diagnose", "--json", "--pid", process)
    if result.returncode != 0:
        assert "has a communicator of accord" in result.stderr, result.stderr
        return {}
    return {group["name"]: group for group in json.loads(result.stdout)["communicators"]}


def found(process: int, kind: str, group: str = "world") -> dict | None:
    """Returns the communicator's state once it has a finding of that kind."""
    state = look(process).get(group)
    return state if state and any(finding["kind"] == kind for finding in state["findings"]) else None


def only_finding(state: dict) -> dict:
    assert len(state["findings"]) == 1, state["findings"]
    return state["findings"][0]


def test_a_rank_that_never_arrives_at_a_call_is_named(job):
    launcher = job("one never arrives")

    def both_wait():
        state = found(launcher.pid, "behind")
        return state and all(state["ranks"][rank]["waits"] for rank in (0, 2)) and state

    state = wait_until(both_wait, "ranks 0 and 2 wait for rank 1")
    finding = only_finding(state)
    assert finding["ranks"] == [1]
    assert finding["text"].startswith(
        "rank 1 has not arrived at call 2, all_reduce of 1000 x float32 (sum), where ranks 0 and 2 wait; "
        "its last call was call 1, barrier, which ended "
    )
    assert state["verdict"] == "waits"
    for rank in (0, 2):
        described = state["ranks"][rank]
        assert described["waits"]
        assert described["waits_for"] == [1]
        assert described["call"]["collective"] == "all_reduce"
        assert described["call"]["number"] == 2
        assert described["since_seconds"] >= 0.1
    assert not state["ranks"][1]["waits"]
    assert state["ranks"][1]["condition"] == "running"


def test_the_table_shows_the_same_findings(job):
    launcher = job("one never arrives")
    wait_until(lambda: found(launcher.pid, "behind"), "rank 1 is behind")
    text = accord("diagnose", "--pid", launcher.pid).stdout
    assert text.startswith('group "world" (3 ranks): waits\n  rank 1 has not arrived at call 2, ')
    rows = {line.split()[0]: line for line in text.splitlines()[2:]}
    assert "call 2, all_reduce of 1000 x float32 (sum)" in rows["0"]
    assert rows["0"].endswith("rank 1")
    assert "call 1, barrier" in rows["1"]


def test_the_job_is_found_from_any_rank(job):
    launcher = job("one never arrives")
    state = wait_until(lambda: found(launcher.pid, "behind"), "rank 1 is behind")
    by_rank = [rank["process"] for rank in state["ranks"]]
    assert len(set(by_rank)) == 3
    for process in by_rank:
        assert only_finding(look(process)["world"])["ranks"] == [1]


def test_a_stopped_rank_is_named_and_read_without_its_cooperation(job):
    launcher = job("stopped")
    state = wait_until(lambda: found(launcher.pid, "stopped"), "rank 2 is stopped")
    finding = only_finding(state)
    assert finding["ranks"] == [2]
    assert "by SIGSTOP" in finding["text"]
    assert "has not arrived at call 3, reduce of 1000 x float32 (sum) to rank 1" in finding["text"]
    assert state["ranks"][2]["condition"] == "stopped"
    assert state["ranks"][2]["call"]["number"] == 2
    assert look(state["ranks"][2]["process"])["world"]["findings"][0]["ranks"] == [2]


def test_all_stopped_ranks_are_named(job):
    launcher = job("one never arrives")
    state = wait_until(lambda: found(launcher.pid, "behind"), "rank 1 is behind")
    for rank in (0, 1):
        stop(state["ranks"][rank]["process"])
    state = wait_until(lambda: found(launcher.pid, "stopped"), "ranks 0 and 1 are stopped")
    assert {(finding["kind"], *finding["ranks"]) for finding in state["findings"]} == {("stopped", 0), ("stopped", 1)}


def test_a_killed_rank_is_reported_while_its_peers_are_stopped(job):
    # Running peers fail within a second of a death. Stopped ones are still seen in the state that they were in.
    launcher = job("one never arrives")
    state = wait_until(lambda: found(launcher.pid, "behind"), "rank 1 is behind")
    processes = [rank["process"] for rank in state["ranks"]]
    os.kill(launcher.pid, signal.SIGSTOP)
    try:
        for rank in (0, 2):
            stop(processes[rank])
        os.kill(processes[1], signal.SIGKILL)
        state = wait_until(lambda: found(processes[0], "gone"), "rank 1 is gone")
        gone = [finding for finding in state["findings"] if finding["kind"] == "gone"]
        assert [finding["ranks"] for finding in gone] == [[1]]
        assert f"rank 1 is gone (process {processes[1]} has ended)" in gone[0]["text"]
        assert state["ranks"][1]["condition"] == "gone"
    finally:
        for process in (*processes, launcher.pid):
            try_kill(process, signal.SIGKILL)


def test_a_message_that_is_not_received_names_the_receiver_and_the_sender(job):
    launcher = job("message")
    state = wait_until(lambda: found(launcher.pid, "behind"), "rank 2 is behind")
    finding = only_finding(state)
    assert finding["ranks"] == [2]
    assert "send 1, 1000 x float32 to rank 0" in finding["text"]
    assert state["ranks"][0]["call"]["text"] == "recv 1, 1000 x float32 from rank 2"
    assert state["ranks"][0]["waits_for"] == [2]


def test_ranks_that_wait_for_each_other_in_two_groups_are_both_reported(job):
    launcher = job("another group")

    def both():
        groups = look(launcher.pid)
        found = [groups.get(name, {}).get("findings") or [{"text": ""}] for name in ("world", "pair")]
        # Until rank 1 waits as well, the report says that it has made no call yet.
        return groups if all("in call" in findings[0]["text"] for findings in found) else None

    groups = wait_until(both, "both groups wait")
    in_world, in_pair = only_finding(groups["world"]), only_finding(groups["pair"])
    assert in_world["ranks"] == [0]
    assert 'has been in call 1, barrier of group "pair"' in in_world["text"]
    assert in_pair["ranks"] == [1]
    assert 'has been in call 4, all_gather of 1000 x float32 of group "world"' in in_pair["text"]


def test_a_forked_child_is_not_mistaken_for_its_parent(job):
    launcher = job("forked", 2)
    state = wait_until(lambda: found(launcher.pid, "behind"), "rank 1 is behind")
    assert only_finding(state)["ranks"] == [1]
    ranks = {rank["process"] for rank in state["ranks"]}
    (child,) = descendants(state["ranks"][0]["process"])
    assert child not in ranks
    assert look(child) == {}


def test_queued_works_are_counted(job):
    launcher = job("queued", 2)
    state = wait_until(lambda: found(launcher.pid, "behind"), "rank 0 is behind")
    assert only_finding(state)["ranks"] == [0]
    assert state["ranks"][1]["queued"] == 3


def test_a_hanging_job_can_be_dumped_from_outside(job, tmp_path):
    launcher = job("one never arrives")
    live = wait_until(lambda: found(launcher.pid, "behind"), "rank 1 is behind")
    dumps = tmp_path / "dumps"
    assert accord("diagnose", "--pid", launcher.pid, "--dump", dumps).returncode == 0
    assert len(list(dumps.iterdir())) == 3
    result = accord("diagnose", dumps, "--json")
    assert result.returncode == 0, result.stderr
    (group,) = json.loads(result.stdout)["communicators"]
    assert group["communicator"] == live["communicator"]
    assert only_finding(group)["ranks"] == [1]


def test_a_process_without_a_communicator_is_rejected(tmp_path):
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        try:
            result = accord("diagnose", "--pid", sleeper.pid)
            assert result.returncode == 1
            assert f"process {sleeper.pid} nor any process that it started has a communicator" in result.stderr
        finally:
            sleeper.kill()
    result = accord("diagnose", "--pid", sleeper.pid)
    assert result.returncode == 1
    assert f"there is no process {sleeper.pid}" in result.stderr
    assert accord("diagnose").returncode == 2
    assert accord("diagnose", tmp_path, "--pid", 1).returncode == 2
