"""Runs functions on several ranks, each a process of its own, for the tests.

A function is sent to the ranks as its source text, so it stands at the top level of its module, has no decorator and
imports what it needs (accord, os, sys, time, numpy as np and open_descriptors are there). It is called as
function(comm, *arguments) on every rank.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from descriptors import open_descriptors
from forked import ForkServer

# What a rank runs: it reads jobs from its standard input and writes their outcomes to the descriptor that is its argument. `call` sets
# outcome["value"] to what names[job["function"]] gives.
_OPEN_DESCRIPTORS = inspect.getsource(open_descriptors).replace("{", "{{").replace("}", "}}")
_LOOP = (
    _OPEN_DESCRIPTORS
    + """
import os, pickle, sys, time, traceback
import numpy as np
import accord
{imports}
jobs, outcomes = sys.stdin.buffer, os.fdopen(int(sys.argv[1]), "wb")
while True:
    try:
        job = pickle.load(jobs)
    except EOFError:
        break
    names = {{"accord": accord, "np": np, "os": os, "sys": sys, "time": time, "__name__": "rank"{names}}}
    names["open_descriptors"] = open_descriptors
    exec(compile(job["source"], job["function"], "exec"), names)
    outcome = {{}}
    try:
{call}
    except BaseException:
        outcome["error"] = traceback.format_exc()
    data = pickle.dumps(outcome)
    outcomes.write(len(data).to_bytes(8, "little") + data)
    outcomes.flush()
"""
)

RANK_PROGRAM = _LOOP.format(
    imports="",
    names="",
    call="""
        comm = accord.Communicator.create(
            accord.FileStore(job["store"]), job["rank"], job["size"], name="world", timeout=job["timeout"])
        try:
            outcome["value"] = names[job["function"]](comm, *job["arguments"])
        finally:
            comm.close()
        assert "torch" not in sys.modules or job["torch"], "torch was imported"
""",
)

# The same with a process group of torch.distributed's: functions are called as function(group, *arguments), and have torch and dist.
TORCH_PROGRAM = _LOOP.format(
    imports="import datetime, torch\nimport torch.distributed as dist\ntorch.set_num_threads(1)",
    names=', "torch": torch, "dist": dist',
    call="""
        dist.init_process_group(
            job["backend"], store=dist.FileStore(job["store"], job["size"]), rank=job["rank"], world_size=job["size"],
            timeout=datetime.timedelta(seconds=job["timeout"]))
        try:
            outcome["value"] = names[job["function"]](dist.group.WORLD, *job["arguments"])
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
""",
)

# The same with a communicator of torchcomms': functions are called as function(comm, *arguments), and have torch, dist and
# torchcomms.
TORCHCOMMS_PROGRAM = _LOOP.format(
    imports="import datetime, torch, torchcomms\nimport torch.distributed as dist\ntorch.set_num_threads(1)",
    names=', "datetime": datetime, "torch": torch, "dist": dist, "torchcomms": torchcomms',
    call="""
        os.environ.update(TORCHCOMM_RANK=str(job["rank"]), TORCHCOMM_SIZE=str(job["size"]))
        comm = torchcomms.new_comm(
            job["backend"], torch.device("cpu"), "world", store=dist.FileStore(job["store"], job["size"]),
            timeout=datetime.timedelta(seconds=job["timeout"]))
        try:
            outcome["value"] = names[job["function"]](comm, *job["arguments"])
        finally:
            try:
                comm.finalize()
            except RuntimeError as error:
                assert "already finalized" in str(error), error
""",
)


def torch_is(version: str) -> bool:
    """Whether the torch that is installed is a "2.11", say; read without importing it."""
    try:
        return importlib.metadata.version("torch").startswith(version + ".")
    except importlib.metadata.PackageNotFoundError:
        return False


class RanksFailed(AssertionError):
    """Some rank did not do what it should; says what every rank did and wrote."""


@dataclass
class Outcome:
    """What one rank did: the function's value, or its error as text; neither if the process ended before."""

    value: Any = None
    error: str | None = None
    exit_code: int | None = None


@functools.cache
def _fork_server(program: str, number: int) -> ForkServer:
    return ForkServer(program.partition("jobs, outcomes")[0], program)


class _Rank:
    def __init__(
        self, rank: int, environment: dict[str, str], folder: Path, prefix: Sequence[str] = (), program: str = ""
    ) -> None:
        self.output = (folder / f"rank{rank}.txt").open("w+b")
        ours, theirs = os.pipe()
        environment = {**os.environ, **environment}
        server = _fork_server(program, rank % 2)
        if not prefix and server.can_start(environment):
            self.process = server.start(environment, self.output.fileno(), theirs)
        else:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-c", program, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=self.output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
                env=environment,
            )
        os.close(theirs)
        os.set_blocking(ours, False)
        self.outcomes = ours
        self.bytes = b""

    def send(self, job: dict) -> None:
        self.process.stdin.write(pickle.dumps(job))
        self.process.stdin.flush()

    def text(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def end(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.outcomes)
        self.output.close()


class Ranks:
    """`size` processes that run one function after the other, each time with a new communicator. Any failure ends them;
    the next run starts new ones."""

    def __init__(
        self,
        size: int,
        environment: dict[str, str] | None = None,
        environments: Sequence[dict[str, str]] = (),
        prefixes: Sequence[Sequence[str]] = (),
        program: str = RANK_PROGRAM,
    ) -> None:
        """environments: more of it for each rank. prefixes: what stands before each rank's command, which execs it.
        program: RANK_PROGRAM or TORCH_PROGRAM."""
        self.size = size
        self.environment = environment or {}
        self.environments = environments or [{}] * size
        self.prefixes = prefixes or [()] * size
        self._folder = tempfile.TemporaryDirectory(prefix="accord-ranks-")
        self._program = program
        self._ranks: list[_Rank] = []
        self._jobs = 0

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        per_rank: Sequence[tuple] | None = None,
        deadline: float = 60,
        timeout: float = 30,
        torch: bool = False,
        backend: str = "accord",
    ) -> list[Any]:
        """What `function` gives on each rank, in rank order; RanksFailed unless all of them give something within
        `deadline` seconds. per_rank: further arguments of each rank. timeout: the communicator's. backend: torch's, of the group."""
        outcomes = self.outcomes(
            function, *arguments, per_rank=per_rank, deadline=deadline, timeout=timeout, torch=torch, backend=backend
        )
        if any(outcome.error or outcome.exit_code is not None for outcome in outcomes):
            report = self._report(function, outcomes)
            self.end()
            raise RanksFailed(report)
        return [outcome.value for outcome in outcomes]

    def outcomes(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        per_rank: Sequence[tuple] | None = None,
        deadline: float = 60,
        timeout: float = 30,
        torch: bool = False,
        backend: str = "accord",
        while_running: Callable[[list[subprocess.Popen]], None] | None = None,
    ) -> list[Outcome]:
        """What each rank did, also if it ended badly; RanksFailed only if one has not ended within `deadline`.
        while_running: called once with the processes while they run."""
        if not self._ranks or any(rank.process.poll() is not None for rank in self._ranks):
            self.end()
            folder = Path(self._folder.name)
            self._ranks = [
                _Rank(rank, {**self.environment, **self.environments[rank]}, folder, self.prefixes[rank], self._program)
                for rank in range(self.size)
            ]
        self._jobs += 1
        for rank, process in enumerate(self._ranks):
            process.send(
                {
                    "source": textwrap.dedent(inspect.getsource(function)),
                    "function": function.__name__,
                    "arguments": (*arguments, *(per_rank[rank] if per_rank else ())),
                    "store": os.path.join(self._folder.name, f"store{self._jobs}"),
                    "rank": rank,
                    "size": self.size,
                    "timeout": timeout,
                    "torch": torch,
                    "backend": backend,
                }
            )
        if while_running:
            while_running([rank.process for rank in self._ranks])
        outcomes, late = self._gather(time.monotonic() + deadline)
        if late:
            for rank in self._ranks:
                rank.process.send_signal(signal.SIGKILL)
            report = f"ranks {late} had not ended after {deadline} s\n" + self._report(function, outcomes)
            self.end()
            raise RanksFailed(report)
        return outcomes

    def end(self) -> None:
        for rank in self._ranks:  # all end beside each other
            rank.process.stdin.close()
        for rank in self._ranks:
            rank.end()
        self._ranks = []

    def _gather(self, deadline: float) -> tuple[list[Outcome], list[int]]:
        outcomes = [Outcome() for _ in self._ranks]
        with selectors.DefaultSelector() as selector:
            for number, rank in enumerate(self._ranks):
                rank.bytes = b""
                selector.register(rank.outcomes, selectors.EVENT_READ, number)
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(timeout=0.2):
                    rank, outcome = self._ranks[key.data], outcomes[key.data]
                    piece = os.read(rank.outcomes, 1 << 20)
                    rank.bytes += piece
                    if not piece:
                        outcome.exit_code = rank.process.wait()
                        selector.unregister(rank.outcomes)
                    elif len(rank.bytes) >= 8 and len(rank.bytes) - 8 == int.from_bytes(rank.bytes[:8], "little"):
                        found = pickle.loads(rank.bytes[8:])
                        outcome.value, outcome.error = found.get("value"), found.get("error")
                        selector.unregister(rank.outcomes)
            return outcomes, [key.data for key in selector.get_map().values()]

    def _report(self, function: Callable[..., Any], outcomes: list[Outcome]) -> str:
        lines = [f"{function.__name__} on {self.size} ranks:"]
        for number, (rank, outcome) in enumerate(zip(self._ranks, outcomes, strict=True)):
            ended = f"ended with exit code {outcome.exit_code}" if outcome.exit_code is not None else "ok"
            lines += [f"--- rank {number}: {'raised' if outcome.error else ended}", outcome.error or "", rank.text()]
        return "\n".join(lines)
