"""`accord sim replay` of what the ranks of a job recorded."""

import json
import os
import sys

import pytest
from accord_command import ROOT, accord, clean_environment, python_file

PROGRAM = """
import sys
import numpy as np
import accord
with accord.Communicator.from_environment(timeout=20) as comm:
    half = comm.split(comm.rank // 2)
    for _ in range(10):
        half.all_reduce(np.ones(4096, np.float32))
        comm.all_reduce(np.ones(1024, np.float32))
        if comm.rank % 2 == 0:
            comm.send(np.ones(256, np.float32), comm.rank + 1)
        else:
            comm.recv(np.ones(256, np.float32), comm.rank - 1)
    half.dump(sys.argv[1])
    comm.dump(sys.argv[1])
"""
MACHINE = """
[host]
ranks = 2
call_seconds = 1e-6
step_seconds = 1e-8
hop_seconds = 1e-7
bytes_per_second = 1e10
exchanged_bytes_per_second = 1e10
packet_bytes_per_second = 1e9

[network]
shape = "crossbar"
nic_bytes_per_second = 1e9
message_seconds = 1e-6
latency_seconds = 5e-6
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    program = python_file(directory, PROGRAM)
    result = accord(
        *("run", "-n", "4", "--", sys.executable, program, str(directory / "dumps")),
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
    )
    assert result.returncode == 0, result.stderr
    return directory / "dumps"


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "machine.toml"
    path.write_text(MACHINE)
    return path


def copied(job, directory, change):
    """Copies the dumps, each changed by `change`."""
    directory.mkdir()
    for path in job.iterdir():
        dump = json.loads(path.read_text())
        change(dump)
        (directory / path.name).write_text(json.dumps(dump))
    return directory


def replayed(job, machine):
    result = accord("sim", "replay", job, "--machine", machine, "--json", "--path")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_calls_of_all_groups_are_made_on_the_machine(job, machine):
    answer = replayed(job, machine)
    assert answer["ranks"] == 4
    assert answer["recorded_seconds"] > 0
    sums = 10 * 2 * 1024 * 4 / 2  # each host sends and receives a half of what it adds up, twice
    out = {one["link"]: one["bytes"] for one in answer["links"]}
    assert out["host 0, NIC 0, out"] >= 2 * sums / 2
    assert {"world all_reduce", "between calls"} <= set(answer["critical_path"]["by_task"])
    text = accord("sim", "replay", job, "--machine", machine).stdout
    # 10 sums of both halves and of all, 10 messages of 2 pairs, and what split() exchanges
    assert " of 4 ranks on 2 hosts: " in text
    assert int(text.split(": ")[1].split()[0]) >= 10 * 3 + 10 * 2


def test_time_between_calls_is_kept(job, machine, tmp_path):
    step = 1000000  # ns from call to call; each ends 1,000 ns after it began

    def pace(dump):
        operations = [one for order in dump["orders"] for one in order["operations"]]
        operations.sort(key=lambda one: one["ended_ns"])
        if dump["name"] != "world":
            for order in dump["orders"]:
                order["operations"] = []
            return
        for number, one in enumerate(operations):
            one["started_ns"] = dump["created_ns"] + number * step
            one["ended_ns"] = one["started_ns"] + 1000
            one["queued_ns"] = None

    paced = copied(job, tmp_path / "paced", pace)
    world = json.loads(next(path for path in paced.iterdir() if path.name.startswith("accord-world-")).read_text())
    calls = sum(len(order["operations"]) for order in world["orders"])
    answer = replayed(paced, machine)
    assert answer["recorded_seconds"] == pytest.approx(((calls - 1) * step + 1000) * 1e-9)
    assert answer["critical_path"]["seconds"]["computation"] == pytest.approx((calls - 1) * (step - 1000) * 1e-9)
    assert 0 < answer["seconds"] - answer["critical_path"]["seconds"]["computation"] < calls * 50e-6


def test_a_job_that_is_not_complete_is_an_error_or_left_out(job, machine, tmp_path):
    missing = copied(job, tmp_path / "missing", lambda dump: None)
    next(path for path in missing.iterdir() if "world-" in path.name and path.name.endswith("rank3.json")).unlink()
    result = accord("sim", "replay", missing, "--machine", machine)
    assert result.returncode == 2
    assert 'there is no dump of rank 3 of group "world"' in result.stderr

    def forget(dump):
        if dump["name"] == "world" and dump["rank"] == 2:
            calls = next(order for order in dump["orders"] if order["kind"] == "collectives")
            calls["operations"] = calls["operations"][3:]

    text = accord("sim", "replay", copied(job, tmp_path / "short", forget), "--machine", machine).stdout
    assert "(3 left out, as not all of their ranks have recorded them)" in text
    (tmp_path / "empty").mkdir()
    result = accord("sim", "replay", tmp_path / "empty", "--machine", machine)
    assert result.returncode == 1
    assert "empty" in result.stderr
    result = accord("sim", "replay", job, "--machine", ROOT / "examples/sim/cluster.toml")
    assert result.returncode == 0, result.stderr
