"""One start of the ranks of a node: the `accord run` that holds them, and the connection with them.

`accord run` dies with this process, and kills its ranks when it dies, so that none is left behind however the server
ends. It has a session of its own, because Ctrl-C in a terminal is for the server alone.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import accord
from accord.serve.frames import frame, read_frame
from accord.serve.logs import log
from accord.serve.options import ModelOptions
from accord.serve.worker import WorkerOptions

__all__ = ["Job"]

_GRACE_SECONDS = 0.5  # from SIGTERM to SIGKILL for a rank
_END_SECONDS = 5.0  # for ranks that were told to stop, and for a launcher after SIGTERM


class Job:
    """`lines`: the last lines that the ranks wrote, which are logged from the call of show_lines() on."""

    def __init__(
        self,
        model: str,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self._model = model
        self._process = process
        self._reader = reader
        self._writer = writer
        self.lines: collections.deque[str] = collections.deque(maxlen=20)
        self._shows_lines = False
        self._output = asyncio.create_task(self._log_output())

    @classmethod
    async def start(cls, options: ModelOptions) -> Job:
        ours, theirs = socket.socketpair()
        with theirs:
            rank_options = WorkerOptions(
                str(options.package), theirs.fileno(), options.shape, options.load, options.create
            )
            process = await asyncio.create_subprocess_exec(
                str(Path(accord.__file__).parent / "bin" / "accord"),
                *("run", "-n", str(options.ranks), "--end-with", str(os.getpid()), "--grace", str(_GRACE_SECONDS)),
                *options.launch,
                *("--bind", "core", "--no-python", sys.executable, "-m", "accord.serve.worker"),
                json.dumps(asdict(rank_options)),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(options.name, process, *await asyncio.open_unix_connection(sock=ours))

    def send(self, message: dict) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def messages(self) -> AsyncIterator[dict]:
        """Yields the messages of the ranks until the connection ends."""
        while (message := await read_frame(self._reader)) is not None:
            yield message

    async def wait(self) -> None:
        """Waits until the ranks have ended by themselves."""
        await self._process.wait()

    async def stop(self) -> None:
        """Lets the ranks stop, or kills them if they do not."""
        self.send({"stop": True})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        await self.kill()

    async def kill(self) -> int:
        """Ends all processes of the job; returns the exit code of `accord run` once it has ended."""
        self.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await self._output
        return self._process.returncode or 0

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        # Process.send_signal() would look for the exit code first, and then asyncio would not find it.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _log_output(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self.lines.append(text)
        if self._shows_lines:
            self._log(text)

    def show_lines(self) -> None:
        self._shows_lines = True
        for line in self.lines:
            self._log(line)

    def _log(self, line: str) -> None:
        log("ranks", "warning", model=self._model, line=line)
