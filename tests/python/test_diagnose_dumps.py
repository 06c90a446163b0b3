"""The flight recorder from Python: dumps on request and on failure, and counters."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from accord_command import accord, clean_environment, python_file

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
    """Two ranks that disagree on a count; each exits with 0 if it gets that error, at once when it does."""
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


def test_a_directory_that_cannot_be_written_to_is_a_warning_and_the_failure_stays(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    result = run_mismatch(tmp_path, in_the_way / "below")
    assert result.returncode == 0, result.stderr
    assert f"could not be written: {in_the_way}/below: Not a directory" in result.stderr


def test_a_full_disk_is_a_warning_and_the_failure_stays(tmp_path):
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


@pytest.fixture
def solo():
    with module.Communicator.create(module.MemoryStore(), 0, 1, name="solo/x") as comm:
        yield comm


def test_a_dump_on_request_tells_where_it_is(solo, tmp_path):
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
