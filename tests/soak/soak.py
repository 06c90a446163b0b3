"""The soak test: random collectives on random groups of random groups, with kills, stops, ends, disagreements and shrinks.

    scripts/soak --seconds 600 --seed 1

It plays episodes (see rank.py) on rank processes, of which one lives from beginning to end and the others are killed now and then and
started anew. Every result is compared with NumPy's by the rank that got it; here it is checked that no episode takes too
long, that ranks which go on agree on who they are, that errors are of the right kind, and that no process holds more memory,
descriptors, threads or shared segments than before. Everything but the moment of a signal follows from the seed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 5
LONGEST = 100  # seconds of an episode; it takes one
MEMORY_SLACK = 8 << 20
FAULTS = {"none": 6, "pause": 2, "kill": 8, "kill two": 2, "exit": 4, "raise": 4, "stop": 1, "mismatch": 2}
# What the ranks that are not at fault may see. Whoever meets an error aborts its groups, so all may see that.
ERRORS = {
    "none": set(),
    "pause": set(),
    "kill": {"PeerLost", "Aborted"},
    "kill two": {"PeerLost", "Aborted"},
    "exit": {"PeerLost", "Aborted"},
    "raise": {"OnPurpose", "Aborted", "PeerLost"},
    "stop": {"Timeout", "Aborted", "PeerLost"},
    "mismatch": {"Mismatch", "Timeout", "Aborted", "PeerLost"},
}


class SoakFailed(Exception):
    """Something that must not be."""


class Process:
    """One rank process; `log` is what it wrote."""

    def __init__(self, folder: Path, number: int) -> None:
        self.log = folder / f"process{number}.txt"
        ours, theirs = os.pipe()
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "rank.py"), str(theirs)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
            )
        os.close(theirs)
        self.reader = os.fdopen(ours, "rb", buffering=0)
        self.text = b""
        self.is_new = True
        self.memory: list[int] = []

    def give(self, episode: dict) -> None:
        self.child.stdin.write(json.dumps(episode).encode() + b"\n")

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self.child.stdin.close()
        self.reader.close()


class Soak:
    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.started = 0
        self.processes = [self.start() for _ in range(RANKS)]
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest = 0.0

    def start(self) -> Process:
        self.started += 1
        return Process(self.folder, self.started)

    def episode(self, number: int) -> None:
        choice = random.Random(f"{self.seed}/{number}")
        fault = choice.choices(list(FAULTS), list(FAULTS.values()))[0]
        size = choice.randrange(3 if fault == "kill two" else 1 if fault == "none" else 2, RANKS + 1)
        # The first process is in all of them and never at fault, so that its memory shows what leaks.
        chosen = [self.processes[0], *choice.sample(self.processes[1:], size - 1)]
        strikes = [] if fault == "none" else chosen[1 : 3 if fault == "kill two" else 2]
        choice.shuffle(chosen)
        victims = [chosen.index(process) for process in strikes]
        steps = choice.choice([20, 60, 150])
        at = choice.randrange(steps)
        store = self.folder / f"store{number}"
        began = time.monotonic()
        self.what = f"episode {number}: {size} ranks, {steps} steps, fault {fault!r} of ranks {victims}"
        deadline = began + LONGEST
        # The timeouts of an episode are too short for the start of an interpreter on a busy machine.
        self.gather([process for process in chosen if process.is_new], "ready", deadline)
        for rank, process in enumerate(chosen):
            process.is_new = False
            process.give(
                {
                    "store": str(store),
                    "rank": rank,
                    "size": size,
                    "seed": f"{self.seed}/{number}",
                    "steps": steps,
                    "fault": fault,
                    "victims": victims,
                    "at": at,
                    "timeout": 4 if fault in ("stop", "mismatch") else 60,
                }
            )
        self.gather(chosen, "began", deadline)
        moment = choice.random() * 0.8
        if fault in ("kill", "kill two", "stop", "pause"):
            time.sleep(moment)
            sign = signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP
            for process in strikes:
                process.child.send_signal(sign)
        if fault == "pause":
            time.sleep(0.1)
            strikes[0].child.send_signal(signal.SIGCONT)
        results: list[dict | None] = [None] * size
        others = [rank for rank in range(size) if not (fault == "stop" and rank in victims)]
        for waited in (others, [rank for rank in range(size) if rank not in others]):
            told = self.gather([chosen[rank] for rank in waited], "resources", deadline)
            for rank, result in zip(waited, told, strict=True):
                results[rank] = result
            if fault == "stop" and waited is others:
                strikes[0].child.send_signal(signal.SIGCONT)
        took = time.monotonic() - began
        self.longest = max(self.longest, took)
        self.judge(fault, victims, results)
        for rank, process in enumerate(chosen):
            self.weigh(process, results[rank])
            if results[rank] is None or (fault.startswith("kill") and process in strikes):
                process.end()
                self.processes[self.processes.index(process)] = self.start()
                self.counts["processes that ended and were started anew"] += 1
        self.counts[f"episodes with fault {fault!r}"] += 1
        self.counts["calls"] += sum(result.get("calls", 0) for result in results if result)
        self.counts["groups that were shrunk"] += sum(bool(r and r.get("errors")) for r in results)
        shutil.rmtree(store)

    def gather(self, processes: list[Process], key: str, deadline: float) -> list[dict | None]:
        """The last thing that each told, which has `key`; None of one that has ended."""
        told: dict[int, dict | None] = {}
        with selectors.DefaultSelector() as selector:
            for index, process in enumerate(processes):
                selector.register(process.reader, selectors.EVENT_READ, index)
            while True:
                for index, process in enumerate(processes):
                    line, newline, rest = process.text.partition(b"\n")
                    if index not in told and newline:
                        message = json.loads(line)
                        if "resources" in message and key == "began":  # it failed before it began; told again later
                            told[index] = message
                            continue
                        process.text = rest
                        if key in message:
                            told[index] = message
                if len(told) == len(processes):
                    return [told[index] for index in range(len(processes))]
                if time.monotonic() > deadline:
                    self.hangs([p for index, p in enumerate(processes) if index not in told])
                for ready, _ in selector.select(timeout=0.5):
                    process = processes[ready.data]
                    piece = os.read(process.reader.fileno(), 1 << 16)
                    process.text += piece
                    if not piece:
                        process.child.wait()
                        told.setdefault(ready.data, None)
                        selector.unregister(process.reader)

    def hangs(self, processes: list[Process]) -> None:
        for process in processes:
            process.child.send_signal(signal.SIGUSR1)  # faulthandler writes all stacks
        time.sleep(1)
        raise SoakFailed(f"no end after {LONGEST} s: {[process.log.name for process in processes]}")

    @staticmethod
    def judge(fault: str, victims: list[int], results: list[dict | None]) -> None:
        for rank, result in enumerate(results):
            at_fault = rank in victims
            if result is None:
                if not at_fault or fault not in ("kill", "kill two", "exit"):
                    raise SoakFailed(f"rank {rank} ended")
                continue
            if "error" in result:  # one that stood still finds that the others have gone on
                if not (at_fault and fault == "stop"):
                    raise SoakFailed(f"rank {rank}: {result['error']}")
                continue
            wrong = [error for error in result["errors"] if error[0] not in ERRORS[fault]]
            if wrong:
                raise SoakFailed(f"rank {rank} met {wrong}")
            if rank not in result["members"]:
                raise SoakFailed(f"rank {rank} is not in the group that it ended with: {result}")
            for other in result["members"]:
                theirs = results[other]
                if theirs is None or theirs.get("members") == result["members"]:
                    continue
                # Of a kill in the very last call some may learn when others have ended it well, and have gone.
                ended_before = "members" in theirs and len(result["errors"]) < len(theirs["errors"])
                if not (fault.startswith("kill") and ended_before and rank not in theirs["members"]):
                    raise SoakFailed(f"ranks {rank} and {other} went on in different groups: {result}, {theirs}")
            if fault in ("none", "pause") and len(result["members"]) != len(results):
                raise SoakFailed(f"rank {rank} lost ranks: {result}")

    def weigh(self, process: Process, result: dict | None) -> None:
        if result is None:
            return
        process.memory.append(result["memory"])
        if result["resources"] != result["least"]:
            raise SoakFailed(
                f"{process.log.name} held {result['least']} after an episode, and {result['resources']} now"
            )

    def check_memory(self) -> str:
        """Of the process that lived from beginning to end: the least of the second quarter against that of the last."""
        memory = self.processes[0].memory
        quarter = max(1, len(memory) // 4)
        early, late = min(memory[quarter : 2 * quarter] or memory), min(memory[-quarter:])
        text = f"memory of the first process {early / 1e6:.1f} MB early, {late / 1e6:.1f} MB late"
        if late > early + MEMORY_SLACK:
            raise SoakFailed(text)
        return text

    def logs(self) -> str:
        texts = {path.name: path.read_text()[-4000:] for path in sorted(self.folder.glob("*.txt"))}
        return "\n".join(f"--- {name}\n{text}" for name, text in texts.items() if text)

    def end(self) -> None:
        for process in self.processes:
            process.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="random calls, groups and faults, for a while")
    parser.add_argument("--seconds", type=float, default=60, help="how long")
    parser.add_argument("--seed", type=int, default=None, help="what follows from it is the same every time")
    parser.add_argument("--episode", type=int, default=None, help="only this one, again and again")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    print(f"soak: {given.seconds:g} s, --seed {seed}", flush=True)
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="accord-soak-") as folder:
        soak = Soak(seed, Path(folder))
        began = shown = time.monotonic()
        episodes = 0
        try:
            while time.monotonic() - began < given.seconds:
                soak.episode(episodes if given.episode is None else given.episode)
                episodes += 1
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    print(f"soak: {shown - began:.0f} s, {episodes} episodes, {soak.counts['calls']} calls", flush=True)
            memory = soak.check_memory()
            left = {name for name in set(os.listdir("/dev/shm")) - before if "accord" in name}
            if left:
                raise SoakFailed(f"left in /dev/shm: {left}")
        except SoakFailed as failure:
            print(f"{soak.logs()}\nsoak: FAILED with --seed {seed}, {soak.what}: {failure}", flush=True)
            return 1
        finally:
            soak.end()
        for name, count in sorted(soak.counts.items()):
            print(f"soak: {count} {name}")
        print(f"soak: longest episode {soak.longest:.1f} s; {memory}; descriptors, threads and segments exact")
        print(f"soak: ok, {episodes} episodes, --seed {seed}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
