"""Commands of gpu_checks.py, which end with everything that they started, and what stages need to run them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tally import Tally, why_program_failed

ROOT = Path(__file__).resolve().parent.parent
#: Kept of a log's beginning and of its end, in bytes.
LOG_BEGINNING, LOG_END = 64 << 10, 192 << 10
PR_SET_CHILD_SUBREAPER = 36


class Interrupted(BaseException):
    """Ctrl-C, or a request to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


_adopts = False


def raise_when_interrupted() -> None:
    """From now on signals that end a program raise Interrupted, and processes whose parents have ended become children
    of this one, so that run() can end them.
    """
    global _adopts
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, _: object) -> NoReturn:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)  # the first one ends everything
        raise Interrupted(number)

    for each in signals:
        signal.signal(each, interrupt)
    _adopts = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def _end_orphans() -> None:
    """Kills processes that a command has left, also those in sessions of their own."""
    while _adopts and (left := _children()):
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(process, 0)


@dataclass
class Ended:
    """How a command ended: its exit code, 128 + a signal, or None if it took too long; and its output."""

    code: int | None
    output: str
    seconds: float

    def why(self) -> str:
        """Returns the reason why it failed."""
        return why_program_failed("took too long" if self.code is None else f"exit code {self.code}", self.output)


def run(command: list[str], seconds: float, environment: dict[str, str] | None = None) -> Ended:
    """Never takes much longer than `seconds`: then the command and everything that it started are killed."""
    began = time.monotonic()
    # A file, not a pipe, whose end would be awaited as long as any process holds it.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        code = None
        try:
            code = process.wait(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            _end_orphans()
        output.seek(0)
        text = output.read().decode(errors="replace")
    code = 128 - code if code is not None and code < 0 else code
    return Ended(code, text, time.monotonic() - began)


@dataclass
class Context:
    """A build, and where results of its programs go."""

    tests: Path  # folder of the GoogleTest programs
    programs: Path  # of bench_gpu
    logs: Path
    environment: dict[str, str]
    libraries: dict[str, str] = field(
        default_factory=dict
    )  # variables for C++ programs; Python uses the libraries that torch loads
    module: Path | None = None  # value of PYTHONPATH
    devices: Path | None = None  # library of the tests' devices, to rehearse without a GPU
    tally: Tally = field(default_factory=Tally)
    figures: dict[str, list[dict]] = field(default_factory=dict)  # by stage, lines of bench/report.py
    suites: list[tuple[Path, str]] | None = None  # programs and their suites, once they are listed

    def log(self, name: str, text: str) -> None:
        if len(text) > LOG_BEGINNING + LOG_END:
            text = (
                f"{text[:LOG_BEGINNING]}\n[... {len(text) - LOG_BEGINNING - LOG_END} characters ...]\n{text[-LOG_END:]}"
            )
        (self.logs / f"{name.replace('/', '.')}.log").write_text(text)

    def run_program(self, command: list[str], seconds: float) -> Ended:
        """Runs a C++ program."""
        return run(command, seconds, self.environment | self.libraries)

    def run_python(self, command: list[str], seconds: float) -> Ended:
        path = {} if self.module is None else {"PYTHONPATH": str(self.module)}
        return run(command, seconds, self.environment | path)
