"""The flight recorder from Python: dumps on request and on failure, and counters."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from accord_command import ACCORD, accord, clean_environment, end, python_file, start_accord, wait_until

import accord as module

PROGRAM = """
import sys
import numpy as np
import accord
comm = accord.Communicator.from_environment(timeout=20)
comm.barrier()
try:
    comm.all_reduce(np.ones(4 + comm.rank, np.float32))
except accord.Mismatch as error:
    sys.exit(0 if "4 x float32" in str(error) and "5 x float32" in str(error) else 3)
sys.exit(4)
"""


def run_mismatch(tmp_path: Path, dump_directory: Path):
    """Runs two ranks that disagree on a count. Each exits with 0 as soon as it gets that error."""
    return accord(
        *("run", "-n", "2", "--", sys.executable, python_file(tmp_path, PROGRAM)),
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), ACCORD_DUMP_DIR=str(dump_directory)),
    )


def test_a_failure_leaves_a_dump_of_each_rank(tmp_path):
    dumps = tmp_path / "made" / "by accord"
    result = run_mismatch(tmp_path, dumps)
    assert result.returncode == 0, result.stderr
    found = {json.loads(path.read_text())["rank"]: json.loads(path.read_text()) for path in dumps.iterdir()}
    assert sorted(found) == [0, 1]
    assert found[0]["communicator"] == found[1]["communicator"]
    for rank, dump in found.items():
        assert dump["state"] == "failed"
        assert dump["failure"]["code"] == "mismatch"
        last = dump["orders"][0]["operations"][-1]
        assert (last["number"], last["collective"], last["count"]) == (2, "all_reduce", 4 + rank)
        assert last["state"] == "running"
        assert last["ended_ns"] is None


def test_an_unwritable_directory_is_a_warning_and_the_failure_is_unchanged(tmp_path):
    file_in_the_way = tmp_path / "file"
    file_in_the_way.write_text("")
    result = run_mismatch(tmp_path, file_in_the_way / "below")
    assert result.returncode == 0, result.stderr
    assert f"could not be written: {file_in_the_way}/below: Not a directory" in result.stderr


def test_a_full_disk_is_a_warning_and_the_failure_is_unchanged(tmp_path):
    limited = tmp_path / "limited.py"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
    limited.write_text(PROGRAM.replace("comm.barrier()\n", "comm.barrier()\n" + limit))
    result = accord(
        *("run", "-n", "2", "--", sys.executable, limited),
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), ACCORD_DUMP_DIR=str(tmp_path / "dumps")),
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("File too large") == 2
    assert list((tmp_path / "dumps").iterdir()) == []


RANKS = """
import os, signal, subprocess, sys, time
import numpy as np
import accord

def wait_until_waited_for():
    look = ["ACCORD_COMMAND", "diagnose", "--pid", str(os.getpid())]
    while "where ranks 0 and 2 wait" not in subprocess.run(look, capture_output=True, text=True).stdout:
        pass

comm = accord.Communicator.from_environment(timeout=TIMEOUT)
x = np.ones(8, np.float32)
comm.barrier()
try:
    CASE
except accord.Error:
    sys.exit(0)
sys.exit(4)
"""


def rank_program(case: str, timeout: float = 20) -> str:
    return RANKS.replace("ACCORD_COMMAND", str(ACCORD)).replace("TIMEOUT", str(timeout)).replace("CASE", case)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def dumps_of(tmp_path: Path, case: str, timeout: float = 20) -> Path:
    """Returns the folder of the dumps of three ranks that ran `case` until it failed."""
    dumps = tmp_path / "dumps"
    program = python_file(tmp_path, rank_program(case, timeout))
    # A launcher would end the other ranks as soon as one has failed.
    environment = clean_environment(
        PYTHONPATH=os.environ.get("PYTHONPATH", ""),
        ACCORD_DUMP_DIR=str(dumps),
        WORLD_SIZE="3",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
    )
    ranks = [
        subprocess.Popen([sys.executable, program], env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(3)
    ]
    for rank in ranks:
        rank.communicate(timeout=60)
    return dumps


def diagnosis(dumps: Path) -> dict:
    result = accord("diagnose", "--json", dumps)
    assert result.returncode == 0, result.stderr
    (group,) = json.loads(result.stdout)["communicators"]
    return group


@pytest.mark.parametrize(
    ("case", "odd", "rest"),
    [
        (
            "comm.all_reduce(x) if comm.rank != 2 else comm.broadcast(x, 1)",
            "rank 2 called broadcast of 8 x float32 from rank 1",
            "ranks 0 and 1 called all_reduce of 8 x float32 (sum)",
        ),
        (
            "comm.all_reduce(x[: 8 - comm.rank // 2])",
            "rank 2 called all_reduce of 7 x float32 (sum)",
            "ranks 0 and 1 called all_reduce of 8 x float32 (sum)",
        ),
        (
            "comm.reduce(x, comm.rank // 2); comm.barrier()",
            "rank 2 called reduce of 8 x float32 (sum) to rank 1",
            "ranks 0 and 1 called reduce of 8 x float32 (sum) to rank 0",
        ),
    ],
    ids=["collective", "count", "root"],
)
def test_the_rank_that_called_something_else_is_named(tmp_path, case, odd, rest):
    group = diagnosis(dumps_of(tmp_path, case))
    assert group["verdict"] == "failed"
    first = group["findings"][0]
    assert first["kind"] == "mismatch"
    assert first["ranks"] == [2]
    assert first["text"].startswith(f"call 2: {odd}")
    assert rest in first["text"]


def test_a_call_made_after_a_rank_dumped_is_still_reported(tmp_path):
    # Rank 1 is notified of the failure and dumps while it does something else. It makes its call after that.
    case = "time.sleep(2 if comm.rank == 1 else 0); comm.all_reduce(x[: 8 - comm.rank // 2])"
    group = diagnosis(dumps_of(tmp_path, case))
    assert group["findings"][0]["ranks"] == [2]
    assert "ranks 0 and 1 called all_reduce of 8 x float32 (sum)" in group["findings"][0]["text"]


def test_a_rank_that_arrived_too_late_is_named(tmp_path):
    late = "time.sleep(3 if comm.rank == 1 else 0); comm.all_reduce(x)"
    group = diagnosis(dumps_of(tmp_path, late, timeout=1))
    (finding,) = group["findings"]
    assert (finding["kind"], finding["ranks"]) == ("behind", [1])
    assert "has not arrived at call 2, all_reduce of 8 x float32 (sum), where ranks 0 and 2 wait" in finding["text"]
    assert any("rank 1 did not arrive in time" in failure for failure in group["failures"])


def test_a_killed_rank_leaves_no_dump(tmp_path):
    kill = "wait_until_waited_for(), os.kill(os.getpid(), signal.SIGKILL)"
    killed = f"({kill}) if comm.rank == 1 else comm.all_reduce(x)"
    group = diagnosis(dumps_of(tmp_path, killed))
    (finding,) = group["findings"]
    assert (finding["kind"], finding["ranks"]) == ("silent", [1])
    assert [rank["has_record"] for rank in group["ranks"]] == [True, False, True]
    text = accord("diagnose", tmp_path / "dumps").stdout
    assert "rank 1 left no dump: it was killed or stopped, or still runs; ranks 0 and 2 wait in call 2" in text
    assert "no record of it" in text


@pytest.mark.parametrize("fall", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(9)", "os._exit(9)"])
def test_the_launcher_dumps_the_ranks_that_it_ends(tmp_path, fall):
    dumps = tmp_path / "dumps"
    case = f"({fall}) if comm.rank == 1 else comm.all_reduce(x) if comm.rank == 0 else time.sleep(100)"
    accord(
        *("run", "-n", "3", "--", sys.executable, python_file(tmp_path, rank_program(case))),
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), ACCORD_DUMP_DIR=str(dumps)),
    )
    group = diagnosis(dumps)
    assert [rank["has_record"] for rank in group["ranks"]][1:] == [False, True]  # rank 0 may have ended first


def test_the_launcher_dumps_a_hanging_job_that_is_interrupted(tmp_path):
    dumps = tmp_path / "dumps"
    case = "time.sleep(100) if comm.rank == 1 else comm.all_reduce(x)"
    launcher = start_accord(
        *("run", "-n", "3", "--", sys.executable, python_file(tmp_path, rank_program(case))),
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), ACCORD_DUMP_DIR=str(dumps)),
    )
    try:
        wait_until(lambda: "has not arrived" in accord("diagnose", "--pid", launcher.pid).stdout, "the job hangs")
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=30)
    finally:
        end(launcher)
    (finding,) = diagnosis(dumps)["findings"]
    assert (finding["kind"], finding["ranks"]) == ("behind", [1])


def test_damaged_dumps_and_other_files_are_rejected_by_name(solo, tmp_path):
    whole = Path(solo.dump(tmp_path / "dumps"))
    text = whole.read_text()
    assert accord("diagnose", whole).stdout == "1 communicator in which no rank waits\n"
    for contents, message in [
        (text[: len(text) // 2], "it is not JSON, or is incomplete"),
        ("", "it is not JSON, or is incomplete"),
        ('{"a": 1}', 'it is not an "accord flight log"'),
        (text.replace('"version":1', '"version":9'), "it is of version 9; this accord reads version 1"),
        (text.replace('"size":1', '"size":1,"rank":5'), '"rank" is 5, with 1 ranks'),
    ]:
        whole.write_text(contents)
        result = accord("diagnose", tmp_path / "dumps")
        assert (result.returncode, result.stdout) == (1, "")
        assert f"accord diagnose: {whole}: {message}" in result.stderr
    (tmp_path / "empty").mkdir()
    assert "the directory contains no dump (accord-*.json)" in accord("diagnose", tmp_path / "empty").stderr
    assert f"{tmp_path}/none: No such file" in accord("diagnose", tmp_path / "none").stderr


@pytest.fixture
def solo():
    with module.Communicator.create(module.MemoryStore(), 0, 1, name="solo/x") as comm:
        yield comm


def test_a_dump_on_request_reports_its_path(solo, tmp_path):
    solo.all_reduce(np.ones(3, np.float64))
    path = Path(solo.dump(tmp_path / "dumps"))
    assert path.parent == tmp_path / "dumps"
    assert path.name.startswith("accord-solo_x-")
    assert path.name.endswith("-rank0.json")
    dump = json.loads(path.read_text())
    assert dump["ranks"] == [{"process": os.getpid(), "host": 0}]
    assert dump["orders"][0]["operations"][0]["dtype"] == "float64"
    assert solo.dump(str(tmp_path / "dumps")) == str(path)
    with pytest.raises(OSError, match="file: "):
        (tmp_path / "file").write_text("")
        solo.dump(tmp_path / "file")


def test_counters_count_calls_and_bytes(solo):
    assert solo.counters() == {"failures": 0, "waits": 0, "queued": 0, "by_collective": {}}
    for _ in range(3):
        solo.all_reduce(np.ones(5, np.int16))
    solo.barrier_async().wait()
    assert solo.counters() == {
        "failures": 0,
        "waits": 0,
        "queued": 1,
        "by_collective": {"barrier": {"calls": 1, "bytes": 0}, "all_reduce": {"calls": 3, "bytes": 30}},
    }
