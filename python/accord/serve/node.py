"""The ranks of a node other than node 0, which follow those of node 0: they are started again whenever they end, until the
server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from accord.serve.job import Job, StartError, State, longer_delay
from accord.serve.logs import log
from accord.serve.metrics import Metrics, ModelMetrics
from accord.serve.options import ModelOptions

__all__ = ["Node"]

_END_SECONDS = 10.0  # for the ranks of other models, once those of one model have ended because the server ended


class _Followers:
    """The ranks of one model on this node."""

    def __init__(self, options: ModelOptions, metrics: ModelMetrics):
        self.state = State.STARTING
        self._options = options
        self._metrics = metrics
        self._job: Job | None = None
        self._stopping = asyncio.Event()
        self._failure = ""

    async def run(self) -> None:
        """Runs the ranks until they end in order or stop() is called. Raises StartError if their first start fails."""
        delay = 0.0
        while self.state is not State.STOPPED:
            self._failure = ""
            job = self._job = await Job.start(self._options)
            if self._stopping.is_set():  # by stop(), which did not know this job
                await job.kill()
                return
            if self.state is State.RESTARTING:
                job.show_lines()
            became_ready = await self._follow(job)
            code, self._job = await job.kill(), None
            self._metrics.ready.set(0)
            if self.state is State.STOPPED:
                return
            if code == 0:
                self.state = State.STOPPED
                return
            if self.state is State.STARTING:
                raise StartError(self._options.package, self._failure or job.why_ended(code))
            self.state = State.RESTARTING
            log("ranks_ended", "error", model=self._options.name, reason=self._failure, exit_code=code)
            self._metrics.restarts.inc()
            self._metrics.rank_processes.clear()
            delay = 0.0 if became_ready else longer_delay(delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _follow(self, job: Job) -> bool:
        """Waits for the end of a start; returns whether all ranks of this node had loaded the model."""
        follow = 0
        async for message in job.messages():
            if "process" in message:
                self._metrics.rank_processes[message["rank"]] = message["process"]
            elif "follows" in message:
                follow += 1
                if follow == self._options.ranks and self.state is not State.STOPPED:
                    self._become_ready(job)
            else:
                self._failure = self._failure or message["failed"]
        await job.wait()
        return follow == self._options.ranks

    def _become_ready(self, job: Job) -> None:
        if self.state is State.STARTING:
            job.show_lines()
        self.state = State.READY
        self._metrics.ready.set(1)
        log("ready", model=self._options.name, ranks=sorted(self._metrics.rank_processes))

    async def stop(self) -> None:
        self.state = State.STOPPED
        self._stopping.set()
        if self._job is not None:
            await self._job.kill()


class Node:
    """The ranks of all models on this node; takes the place of Models in the server."""

    def __init__(self, options: Sequence[ModelOptions], metrics: Metrics):
        self._followers = {one.name: _Followers(one, metrics.of_model(one.name)) for one in options}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._followers)

    def states(self) -> dict[str, str]:
        """Returns the state of each model's ranks by its name."""
        return {name: followers.state.value for name, followers in self._followers.items()}

    async def run(self) -> None:
        """Runs the ranks of all models until the server ends them or stop() is called. If the first start of one of
        them fails, stops all of them and raises StartError."""
        runs = [asyncio.create_task(followers.run()) for followers in self._followers.values()]
        await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        if not any(run.exception() for run in runs if run.done()):
            await asyncio.wait(runs, timeout=_END_SECONDS)
        await self.stop()
        await asyncio.gather(*runs)

    def drain(self) -> None:
        """Does nothing: requests are those of node 0."""

    async def stop(self) -> None:
        """Ends all ranks of this node. May be called again."""
        await asyncio.gather(*(followers.stop() for followers in self._followers.values()))
