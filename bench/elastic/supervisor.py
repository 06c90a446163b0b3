"""What a launcher does for a job whose ranks may die: it starts ranks, sees deaths, announces the members of the next
generation, and here it also kills.

One process per backend has imported torch and forks ranks, so a new rank exists within milliseconds. A spare rank is
always ready before the next kill. The driver sees a death by the process's descriptor, at once.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch.distributed as dist

from bench.elastic.training import TOLERANCE, Reference

RANKS = 4
SHOWN_RETRIES = 10
LATEST_KILL = 0.2  # seconds after a step of the four ranks: some steps


class Hang(Exception):
    """The ranks have not done within the limit what they should."""


@dataclasses.dataclass
class Outcome:
    """What happened to a backend's ranks."""

    seconds: list[float] = dataclasses.field(default_factory=list)  # from each kill to the survivors' next step
    kills: int = 0
    hangs: int = 0
    wrong: int = 0  # kills after which a loss differed, until the next kill
    retries: int = 0  # generations that ended without a kill
    steps: int = 0
    largest_difference: float = 0.0  # of a loss, relative
    step_seconds: list[float] = dataclasses.field(default_factory=list)  # of undisturbed steps of all ranks

    def percentile(self, share: float) -> float:
        """Returns the smallest time that this share of the times does not exceed."""
        times = sorted(self.seconds)
        return times[max(1, math.ceil(share * len(times))) - 1] if times else float("nan")

    def summary(self) -> str:
        median = statistics.median(self.seconds) if self.seconds else float("nan")
        return (
            f"{self.kills} kills, {self.hangs} hangs, {self.wrong} wrong losses, {self.steps} steps; seconds to the next "
            f"step: median {median:.3f}, 99th percentile {self.percentile(0.99):.3f}, slowest {self.percentile(1):.3f}"
        )


class Ranks:
    """The processes of one backend. They end with close(), and with this process."""

    def __init__(self, backend: str, store: dist.TCPStore, python: str, log: Path) -> None:
        self.backend = backend
        self._reports, theirs = os.pipe()
        self.log = open(log, "wb")  # noqa: SIM115
        command = [python, "-m", "bench.elastic.rank", backend, str(store.port), str(theirs)]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, pass_fds=[theirs], text=True
        )
        os.close(theirs)
        self._partial = b""
        self._descriptors: dict[str, int] = {}  # of processes, by name

    def start(self, block: int, name: str) -> None:
        requests, answers = self._pipes()
        print(block, name, file=requests, flush=True)
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"{self.backend}: ranks cannot be started: {Path(self.log.name).read_text()[-500:]}")
        self._descriptors[name] = os.pidfd_open(int(answer))

    def signal(self, name: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptors[name], number)

    def wait_for_end(self, name: str) -> None:
        """Waits for a process that was killed, or that ends by itself."""
        if not select.select([self._descriptors[name]], [], [], 60)[0]:
            raise Hang(f"rank {name} does not end")
        os.close(self._descriptors.pop(name))

    def kill_all(self) -> None:
        for name in list(self._descriptors):
            self.signal(name, signal.SIGKILL)
            self.wait_for_end(name)

    def reports(self, seconds: float) -> list[dict]:
        """Returns the reports that have arrived, after a wait for the first one."""
        if not select.select([self._reports], [], [], max(0.0, seconds))[0]:
            return []
        *lines, self._partial = (self._partial + os.read(self._reports, 1 << 16)).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.kill_all()
        requests, answers = self._pipes()
        requests.close()
        self._server.wait(timeout=60)
        answers.close()
        self.log.close()
        os.close(self._reports)

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._server.stdin and self._server.stdout
        return self._server.stdin, self._server.stdout


@dataclasses.dataclass
class Setup:
    """What all blocks share."""

    store: dist.TCPStore
    choices: random.Random  # of ranks and moments
    limit: float  # seconds after which a hang is counted
    reference: Reference = dataclasses.field(default_factory=Reference)


class Block:
    """One training from its first step, with some kills."""

    def __init__(self, number: int, setup: Setup, ranks: Ranks, outcome: Outcome) -> None:
        self._number, self._setup, self._ranks, self._outcome = number, setup, ranks, outcome
        self._store = dist.PrefixStore(f"block {number}", setup.store)
        self._generation = 0
        self._members: list[str] = []
        self._ready: set[str] = set()
        self._stepped: dict[str, float] = {}  # when each rank finished its first step of this generation
        self._latest: dict[str, float] = {}  # and its latest one
        self._losses: list[tuple[int, int, float]] = []  # kills so far, step, loss
        self._started = 0
        self._failure = ""  # of this generation

    def run(self, kills: int) -> None:
        """Raises Hang if the ranks do not go on; all of them have ended then, too."""
        try:
            members = [self._start() for _ in range(RANKS)]
            spare = self._start()
            for _ in range(kills):
                self._form(members)
                self._wait(lambda spare=spare: spare in self._ready)
                victim = self._setup.choices.choice(members)
                self._watch(self._setup.choices.uniform(0, LATEST_KILL))
                members.remove(victim)
                self._outcome.seconds.append(self._kill(victim, members))
                members.append(spare)
                spare = self._start()
            self._form(members)
            self._announce([])
            for name in members:
                self._ranks.wait_for_end(name)
        except Hang as hang:
            self._outcome.hangs += 1
            print(f"{self._ranks.backend}: hang in block {self._number}: {hang}", file=sys.stderr, flush=True)
            for name in self._members:
                self._ranks.signal(name, signal.SIGUSR1)
            self._watch(1)
            raise
        finally:
            self._ranks.kill_all()
            self._watch(0)
            self._check_losses()

    def _start(self) -> str:
        name = f"{self._started}"
        self._started += 1
        self._ranks.start(self._number, name)
        return name

    def _form(self, members: list[str]) -> None:
        """Announces a generation and waits until each member has finished a step in it."""
        self._announce(members)
        self._wait(lambda: self._stepped.keys() >= set(members))

    def _kill(self, victim: str, survivors: list[str]) -> float:
        """Returns the seconds until the last survivor has finished its next step."""
        began = time.monotonic()
        self._ranks.signal(victim, signal.SIGKILL)
        self._ranks.wait_for_end(victim)
        self._outcome.kills += 1
        self._form(survivors)
        return max(self._stepped.values()) - began

    def _announce(self, members: list[str]) -> None:
        self._generation += 1
        self._stepped.clear()
        self._latest.clear()
        self._failure = ""
        for name in set(members) - set(self._members):
            self._store.set(f"{name} begins", str(self._generation))
        self._members = list(members)
        self._store.set(f"{self._generation} members", json.dumps(members))

    def _wait(self, has_happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._setup.limit
        while not has_happened():
            if time.monotonic() > deadline:
                raise Hang(f"generation {self._generation} of {self._members}, of which {[*self._stepped]} made a step")
            self._read(deadline - time.monotonic())
            if self._failure:
                self._outcome.retries += 1
                if self._outcome.retries <= SHOWN_RETRIES:
                    print(f"{self._ranks.backend}: formed once more after {self._failure}", file=sys.stderr, flush=True)
                self._announce(self._members)

    def _watch(self, seconds: float) -> None:
        """Reads reports for some time."""
        deadline = time.monotonic() + seconds
        self._read(0)
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def _read(self, seconds: float) -> None:
        for report in self._ranks.reports(seconds):
            if report["block"] != self._number:
                continue
            if report["event"] == "ready":
                self._ready.add(report["name"])
            elif report["event"] == "step":
                self._losses.append((self._outcome.kills, report["step"], report["loss"]))
                if report["generation"] == self._generation:
                    self._note_step(report["name"], report["time"])
            elif report["event"] == "failed" and report["generation"] == self._generation:  # without a kill
                self._failure = self._failure or report["text"]

    def _note_step(self, name: str, time: float) -> None:
        self._stepped.setdefault(name, time)
        before = self._latest.get(name)
        self._latest[name] = time
        if before and len(self._members) == RANKS:
            self._outcome.step_seconds.append(time - before)

    def _check_losses(self) -> None:
        wrong = set()
        for kills, step, loss in self._losses:
            difference = self._setup.reference.difference(step, loss)
            self._outcome.largest_difference = max(self._outcome.largest_difference, difference)
            if not difference <= TOLERANCE:
                wrong.add(kills)
        self._outcome.wrong += len(wrong)
        self._outcome.steps += max((step + 1 for _, step, _ in self._losses), default=0)
