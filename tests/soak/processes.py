"""The rank processes of a soak test, as its driver sees them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

LONGEST = 100  # seconds; an episode takes one
MEMORY_SLACK = 8 << 20


class SoakFailed(Exception):
    """The soak test has found an error."""


class Process:
    """A rank process that runs `script`. `log` contains its output."""

    def __init__(self, folder: Path, number: int, script: str) -> None:
        self.log = folder / f"process{number}.txt"
        ours, theirs = os.pipe()
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / script), str(theirs)],
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

    def send_episode(self, episode: dict) -> None:
        self.child.stdin.write(json.dumps(episode).encode() + b"\n")

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self.child.stdin.close()
        self.reader.close()


def gather(processes: list[Process], key: str, deadline: float) -> list[dict | None]:
    """Returns each process's last message that has `key`, or None for a process that has ended."""
    messages: dict[int, dict | None] = {}
    with selectors.DefaultSelector() as selector:
        for index, process in enumerate(processes):
            selector.register(process.reader, selectors.EVENT_READ, index)
        while True:
            for index, process in enumerate(processes):
                line, newline, rest = process.text.partition(b"\n")
                if index not in messages and newline:
                    message = json.loads(line)
                    # The process failed before it began. The message is read again later.
                    if "resources" in message and key == "began":
                        messages[index] = message
                        continue
                    process.text = rest
                    if key in message:
                        messages[index] = message
            if len(messages) == len(processes):
                return [messages[index] for index in range(len(processes))]
            if time.monotonic() > deadline:
                hangs([p for index, p in enumerate(processes) if index not in messages])
            for ready, _ in selector.select(timeout=0.5):
                process = processes[ready.data]
                piece = os.read(process.reader.fileno(), 1 << 16)
                process.text += piece
                if not piece:
                    process.child.wait()
                    messages.setdefault(ready.data, None)
                    selector.unregister(process.reader)


def hangs(processes: list[Process]) -> None:
    for process in processes:
        process.child.send_signal(signal.SIGUSR1)  # faulthandler writes all stacks
    time.sleep(1)
    raise SoakFailed(f"no end after {LONGEST} s: {[process.log.name for process in processes]}")


def weigh(process: Process, result: dict | None) -> None:
    if result is None:
        return
    process.memory.append(result["memory"])
    if result["resources"] != result["least"]:
        raise SoakFailed(f"{process.log.name} held {result['least']} after an episode, and {result['resources']} now")


def check_memory(process: Process) -> str:
    """Checks a process that lives for the whole test: compares the minimum memory of the second quarter with that of
    the last."""
    memory = process.memory
    quarter = max(1, len(memory) // 4)
    early, late = min(memory[quarter : 2 * quarter] or memory), min(memory[-quarter:])
    text = f"memory of the first process {early / 1e6:.1f} MB early, {late / 1e6:.1f} MB late"
    if late > early + MEMORY_SLACK:
        raise SoakFailed(text)
    return text


def logs(folder: Path) -> str:
    texts = {path.name: path.read_text()[-4000:] for path in sorted(folder.glob("*.txt"))}
    return "\n".join(f"--- {name}\n{text}" for name, text in texts.items() if text)


def shared_names() -> set[str]:
    """Returns the names of accord's files in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if "accord" in name}


def soak_until(
    soak,
    is_enough: Callable[[], bool],
    number_of: Callable[[int], int],
    done: Callable[[], str],
    seed: int,
    before: set[str],
) -> int:
    """Plays episodes of `soak` until is_enough() and reports the progress. Returns the exit code of the test.
    number_of(k) is the number of the k-th episode. `soak` has episode(), description, counts, longest, processes, folder and
    end(). done() describes the progress so far. before: shared_names() from before any process was started."""
    shown = time.monotonic()
    episodes = 0
    try:
        while not is_enough():
            soak.episode(number_of(episodes))
            episodes += 1
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                print(f"soak: {episodes} episodes, {done()}", flush=True)
        memory = check_memory(soak.processes[0])
        if left := shared_names() - before:
            raise SoakFailed(f"left in /dev/shm: {left}")
    except SoakFailed as failure:
        print(f"{logs(soak.folder)}\nsoak: FAILED with --seed {seed}, {soak.description}: {failure}", flush=True)
        return 1
    finally:
        soak.end()
    for name, count in sorted(soak.counts.items()):
        print(f"soak: {count} {name}")
    print(f"soak: longest episode {soak.longest:.1f} s; {memory}; descriptors, threads and segments exact")
    print(f"soak: ok, {episodes} episodes, --seed {seed}", flush=True)
    return 0
