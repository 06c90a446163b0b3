"""`accord run` and the processes that ranks start: signals reach the ranks, and no process of a rank that has ended
is left."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from accord_command import (
    ACCORD,
    accord,
    clean_environment,
    end,
    is_running,
    next_line,
    python_file,
    start_accord,
    wait_until,
)
from tiers import mostly_slow

# A rank that starts helpers of each kind and prints their process ids: one in its process group, one that ignores
# SIGTERM, one in its own session, and a daemon whose parent has ended. The first argument says how the rank
# ends.
RANK = """
import os, signal, subprocess, sys

def helper(text, **more):
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, **more)

WAIT = "import signal, sys; print('ready', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\\nwhile True: signal.pause()"
DAEMON = "import os, signal\\nif os.fork() == 0:\\n  os.setsid(); print(os.getpid(), flush=True); signal.pause()"
helpers = [helper(WAIT), helper(STUBBORN), helper(WAIT, start_new_session=True)]
for one in helpers:
    one.stdout.readline()
daemon = helper(DAEMON)
numbers = [*(one.pid for one in helpers), int(daemon.stdout.readline())]
daemon.wait()

def alive():
    return sum(os.path.exists(f"/proc/{number}") for number in numbers)

def saved(number, frame):
    sys.stdout.write(f"{signal.Signals(number).name} {alive()}\\n")
    sys.stdout.flush()
    if number != signal.SIGUSR1:
        sys.exit(0)

wakes, woken = os.pipe()  # pause() would miss a signal that comes just before it
os.set_blocking(woken, False)
signal.set_wakeup_fd(woken)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, saved)
sys.stdout.write(f"{os.getpid()} {' '.join(map(str, numbers))}\\n")
sys.stdout.flush()
if sys.argv[1] == "end" and os.environ["RANK"] == "0":
    sys.exit(0)
while True:
    os.read(wakes, 1)
"""


def processes_of_ranks(launchers, ranks: int) -> dict[int, list[int]]:
    """Returns the process ids of each rank's processes, the rank's own first."""
    found = {}
    for launcher in launchers:
        for _ in range(ranks):
            rank, *numbers = re.findall(r"\d+", next_line(launcher.stdout))
            found[int(rank)] = [int(number) for number in numbers]
    return found


def wait_until_gone(processes) -> None:
    for process in processes:
        wait_until(lambda process=process: not is_running(process), "no process of a rank outlives it")


@pytest.fixture
def program(tmp_path):
    return python_file(tmp_path, RANK)


@pytest.fixture
def launch():
    started = []

    def start(*arguments):
        started.append(start_accord("run", *arguments))
        return started[-1]

    yield start
    end(*started)


def script_that_runs(program, folder):
    """Writes a rank that is a shell, which waits for another shell, which waits for the program."""
    script = folder / "train.sh"
    script.write_text(f'#!/bin/bash\n(python {program} "$@"; exit $?)\nexit 7\n')
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("in_shells", mostly_slow([False, True], True))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_ranks_before_their_helpers_end(launch, program, tmp_path, number, in_shells):
    program = script_that_runs(program, tmp_path) if in_shells else program
    job = launch("-n", 2, "--grace", 3, program, "stay")
    ranks = processes_of_ranks([job], 2)
    job.send_signal(signal.SIGUSR1)
    assert sorted(next_line(job.stdout) for _ in range(2)) == ["[0] SIGUSR1 4\n", "[1] SIGUSR1 4\n"]
    job.send_signal(number)
    output, _ = job.communicate(timeout=60)
    assert sorted(output.splitlines()) == [f"[{rank}] {number.name} 4" for rank in range(2)]
    assert job.returncode == 128 + number
    wait_until_gone([*ranks[0], *ranks[1]])


def test_a_shell_trap_runs(launch, tmp_path):
    script = tmp_path / "train.sh"
    command = "python -c 'import signal; print(\"ready\", flush=True); signal.pause()'"
    script.write_text(f"#!/bin/bash\ntrap 'echo trapped' USR1\n{command}\necho next\nsleep 600\n")
    script.chmod(0o755)
    job = launch("-n", 1, script)
    assert next_line(job.stdout) == "[0] ready\n"
    job.send_signal(signal.SIGUSR1)  # it has no handler, so the signal ends the command
    assert sorted(next_line(job.stdout) for _ in range(2)) == ["[0] next\n", "[0] trapped\n"]
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("group", [False, True], ids=["the launcher", "its process group"])
def test_nothing_outlives_a_killed_launcher(launch, program, group):
    job = start_accord("run", "-n", 2, program, "stay", process_group=0) if group else launch("-n", 2, program, "stay")
    try:
        ranks = processes_of_ranks([job], 2)
        if group:
            os.killpg(job.pid, signal.SIGKILL)
        else:
            job.kill()
        wait_until_gone([*ranks[0], *ranks[1]])
    finally:
        end(job)


def test_helpers_of_a_finished_rank_end_while_other_ranks_run(launch, program):
    job = launch("-n", 2, "--grace", 1, program, "end")
    ranks = processes_of_ranks([job], 2)
    wait_until_gone(ranks[0])
    assert job.poll() is None
    assert all(is_running(process) for process in ranks[1])
    job.send_signal(signal.SIGTERM)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    wait_until_gone(ranks[1])


def test_on_several_nodes_nothing_outlives_a_signal_or_a_launcher(launch, program):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--nnodes", 2, "--rdzv-endpoint", endpoint, "--grace", 1]
    jobs = [launch(*options, "--node-rank", node, program, "stay") for node in range(2)]
    ranks = processes_of_ranks(jobs, 1)
    jobs[0].kill()
    jobs[1].communicate(timeout=60)
    assert jobs[1].returncode == 1
    wait_until_gone([*ranks[0], *ranks[1]])


def test_nothing_outlives_a_killed_parent_if_the_job_ends_with_it(program, tmp_path):
    command = [str(ACCORD), "run", "-n", "2", "--end-with", "PARENT", str(program), "stay"]
    parent = python_file(
        tmp_path,
        "import os, signal, subprocess\n"
        f"command = [str(os.getpid()) if word == 'PARENT' else word for word in {command}]\n"
        "subprocess.Popen(command, start_new_session=True)\n"
        "signal.pause()\n",
        name="parent.py",
    )
    process = subprocess.Popen([sys.executable, parent], stdout=subprocess.PIPE, text=True, env=clean_environment())
    try:
        processes = processes_of_ranks([process], 2)
        process.kill()
        wait_until_gone(number for numbers in processes.values() for number in numbers)
    finally:
        end(process)


def test_a_job_ends_with_its_parent_only():
    result = accord("run", "--end-with", 1 << 22, "true")
    assert result.returncode == 1
    assert f"process {1 << 22} of --end-with is not the parent" in result.stderr
