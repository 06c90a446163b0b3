"""The options of a communicator: its arguments, and ACCORD_ variables for the arguments that are not given."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accord_command import ACCORD, clean_environment, wait_until

PROGRAM = """
import sys, accord
try:
    print("made", {call}.size)
except accord.Error as error:
    print(type(error).__name__, error)
"""


def start(call: str, **variables: str) -> subprocess.Popen[str]:
    """Starts a process that evaluates `call`, which creates a communicator, and prints the outcome."""
    environment = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), **variables)
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=60)[0].strip()


def create(folder: Path, rank: int, more: str) -> str:
    return f"accord.Communicator.create(accord.FileStore({str(folder)!r}), {rank}, 2, {more})"


def test_the_select_variable_is_applied_once():
    """Both ranks ask for the same selection, one by a variable and one by an argument. A difference would be a
    Mismatch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(min(probe.getsockname()[1], 65519))}
    select = "all_reduce:0-inf=two_shot"
    first = start("accord.Communicator.from_environment(timeout=60)", RANK="0", ACCORD_SELECT=select, **place)
    second = start(f"accord.Communicator.from_environment(timeout=60, select={select!r})", RANK="1", **place)
    assert [outcome(first), outcome(second)] == ["made 2"] * 2


def test_an_explicit_timeout_is_kept_even_if_it_equals_the_default(tmp_path):
    folder = tmp_path / "store"
    first = start(create(folder, 0, "timeout=300"), ACCORD_TIMEOUT="0.001")
    wait_until(lambda: folder.exists() and list(folder.iterdir()), "rank 0 has announced itself")
    second = start(create(folder, 1, "timeout=60"))
    assert [outcome(first), outcome(second)] == ["made 2"] * 2


def test_an_explicit_transport_is_kept_even_if_it_equals_the_default(tmp_path):
    ranks = [
        start(create(tmp_path / "store", rank, "timeout=60, transport='auto'"), ACCORD_TRANSPORT="inproc")
        for rank in range(2)
    ]
    assert [outcome(rank) for rank in ranks] == ["made 2"] * 2


def test_an_unresolvable_address_is_an_immediate_error():
    place = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "x" * 64, "MASTER_PORT": "29500"}
    error = outcome(start("accord.Communicator.from_environment(timeout=1000)", **place))
    assert error.startswith("NotFound MASTER_ADDR: ") and f'host "{"x" * 64}" has no address' in error


def test_options_that_are_not_given_come_from_the_environment(tmp_path):
    ranks = [start(create(tmp_path / "store", rank, "timeout=60"), ACCORD_TRANSPORT="inproc") for rank in range(2)]
    for rank in ranks:
        assert "inproc: does not reach from rank 0 to rank 1" in outcome(rank)


@pytest.mark.parametrize("select", [b"\xff\xfe", b"all_reduce:0-inf=\xff", b"all_reduce:0-inf=packet \xff"])
def test_bytes_that_are_not_text_are_rejected(tmp_path, select):
    environment = {name.encode(): value.encode() for name, value in clean_environment().items()}
    environment |= {b"ACCORD_SELECT": select, b"PYTHONPATH": os.environb.get(b"PYTHONPATH", b"")}
    command = [sys.executable, "-c", PROGRAM.format(call=create(tmp_path / "store", 0, "timeout=60"))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.startswith('InvalidArgument creating group "world": selection table, at character '), result


HINTED = """
import json, pathlib, sys, numpy, accord
comm = accord.Communicator.from_environment(name="hinted", hints="slot_bytes=4k,recorder_size=16")
tp = comm.split_ranks([0, 1], hints="slot_bytes=64k")
pair = tp.split(0, name="pair")
small = pair.split(0, name="small", hints="slot_bytes=16k,recorder_size=32")
for group in (comm, tp, pair, small):
    group.all_reduce(numpy.ones(65536, dtype=numpy.float32))
    for _ in range(40):
        group.barrier()
    record = json.loads(pathlib.Path(group.dump(sys.argv[1])).read_text())
    print(comm.rank, group.name, len(record["orders"][0]["operations"]))
"""


def test_hints_apply_to_one_group_and_unset_hints_are_inherited(tmp_path):
    """A group's slot size determines its number of rounds, and its recorder size the length of its dump."""
    command = [ACCORD, "run", "-n", "2", sys.executable, "-c", HINTED, tmp_path]
    environment = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), ACCORD_DEBUG="info")
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    rounds = dict(
        re.findall(r'group "(.*?)": all_reduce of 65536 x float32.* (\d+) rounds?$', ended.stderr, re.MULTILINE)
    )
    assert int(rounds["hinted"]) == 16 * int(rounds["hinted/0,1"]) == 16 * int(rounds["pair"])
    assert int(rounds["small"]) == 4 * int(rounds["pair"])
    kept = re.findall(r"\d (\S+) (\d+)$", ended.stdout, re.MULTILINE)
    assert sorted(set(kept)) == [("hinted", "16"), ("hinted/0,1", "16"), ("pair", "16"), ("small", "32")]


@pytest.mark.parametrize("call", ["split_ranks([0, 1]", "split(0"])
def test_hints_that_differ_are_a_mismatch_in_creation_and_split(tmp_path, call):
    first = start(create(tmp_path / "store", 0, "timeout=60, hints='slot_bytes=4k'"))
    second = start(create(tmp_path / "store", 1, "timeout=60"), ACCORD_SLOT_BYTES="8k")
    assert "slots of 8192 bytes" in outcome(first) and "slots of 4096 bytes" in outcome(second)
    split = "{}.{}, name='tp', timeout=60, hints='slot_bytes={}k')"
    ranks = [start(split.format(create(tmp_path / "again", rank, "timeout=60"), call, 4 << rank)) for rank in range(2)]
    for error in [outcome(process) for process in ranks]:  # one rank may be notified by the other
        assert error.startswith('Mismatch creating group "tp"')
        assert "slots of 4096 bytes" in error and "slots of 8192 bytes" in error


def test_an_unknown_hint_is_rejected_by_name_and_reported_to_the_others(tmp_path):
    first = start(create(tmp_path / "store", 0, "timeout=60, hints='slot_byte=4k'"))
    second = start(create(tmp_path / "store", 1, "timeout=60"))
    why = 'unknown hint "slot_byte"; did you mean "slot_bytes"?'
    assert outcome(first) == f'InvalidArgument creating group "world": {why}'
    error = outcome(second)
    assert error.startswith('PeerLost creating group "world": rank 0 does not take part: ')
    assert error.endswith(why)


@pytest.mark.parametrize("refused", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_with_an_invalid_environment_reports_it_to_the_others(refused, first):
    """The other rank is notified at once rather than after its timeout, whichever rank comes first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(min(probe.getsockname()[1], 65519))}
    ranks = {}
    for rank in (first, 1 - first):
        wrong = {"ACCORD_SELECT": "@/nonexistent/table"} if rank == refused else {}
        call = "accord.Communicator.from_environment(timeout=55)"
        ranks[rank] = start(call, RANK=str(rank), **place, **wrong)
    why = "the tuner's table: /nonexistent/table: No such file or directory"
    began = time.monotonic()
    assert outcome(ranks[refused]) == f'NotFound creating group "world": {why}'
    error = outcome(ranks[1 - refused])
    assert error.startswith(f'PeerLost creating group "world": rank {refused} does not take part: ')
    assert error.endswith(why)
    assert time.monotonic() - began < 30
