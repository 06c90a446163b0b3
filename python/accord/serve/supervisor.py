"""Starts the ranks of a model on this node, and starts them again whenever they end."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import enum
from pathlib import Path

from accord.serve.job import Job
from accord.serve.metrics import ModelMetrics
from accord.serve.options import ModelOptions

__all__ = ["StartError", "State", "Supervisor"]

_FIRST_DELAY = 0.5  # seconds before another start if the last one failed; doubles
_LONGEST_DELAY = 30.0


class State(enum.Enum):
    STARTING = "starting"  # loading the model for the first time
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class StartError(Exception):
    """A package cannot be served, or its ranks could not be started at all."""

    def __init__(self, package: Path, reason: str):
        super().__init__(reason if str(package) in reason else f"{package}: {reason}")


class Supervisor(abc.ABC):
    """Ends with stop(), and at the latest with this process."""

    def __init__(self, options: ModelOptions, metrics: ModelMetrics):
        self.state = State.STARTING
        self._options = options
        self._metrics = metrics
        self._job: Job | None = None
        self._stopping = asyncio.Event()
        self._failure = ""  # the reason for which the current start ends, if the ranks gave one
        self._loading: dict[int, float] = {}  # when a rank of this node that loads the model last said so

    async def run(self) -> None:
        """Runs the ranks until stop() is called, or they end for the last time. Raises StartError if their first start
        fails."""
        delay = 0.0
        while self.state is not State.STOPPED:
            self._failure = ""
            job = self._job = await Job.start(self._options)
            if self._stopping.is_set():  # by stop(), which did not know this job
                await job.kill()
                return
            if self.state is State.RESTARTING:
                job.show_lines()
            became_ready = False
            self._loading.clear()
            watchdog = asyncio.create_task(self._watch(job))
            try:
                became_ready = await self._follow(job)
            finally:
                watchdog.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watchdog
                code, self._job = await job.kill(), None
            self._metrics.ready.set(0)
            if self.state is State.STOPPED or self._is_end(code):
                self.state = State.STOPPED
                return
            if self.state is State.STARTING:
                reason = self._failure or "; ".join([f"the ranks ended with exit code {code}", *job.lines])
                raise StartError(self._options.package, reason)
            self.state = State.RESTARTING
            self._metrics.restarts.inc()
            self._metrics.rank_processes.clear()
            self._prepare_restart(code)
            delay = 0.0 if became_ready else min(max(_FIRST_DELAY, 2 * delay), _LONGEST_DELAY)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _watch(self, job: Job) -> None:
        """Ends the job once its ranks stand still."""
        while (reason := self._stall()) is None:
            await asyncio.sleep(min(1.0, self._options.stall_seconds / 4))
        self._failure = reason
        job.terminate()

    def _stall(self) -> str | None:
        """Returns the reason for which the ranks are taken to stand still."""
        now, limit = asyncio.get_running_loop().time(), self._options.stall_seconds
        silent = [str(rank) for rank, heard in sorted(self._loading.items()) if now - heard > limit]
        return f"silent for {limit:g} s while loading: rank {', '.join(silent)}" if silent else None

    def _handle_loading(self, message: dict) -> bool:
        """Handles the messages of ranks that load the model; returns False for any other."""
        if "process" in message:
            self._metrics.rank_processes[message["rank"]] = message["process"]
            self._loading[message["rank"]] = asyncio.get_running_loop().time()
        elif "loads" in message:
            self._loading[message["loads"]] = asyncio.get_running_loop().time()
        elif "follows" in message:
            self._loading.pop(message["follows"], None)
        else:
            return False
        return True

    def _set_ready(self) -> None:
        self._loading.clear()

        if self.state is State.STARTING and self._job is not None:
            self._job.show_lines()
        self.state = State.READY
        self._metrics.ready.set(1)

    def _note_stop(self) -> None:
        """Lets run() return once the job has ended."""
        self.state = State.STOPPED
        self._stopping.set()

    @abc.abstractmethod
    async def _follow(self, job: Job) -> bool:
        """Handles the messages of one start of the ranks until it ends; returns whether they became ready."""

    def _is_end(self, code: int) -> bool:
        """Returns whether a start that ended with this exit code was the last one, without stop()."""
        return False

    @abc.abstractmethod
    def _prepare_restart(self, code: int) -> None:
        """Called before the ranks are started again; logs the end of the last start."""
