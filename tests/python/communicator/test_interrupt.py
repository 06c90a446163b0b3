"""Ctrl-C: a real SIGINT sent to a rank while it is inside a C++ call."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accord_command import next_line, wait_until

SETUP = """
import os, signal, sys, threading, time
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads of NumPy's would take signals that the main thread blocks
import numpy as np
import accord
rank = int(sys.argv[2])
comm = accord.Communicator.create(accord.FileStore(sys.argv[1]), rank, 2, timeout=30)
x = np.ones(4, np.float32)
comm.barrier()

def ready():
    print("ready", flush=True)

def took(start):
    return time.time() - start
"""


def start(program: str, folder, rank: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", SETUP + program, str(folder / "store"), str(rank)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def waits(process: subprocess.Popen) -> int:
    """Returns how often the process's main thread has given up its core to wait."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1])


def in_a_wait(process: subprocess.Popen) -> None:
    """Returns once the process has printed "ready" and its main thread waits in the call that follows. Only in that
    call does the thread sleep for a moment again and again."""
    assert next_line(process.stdout) == "ready\n", process.stderr.read()
    before = waits(process)
    wait_until(lambda: waits(process) >= before + 8, "the process waits in its call")


CALLS = {
    "barrier": "comm.barrier()",
    "all_reduce": "comm.all_reduce(x)",
    "recv": "comm.recv(x, 1)",
    "split": "comm.split(0)",
    "split_ranks": "comm.split_ranks([0, 1])",
    "grow": "comm.grow(accord.FileStore(sys.argv[1]), 1)",
    "window": "comm.window(64)",
    "shrink": "comm.shrink()",
    "wait": "comm.all_reduce_async(x).wait()",
    "store": "accord.FileStore(sys.argv[1]).get('never')",
    "create": "accord.Communicator.create(accord.FileStore(sys.argv[1]), 0, 2, name='second')",
    "tcp": "accord.TcpStore('127.0.0.1', 9, timeout=30)",
}


# Calls that the ranks make together. A rank that left one of them would be out of step with the others.
ABORTING = ("barrier", "all_reduce", "recv", "split", "split_ranks", "grow", "window")
NEXT_CALL = """
sys.stdin.read()
try:
    comm.barrier()
except accord.Aborted as error:
    print(error)
"""


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_ends_a_call_immediately(tmp_path, call):
    waiting = start(
        f"""
ready()
try:
    {CALLS[call]}
except KeyboardInterrupt:
    print(comm.state, flush=True)
""",
        tmp_path,
        0,
    )
    aborts = call in ABORTING
    other = start(NEXT_CALL if aborts else "sys.stdin.read()", tmp_path, 1)
    in_a_wait(waiting)
    sent = time.monotonic()
    waiting.send_signal(signal.SIGINT)
    state = next_line(waiting.stdout).strip()
    assert time.monotonic() - sent < 15, "the call continued to its own timeout of 30 s"
    assert state == ("failed" if aborts else "ready"), waiting.stderr.read()
    output = other.communicate("", timeout=20)[0]
    assert "rank 0 was interrupted from the keyboard" in output if aborts else output == ""
    assert waiting.communicate(timeout=20)[1] == "" and waiting.returncode == 0


def test_peers_are_notified_of_an_interrupted_call(tmp_path):
    waiting = start("ready()\ncomm.recv(x, 1)", tmp_path, 0)
    notified = start(
        "try:\n    comm.recv(np.zeros(9, np.float32), 0)\nexcept accord.Aborted as error:\n    print(error)",
        tmp_path,
        1,
    )
    in_a_wait(waiting)
    waiting.send_signal(signal.SIGINT)
    assert "rank 0 was interrupted from the keyboard" in notified.communicate(timeout=20)[0]
    assert "KeyboardInterrupt" in waiting.communicate(timeout=20)[1]
    assert waiting.returncode == -signal.SIGINT


def test_a_work_whose_wait_was_interrupted_can_be_waited_for_again(tmp_path):
    waiting = start(
        """
work = comm.all_reduce_async(x)
ready()
try:
    work.wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(work.wait(), x.tolist())
""",
        tmp_path,
        0,
    )
    other = start("sys.stdin.read()\ncomm.all_reduce(x)", tmp_path, 1)
    in_a_wait(waiting)
    waiting.send_signal(signal.SIGINT)
    assert next_line(waiting.stdout) == "interrupted\n"
    other.communicate("", timeout=20)
    assert waiting.communicate(timeout=20)[0] == "True [2.0, 2.0, 2.0, 2.0]\n"


def test_a_user_handler_does_not_end_the_call(tmp_path):
    """A training program that finishes its step after Ctrl-C must be able to finish it."""
    waiting = start(
        """
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append(True))
ready()
comm.all_reduce(x)
print(stopped, comm.state, x.tolist())
""",
        tmp_path,
        0,
    )
    other = start("sys.stdin.read()\ncomm.all_reduce(x)", tmp_path, 1)
    in_a_wait(waiting)
    waiting.send_signal(signal.SIGINT)
    time.sleep(0.2)
    other.communicate("", timeout=20)
    assert waiting.communicate(timeout=20)[0] == "[True] ready [2.0, 2.0, 2.0, 2.0]\n"


def test_a_handled_interrupt_does_not_affect_the_next_call(tmp_path):
    program = """
for _ in range(30):
    if rank == 0:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            pass
    comm.all_reduce(x)
print(comm.state)
"""
    processes = [start(program, tmp_path, rank) for rank in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=30)
        assert output == "ready\n", errors


def test_handlers_set_later_are_respected_and_the_default_can_be_restored(tmp_path):
    waiting = start(
        """
for handler in (signal.SIG_IGN, signal.SIG_DFL, lambda *_: None, signal.default_int_handler):
    signal.signal(signal.SIGINT, handler)
    comm.all_reduce(x)
    assert signal.getsignal(signal.SIGINT) is handler
ready()
try:
    comm.barrier()
except KeyboardInterrupt:
    print("interrupted")
""",
        tmp_path,
        0,
    )
    other = start("[comm.all_reduce(x) for _ in range(4)]\nsys.stdin.read()", tmp_path, 1)
    in_a_wait(waiting)
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=20)[0] == "interrupted\n"
    other.communicate("", timeout=20)


def test_threads_other_than_the_main_one_wait_while_it_runs(tmp_path):
    """A call releases the GIL while it runs."""
    program = """
ended = []
thread = threading.Thread(target=lambda: (comm.barrier(), ended.append(True)))
if rank == 0:
    thread.start()
    counted = 0
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        counted += 1
    print(counted > 1000, ended)
    ready()
    thread.join()
else:
    sys.stdin.read()
    comm.barrier()
"""
    waiting, other = start(program, tmp_path, 0), start(program, tmp_path, 1)
    assert next_line(waiting.stdout) == "True []\n"
    other.communicate("", timeout=20)
    assert waiting.wait(timeout=20) == 0


def test_threads_left_by_an_interrupted_call_receive_no_signals(tmp_path):
    waiting = start(
        f"""
ready()
try:
    {CALLS["store"]}
except KeyboardInterrupt:
    pass
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
print("took", signal.sigwait([signal.SIGTERM]).name)
""",
        tmp_path,
        0,
    )
    other = start("sys.stdin.read()", tmp_path, 1)
    in_a_wait(waiting)
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=20)[0] == "took SIGTERM\n"
    other.communicate("", timeout=20)


def test_a_signal_before_the_call_is_raised_by_it(tmp_path):
    program = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
os.kill(os.getpid(), signal.SIGINT)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
comm.barrier()
"""
    process, other = start(program, tmp_path, 0), start("sys.stdin.read()", tmp_path, 1)
    assert "KeyboardInterrupt" in process.communicate(timeout=20)[1]
    other.communicate("", timeout=20)
