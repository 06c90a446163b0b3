"""The ranks of one peer: processes that sleep in a read while another peer is measured (protocol: worker.hpp)."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

Command = tuple[list[str], dict[str, str]]  # of one process: arguments, and additional environment variables

START_SECONDS = 300  # DeepSpeed compiles when it first starts


class Contender:
    """Processes of one peer, driven through a pair of pipes for each rank."""

    def __init__(self, commands: list[Command], ranks: int, directory: Path):
        self.path = directory / "rank"
        directory.mkdir()
        for rank in range(ranks):
            for end in ("in", "out"):
                os.mkfifo(f"{self.path}.{rank}.{end}")
        self.log = open(directory / "log", "w+")  # noqa: SIM115
        self.processes = [
            subprocess.Popen(
                [*command, str(self.path)], env={**os.environ, **environment}, stdout=self.log, stderr=self.log
            )
            for command, environment in commands
        ]
        self.pipes = ExitStack()
        self.inputs = [self.pipes.enter_context(self._open_input(r)) for r in range(ranks)]
        self.outputs = [self.pipes.enter_context(open(f"{self.path}.{r}.out")) for r in range(ranks)]  # noqa: SIM115

    def _why(self) -> str:
        self.log.seek(0)
        return self.log.read().strip()[-500:]

    def _open_input(self, rank: int) -> IO[str]:
        """Returns the pipe that the rank reads, once the rank has opened it. Raises an error if a process ended
        earlier.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                pipe = os.open(f"{self.path}.{rank}.in", os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                if any(process.poll() is not None for process in self.processes) or time.monotonic() > deadline:
                    self.kill()
                    raise RuntimeError(f"{self.path.parent.name}: did not start: {self._why()}") from None
                time.sleep(0.01)
            else:
                os.set_blocking(pipe, True)
                return os.fdopen(pipe, "w")

    def measure(self, collective: str, size: int, iterations: int, timeout: float = 120) -> float:
        """Returns the microseconds of one operation on the slowest rank. Raises RuntimeError if it fails or takes
        longer than `timeout` seconds.
        """
        label = f"{self.path.parent.name}: {collective} of {size} B"
        try:
            for pipe in self.inputs:
                print(collective, size, iterations, file=pipe, flush=True)
        except BrokenPipeError:
            raise RuntimeError(f"{label}: a rank ended: {self._why()}") from None
        deadline = time.monotonic() + timeout
        answers = []
        for pipe in self.outputs:
            if not select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError(f"{label}: no answer within {timeout} s")
            answers.append(pipe.readline().strip())
        for answer in answers:
            if not answer or answer.startswith("error"):
                raise RuntimeError(f"{label}: {answer or 'a rank ended: ' + self._why()}")
        return max(map(float, answers))

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def close(self) -> None:
        """Ends the processes: they exit when there is nothing more to read."""
        with suppress(BrokenPipeError):  # they have already ended
            self.pipes.close()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()


def memory_of(process: int, field: str) -> float:
    """Returns MiB of a process by a field of smaps_rollup: "Rss", or "Pss", which divides shared pages among
    processes.
    """
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environments(ranks: int) -> list[dict[str, str]]:
    """Returns the environment variables that a launcher sets, for each rank."""
    port = str(free_port())
    return [
        {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for rank in range(ranks)
    ]
