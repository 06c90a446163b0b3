"""`accord run` on one node, as a user sees it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

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

WRITE_ENVIRONMENT = """
import json, os, pathlib, sys
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
"""
TORCHRUN_VARIABLES = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR"
    " TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID"
).split()


def environments(folder: Path) -> dict[str, dict[str, str]]:
    """Maps RANK to the rank's environment, from the files that WRITE_ENVIRONMENT left in `folder`."""
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_ranks_get_the_variables_of_torchrun(tmp_path):
    program = python_file(tmp_path, WRITE_ENVIRONMENT)
    options = ["--nproc_per_node", "3", "--rdzv-id", "job", "--max_restarts=2", "--role", "trainer"]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    result = accord("run", *options, program, ours)
    assert result.returncode == 0, result.stderr
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        "0",
        *options,
    ]
    subprocess.run([*torchrun, program, theirs], env=clean_environment(), capture_output=True, timeout=120, check=True)
    found, expected = environments(ours), environments(theirs)
    assert sorted(found) == sorted(expected) == ["0", "1", "2"]
    for rank, variables in expected.items():
        assert {name: found[rank][name] for name in TORCHRUN_VARIABLES} == {
            name: variables[name] for name in TORCHRUN_VARIABLES
        }
    ports = {variables["MASTER_PORT"] for variables in found.values()}
    assert len(ports) == 1
    assert 0 < int(ports.pop()) < 65536


def test_python_files_modules_and_executables_run(tmp_path):
    program = python_file(tmp_path, "import sys; print('arguments', *sys.argv[1:])", "tool.py")
    assert accord("run", program, "-n", "5", "--", "--json").stdout == "[0] arguments -n 5 -- --json\n"
    assert accord("run", "-m", "tool", "x", cwd=tmp_path).stdout == "[0] arguments x\n"
    assert accord("run", "--", "sh", "-c", "echo $0 $1", "a", "[b,c]").stdout == "[0] a [b,c]\n"
    refused = accord("run", "--no-python", program)
    assert refused.returncode == 126
    assert f'cannot execute "{program}": Permission denied' in refused.stderr


def test_a_program_that_does_not_exist_is_named():
    result = accord("run", "-n", 2, "no-such-program")
    assert result.returncode == 127
    assert 'cannot execute "no-such-program": No such file or directory' in result.stderr


def test_lines_of_many_ranks_are_never_interleaved(tmp_path):
    program = python_file(
        tmp_path,
        """
import os, sys
rank = os.environ["RANK"]
for i in range(400):
    for stream, letter in ((sys.stdout, "o"), (sys.stderr, "e")):
        line = f"{letter}{i}:" + rank * (37 * i % 3000) + ";\\n"
        for start in range(0, len(line), 700):  # in pieces, as a pipe may well deliver them
            stream.write(line[start:start + 700])
            stream.flush()
""",
    )
    for streams in ({}, {"stderr": subprocess.STDOUT}):
        process = start_accord("run", "-n", 3, program, **streams)
        try:
            output, error = process.communicate(timeout=120)
        finally:
            end(process)
        lines = Counter((output + (error or "")).splitlines())
        expected = [f"[{r}] {s}{i}:{str(r) * (37 * i % 3000)};" for r in range(3) for s in "oe" for i in range(400)]
        assert lines == Counter(expected)


def test_incomplete_lines_and_progress_bars_are_shown():
    result = accord("run", "sh", "-c", r"printf 'a\rb\r\nc\n\nlast'")
    assert result.stdout == "[0] a\n[0] b\n[0] c\n[0] \n[0] last\n"


def test_the_first_failure_ends_the_others_immediately_and_determines_the_exit_code(tmp_path):
    program = python_file(
        tmp_path, "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(1000)\n"
    )
    began = time.monotonic()
    result = accord("run", "-n", 3, "--grace", 1000, program)
    assert result.returncode == 7
    assert re.search(r"accord run: rank 1 \(node 0, host .*, process \d+\) exited with code 7", result.stderr)
    assert time.monotonic() - began < 30


def test_a_killed_rank_is_reported_by_its_signal():
    result = accord("run", "-n", 2, "sh", "-c", "if [ $RANK = 0 ]; then kill -KILL $$; fi; sleep 1000")
    assert result.returncode == 128 + signal.SIGKILL
    assert re.search(r"rank 0 .* was killed by SIGKILL", result.stderr)


def test_a_rank_that_ignores_termination_is_killed_after_the_grace_period():
    script = "trap '' TERM; if [ $RANK = 1 ]; then exit 3; fi; while :; do sleep 1; done"
    result = accord("run", "-n", 2, "--grace", 0.5, "sh", "-c", script)
    assert result.returncode == 3


def ready_ranks(process: subprocess.Popen, count: int) -> list[str]:
    """Returns the first `count` lines of output, which the ranks print when they are ready."""
    return [next_line(process.stdout) for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded_to_ranks_and_end_the_job(tmp_path, number):
    program = python_file(
        tmp_path,
        """
import os, signal, subprocess, sys
def ended(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(0)
wakes, woken = os.pipe()  # pause() would miss a signal that comes just before it
os.set_blocking(woken, False)
signal.set_wakeup_fd(woken)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, ended)
child = subprocess.Popen(["sleep", "1000"])
print("ready", child.pid, flush=True)
while True:
    os.read(wakes, 1)
""",
    )
    process = start_accord("run", "-n", 2, "--grace", 20, program)
    try:
        children = [int(line.split()[2]) for line in ready_ranks(process, 2)]
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    finally:
        end(process)
    assert process.returncode == 128 + number
    assert sorted(output.splitlines()) == [f"[{rank}] got {number.name}" for rank in range(2)]
    for child in children:
        wait_until(lambda child=child: not is_running(child), "what a rank started ends with it")


def test_a_second_signal_kills_without_waiting_for_the_grace_period():
    script = "trap '' INT TERM; echo ready; while :; do sleep 1; done"
    process = start_accord("run", "--grace", 1000, "sh", "-c", script)
    try:
        ready_ranks(process, 1)
        process.send_signal(signal.SIGINT)
        assert "a second one kills them" in next_line(process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 128 + signal.SIGINT
    finally:
        end(process)


def test_other_signals_are_forwarded_and_do_not_end_the_job():
    script = "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    process = start_accord("run", "sh", "-c", script)
    try:
        ready_ranks(process, 1)
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=30)
    finally:
        end(process)
    assert (process.returncode, output) == (0, "[0] usr1\n")


def test_a_signal_ignored_from_the_start_is_ignored_by_launcher_and_ranks(tmp_path):
    program = python_file(
        tmp_path,
        """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN))
print("ready", flush=True)
while True:
    time.sleep(0.05)
""",
    )
    command = ["nohup", str(ACCORD), "run", str(program)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env=clean_environment(), **pipes)
    try:
        ready_ranks(process, 1)
        process.send_signal(signal.SIGHUP)
        # The launcher handles the pending signal with the lower number first, which is SIGHUP.
        process.send_signal(signal.SIGUSR1)
        _, error = process.communicate(timeout=30)
    finally:
        end(process)
    assert (process.returncode, error) == (0, "")


def test_ranks_die_with_a_killed_launcher():
    process = start_accord("run", "-n", 2, "sh", "-c", "trap '' TERM HUP; echo $$; exec sleep 1000")
    try:
        ranks = [int(line.split()[1]) for line in ready_ranks(process, 2)]
        process.kill()
        process.wait()
        for rank in ranks:
            wait_until(lambda rank=rank: not is_running(rank), "a rank dies with its launcher")
    finally:
        end(process)


def test_a_restart_starts_the_whole_job_again(tmp_path):
    program = python_file(
        tmp_path,
        """
import os, sys
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("start", start, "port", os.environ["MASTER_PORT"], flush=True)
if os.environ["RANK"] == "1" and start < 2:
    sys.exit(4)
""",
    )
    result = accord("run", "-n", 2, "--max-restarts", 3, "--log-dir", tmp_path / "logs", program)
    assert result.returncode == 0, result.stderr
    starts = [line.split() for line in result.stdout.splitlines() if line.startswith("[1]")]
    assert [start[2] for start in starts] == ["0", "1", "2"]
    assert len({start[4] for start in starts}) == 3
    assert "restart 1 of 3" in result.stderr
    for start in range(3):
        log = (tmp_path / f"logs/restart_{start}/rank_1.log").read_text()
        assert log == f"start {start} port {starts[start][4]}\n"


def test_after_the_last_restart_the_last_failure_is_reported():
    result = accord("run", "-n", 2, "--max-restarts", 1, "sh", "-c", "exit $((TORCHELASTIC_RESTART_COUNT + 5))")
    assert result.returncode == 6


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process may use one processor only")
def test_binding_to_cores_gives_each_rank_its_own_cores():
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    result = accord("run", "-n", 2, "--bind", "core", sys.executable, "-c", show)
    first, second = (set(json.loads(line[4:])) for line in sorted(result.stdout.splitlines()))
    assert first
    assert second
    assert not first & second
    assert first | second <= os.sched_getaffinity(0)
    numa = accord("run", "-n", 1, "--bind", "numa", sys.executable, "-c", show)
    assert set(json.loads(numa.stdout[4:])) <= os.sched_getaffinity(0)


def test_more_ranks_than_cores_share_them():
    count = 2 * len(os.sched_getaffinity(0)) + 1
    result = accord("run", "-n", count, "--bind", "core", "true")
    assert result.returncode == 0, result.stderr


def test_only_rank_zero_gets_standard_input():
    result = accord("run", "-n", 2, "cat", input="to rank zero\n")
    assert result.stdout == "[0] to rank zero\n"


def test_a_closed_output_pipe_ends_the_job_like_a_single_program():
    command = f"{ACCORD} run -n 2 yes | head -n 3"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert len(result.stdout.splitlines()) == 3


def test_a_blocked_reader_cannot_delay_an_interrupt():
    process = start_accord("run", "-n", 2, "yes")
    try:
        time.sleep(0.5)  # the pipe is full by now; the test does not depend on it
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert process.returncode == 128 + signal.SIGTERM
    finally:
        end(process)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nproc", "2", "true"], 'unknown option "--nproc"'),
        (["--nprc-per-node", "2", "true"], 'did you mean "--nproc-per-node"?'),
        (["-n", "two", "true"], '"two"; it must be a number from 1 to 65536, auto or cpu'),
        (["-n", "0", "true"], "--nproc-per-node"),
        (["-n", "gpu", "true"], "no CUDA"),
        (["--nnodes", "1:4", "true"], "give one number"),
        (["--nnodes", "2", "true"], "--rdzv-endpoint"),
        (["--nnodes", "2", "--standalone", "true"], "--standalone"),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "localhost:1", "true"], "less than --nnodes 2"),
        (["--bind", "socket", "true"], "--bind"),
        (["--log-dir"], "--log-dir"),
        ([], "no program to run"),
    ],
)
def test_invalid_usage_is_explained(arguments, message):
    result = accord("run", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_log_directory_that_cannot_be_created_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    result = accord("run", "--log-dir", tmp_path / "file", "true")
    assert result.returncode == 126
    assert str(tmp_path / "file") in result.stderr
