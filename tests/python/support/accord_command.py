"""The built `accord` command, for tests that run it as a user would."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("BUILD_DIR", ROOT / "build/release")).resolve()
ACCORD = BUILD / "bin/accord"
SUPPORT = str(Path(__file__).resolve().parent)  # for functions on ranks that import modules of this folder

# Prefix for a rank's command. The rank ignores the SIGTERM that the launcher sends when another rank has failed, so
# that the test can see how the rank itself reports that failure.
RUN_TO_COMPLETION = ("sh", "-c", 'trap "" TERM; exec "$@"', "sh")

# Variables that a rank must not inherit when a launcher runs the test itself.
RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "ACCORD_JOB_STORE",
)


def c_interface() -> str:
    """Returns the text of accord.h and of the headers that it includes."""
    return "".join(header.read_text() for header in sorted((ROOT / "include/accord").rglob("*.h")))


def clean_environment(**more: str) -> dict[str, str]:
    """Returns this process's environment without a launcher's variables and with this Python first in PATH.

    PYTHONUNBUFFERED is dropped: with it, print() writes a text and its newline apart, so lines of ranks that share a
    pipe can run into each other.
    """
    dropped = {*RANK_VARIABLES, "PYTHONUNBUFFERED"}
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return environment | more


def accord(*arguments: object, timeout: float = 180, **more) -> subprocess.CompletedProcess[str]:
    """Runs `accord` with `arguments` until it exits. Fails the test if that takes longer than `timeout` seconds."""
    command = [str(ACCORD), *map(str, arguments)]
    more.setdefault("env", clean_environment())
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)


def plan_answer(*arguments: object, **environment: str):
    """Returns the parsed output of `accord plan ... --json`."""
    result = accord("plan", *arguments, "--json", env=clean_environment(**environment))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def start_accord(*arguments: object, **more) -> subprocess.Popen[str]:
    """Starts `accord` with its output connected to pipes."""
    command = [str(ACCORD), *map(str, arguments)]
    more.setdefault("env", clean_environment())
    more.setdefault("stdout", subprocess.PIPE)
    more.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(command, text=True, **more)


def python_file(folder: Path, text: str, name: str = "program.py") -> Path:
    """Writes a Python program to `folder` and returns its path."""
    path = folder / name
    path.write_text(text)
    return path


def program_environment(**more: str) -> dict[str, str]:
    """Returns an environment in which a Python program can import the modules of this process."""
    path = os.pathsep.join(filter(None, sys.path))
    return clean_environment(**{"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | more)


def on_ranks(ranks: int, program: Path, *arguments: object) -> str:
    """Runs a Python program on `ranks` ranks and returns its output. Fails the test if any rank fails."""
    result = accord("run", "-n", ranks, program, *arguments, timeout=240, env=program_environment())
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def next_line(stream: IO[str], seconds: float = 60) -> str:
    """Returns the next line that a program writes. Fails the test after `seconds`."""
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    assert lines, f"no line arrived in {seconds} s"
    return lines[0]


def wait_until(condition, description: str, seconds: float = 30):
    """Waits until `condition()` is true and returns its value. Fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"timed out after {seconds} s waiting for: {description}")


def process_state(process: int) -> str:
    """Returns the letter of its state, as in /proc: R, S, T and so on; "X" if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_running(process: int) -> bool:
    """Returns True while the process with that id is alive. A zombie is not."""
    return process_state(process) not in "ZX"


def stop(process: int):
    """Stops it (SIGSTOP), and returns once it has stopped."""
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: process_state(process) == "T", f"process {process} stops")


def end(*processes: subprocess.Popen):
    """Kills the processes that are still running, so that a failed test leaves none behind."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
