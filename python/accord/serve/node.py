"""The ranks of a node other than node 0, which follow those of node 0: they are started again whenever they end, until
the server ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from accord.serve.job import Job
from accord.serve.logs import log
from accord.serve.metrics import Metrics
from accord.serve.options import ModelOptions
from accord.serve.supervisor import State, Supervisor

__all__ = ["Node"]

_END_SECONDS = 10.0  # for the ranks of other models, once those of one model have ended because the server ended


class _Followers(Supervisor):
    """The ranks of one model on this node."""

    async def _follow(self, job: Job) -> bool:
        follow = 0
        async for message in job.messages():
            if not self._handle_loading(message):
                self._failure = self._failure or message["failed"]
            elif "follows" in message:
                follow += 1
                if follow == self._options.ranks and self.state is not State.STOPPED:
                    self._set_ready()
                    log("ready", model=self._options.name, ranks=sorted(self._metrics.rank_processes))
        await job.wait()
        return follow == self._options.ranks

    def _is_end(self, code: int) -> bool:
        return code == 0  # the server has ended the ranks

    def _prepare_restart(self, code: int) -> None:
        log("ranks_ended", "error", model=self._options.name, reason=self._failure, exit_code=code)

    async def stop(self) -> None:
        self._note_stop()
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
