"""`accord diagnose --trace` writes Chrome trace events, read here with Python's json module."""

import itertools
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from accord_command import accord, clean_environment, python_file

PROGRAM = """
import sys
import numpy as np
import accord
with accord.Communicator.from_environment(timeout=60) as comm:
    x = np.ones(100_000, np.float32)
    for _ in range(20):
        comm.all_reduce(x)
    comm.send(x[:10], 2) if comm.rank == 0 else comm.recv(x[:10], 0) if comm.rank == 2 else None
    works = [comm.broadcast_async(x, 1) for _ in range(3)]
    for work in works:
        work.wait()
    half = comm.split(comm.rank % 2, name="half")
    half.barrier()
    comm.dump(sys.argv[1])
    half.dump(sys.argv[1])
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> dict:
    folder: Path = tmp_path_factory.mktemp("trace")
    result = accord(
        *("run", "-n", "3", "--", sys.executable, python_file(folder, PROGRAM), folder / "dumps"),
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
    )
    assert result.returncode == 0, result.stderr
    result = accord("diagnose", folder / "dumps", "--trace", folder / "trace.json")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "3 communicators in which no rank waits\n"
    return json.loads((folder / "trace.json").read_text())


def slices(trace: dict, **arguments) -> list[dict]:
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and all(event["args"].get(name) == value for name, value in arguments.items())
    ]


def test_events_have_the_fields_of_the_format(trace):
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["tid"], int)
        else:
            assert event["name"] in ("process_name", "thread_name", "process_sort_index")
    assert min(event["ts"] for event in slices(trace)) == 0


def test_every_rank_is_a_process_with_a_track_for_each_order(trace):
    names = {"process_name": defaultdict(set), "thread_name": defaultdict(set)}
    for event in trace["traceEvents"]:
        if event["name"] in names:
            names[event["name"]][event["pid"]].add(event["args"]["name"])
    assert len(names["process_name"]) == 3
    tracks = sorted(sorted(found) for found in names["thread_name"].values())
    assert tracks == [
        ["half: collectives", "world: collectives"],
        ["half: collectives", "world: collectives", "world: from rank 0"],
        ["half: collectives", "world: collectives", "world: to rank 2"],
    ]


def test_operations_of_a_track_do_not_overlap(trace):
    tracks = defaultdict(list)
    for event in slices(trace):
        tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        track.sort(key=lambda event: event["args"]["number"])
        for before, after in itertools.pairwise(track):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.002  # times have three decimals


def test_ranks_of_one_host_share_a_clock(trace):
    for number in range(1, 21):
        calls = slices(trace, communicator="world", number=number, call="all_reduce of 100000 x float32 (sum)")
        assert sorted(call["args"]["rank"] for call in calls) == [0, 1, 2]
        # No rank has the sum before the last rank has arrived.
        assert max(call["ts"] for call in calls) <= min(call["ts"] + call["dur"] for call in calls)


def test_a_slice_names_the_operation_that_ran(trace):
    (sent,) = [event for event in slices(trace, rank=0) if event["name"] == "send"]
    assert sent["cat"] == "message"
    assert sent["args"]["bytes"] == 40
    assert sent["args"]["state"] == "done"
    assert sent["args"]["algorithm"]
    queued = [event for event in slices(trace, rank=1) if event["name"] == "broadcast"]
    assert len(queued) == 3
    assert all(event["args"]["queued_us"] >= 0 for event in queued)
