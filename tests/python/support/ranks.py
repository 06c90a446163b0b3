"""Runs functions on several ranks, each in its own process, for the tests.

A function is sent to the ranks as source text. It must therefore be defined at the top level of its module, have no
decorator, and import what it needs (accord, os, sys, time, numpy as np and open_descriptors are available). Every
rank calls it as function(comm, *arguments).
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

# The program of a rank. It reads jobs from its standard input and writes their outcomes to the descriptor given as
# its argument. `call` sets outcome["value"] to the result of names[job["function"]].
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

# The same with a torch.distributed process group: functions are called as function(group, *arguments) and can use
# torch and dist.
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

# The same with a torchcomms communicator: functions are called as function(comm, *arguments) and can use torch, dist
# and torchcomms.
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
    """Returns whether the installed torch is of that version, for example "2.11", without importing it."""
    try:
        return importlib.metadata.version("torch").startswith(version + ".")
    except importlib.metadata.PackageNotFoundError:
        return False


class RanksFailed(AssertionError):
    """A rank failed, ended or was too late. The message shows what every rank did and wrote."""


@dataclass
class Outcome:
    """What one rank did: the function's value, or its error as text. Both are None if the process ended first."""

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
    """`size` processes that run one function after another, each with a new communicator. Any failure ends the
    processes; the next run starts new ones."""

    def __init__(
        self,
        size: int,
        environment: dict[str, str] | None = None,
        environments: Sequence[dict[str, str]] = (),
        prefixes: Sequence[Sequence[str]] = (),
        program: str = RANK_PROGRAM,
    ) -> None:
        """environment: additional variables for all ranks. environments: additional variables for each rank.
        prefixes: a command prefix for each rank, which must exec the command. program: RANK_PROGRAM, TORCH_PROGRAM or
        TORCHCOMMS_PROGRAM."""
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
        """Returns the function's value on each rank, in rank order. Raises RanksFailed unless all ranks return a
        value within `deadline` seconds. per_rank: additional arguments for each rank. timeout: the communicator's
        timeout in seconds. backend: the backend of torch's process group."""
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
        """Returns the outcome of each rank, including failures. Raises RanksFailed only if a rank has not ended
        within `deadline` seconds. while_running: called once with the processes while they run."""
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
        for rank in self._ranks:  # lets all of them exit at the same time
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
