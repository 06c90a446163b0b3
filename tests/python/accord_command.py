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

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD_DIR", ROOT / "build/release")).resolve()
ACCORD = BUILD / "bin/accord"

# Before a rank's program and its arguments: the rank ignores the request to end that the launcher sends when another one has failed,
# so that what it says of that failure itself can be seen.
TO_ITS_OWN_END = ("sh", "-c", 'trap "" TERM; exec "$@"', "sh")

# What a rank's environment must not inherit from a test that is itself run by a launcher.
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


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without a launcher's variables, with this Python first in PATH."""
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return environment | more


def accord(*arguments: object, timeout: float = 60, **more) -> subprocess.CompletedProcess[str]:
    """Runs `accord` with `arguments` to its end; a run that takes longer than `timeout` seconds fails the test."""
    command = [str(ACCORD), *map(str, arguments)]
    more.setdefault("env", clean_environment())
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)


def plan_answer(*arguments: object, **environment: str):
    """What `accord plan` says with --json."""
    result = accord("plan", *arguments, "--json", env=clean_environment(**environment))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def start_accord(*arguments: object, **more) -> subprocess.Popen[str]:
    """Starts `accord` with pipes for its output."""
    command = [str(ACCORD), *map(str, arguments)]
    more.setdefault("env", clean_environment())
    more.setdefault("stdout", subprocess.PIPE)
    more.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(command, text=True, **more)


def python_file(folder: Path, text: str, name: str = "program.py") -> Path:
    """A Python program in `folder`."""
    path = folder / name
    path.write_text(text)
    return path


def program_environment(**more: str) -> dict[str, str]:
    """For a Python program that has this process's modules."""
    return clean_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1", **more)


def on_ranks(ranks: int, program: Path, *arguments: object) -> str:
    """What a Python program writes on that many ranks; it has to end well."""
    result = accord("run", "-n", ranks, program, *arguments, timeout=240, env=program_environment())
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def next_line(stream: IO[str], seconds: float = 60) -> str:
    """The next line that a program writes; fails the test after `seconds`."""
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    assert lines, f"no line came in {seconds} s"
    return lines[0]


def wait_until(condition, what: str, seconds: float = 30):
    """Waits until `condition()` is true and gives its value; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain: {what}")


def is_running(process: int) -> bool:
    """True while a process of that number lives (a zombie does not)."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def end(*processes: subprocess.Popen):
    """Makes sure that nothing of a failed test goes on."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
