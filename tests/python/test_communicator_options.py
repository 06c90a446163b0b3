"""What a communicator is made with: by its arguments, and by ACCORD_ variables where they are left open."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import clean_environment, wait_until

PROGRAM = """
import sys, accord
try:
    print("made", {call}.size)
except accord.Error as error:
    print(type(error).__name__, error)
"""


def start(call: str, **variables: str) -> subprocess.Popen[str]:
    """A process that evaluates `call`, which makes a communicator, and says how that ended."""
    environment = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), **variables)
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=60)[0].strip()


def create(folder: Path, rank: int, more: str) -> str:
    return f"accord.Communicator.create(accord.FileStore({str(folder)!r}), {rank}, 2, {more})"


def test_the_environments_select_is_applied_once():
    """Both ranks ask for the same, one by a variable and one by an argument; a difference would be a Mismatch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(min(probe.getsockname()[1], 65519))}
    select = "all_reduce:0-inf=two_shot"
    first = start("accord.Communicator.from_environment(timeout=60)", RANK="0", ACCORD_SELECT=select, **place)
    second = start(f"accord.Communicator.from_environment(timeout=60, select={select!r})", RANK="1", **place)
    assert [outcome(first), outcome(second)] == ["made 2"] * 2


def test_an_explicit_timeout_is_kept_also_if_it_is_the_default(tmp_path):
    folder = tmp_path / "store"
    first = start(create(folder, 0, "timeout=300"), ACCORD_TIMEOUT="0.001")
    wait_until(lambda: folder.exists() and list(folder.iterdir()), "rank 0 has said that it is there")
    second = start(create(folder, 1, "timeout=60"))
    assert [outcome(first), outcome(second)] == ["made 2"] * 2


def test_an_explicit_transport_is_kept_also_if_it_is_the_default(tmp_path):
    ranks = [
        start(create(tmp_path / "store", rank, "timeout=60, transport='auto'"), ACCORD_TRANSPORT="inproc")
        for rank in range(2)
    ]
    assert [outcome(rank) for rank in ranks] == ["made 2"] * 2


def test_what_is_left_open_comes_from_the_environment(tmp_path):
    ranks = [start(create(tmp_path / "store", rank, "timeout=60"), ACCORD_TRANSPORT="inproc") for rank in range(2)]
    for rank in ranks:
        assert "inproc: does not reach from rank 0 to rank 1" in outcome(rank)


@pytest.mark.parametrize("select", [b"\xff\xfe", b"all_reduce:0-inf=\xff", b"all_reduce:0-inf=packet \xff"])
def test_bytes_that_are_no_text_are_refused(tmp_path, select):
    environment = {name.encode(): value.encode() for name, value in clean_environment().items()}
    environment |= {b"ACCORD_SELECT": select, b"PYTHONPATH": os.environb.get(b"PYTHONPATH", b"")}
    command = [sys.executable, "-c", PROGRAM.format(call=create(tmp_path / "store", 0, "timeout=60"))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.startswith('InvalidArgument creating group "world": selection table, at character '), result
