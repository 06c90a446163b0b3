"""The part that every rank process of a soak test needs: it talks to the driver and reports the resources that it
holds."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import accord

RELEASED_WITHIN = 3  # seconds


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def resources() -> dict[str, int]:
    """Returns the resources that this process holds when nothing is in use."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": status("Threads"),
        "segments": sum("memfd:accord-rank" in line for line in maps),
    }


def memory() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return status("RssAnon") * 1024


def settled(least: dict[str, int]) -> dict[str, int]:
    """Returns the resources that this process holds once everything is released. Another thread may release some a
    moment after the last call."""
    began = time.monotonic()
    now = resources()
    while time.monotonic() - began < RELEASED_WITHIN and any(now[name] > least.get(name, 0) for name in now):
        before, now = now, resources()
        if not least and now == before:  # there is nothing to compare with
            break
    return now


def send(message: dict) -> None:
    os.write(int(sys.argv[1]), json.dumps(message).encode() + b"\n")


def serve(play: Callable[[dict], dict]) -> None:
    """Plays the episodes that arrive on standard input. After each one, reports the result of `play` and the
    resources that this process holds."""
    faulthandler.register(signal.SIGUSR1)
    with accord.Communicator.create(accord.MemoryStore(), 0, 1) as alone:
        # Creates the objects that a process keeps. A rank that is stopped at once would not reach this point.
        alone.barrier()
    least = settled({})
    send({"ready": True})
    for line in sys.stdin:
        episode = json.loads(line)
        exec(os.environ.get("SOAK_DEFECT", ""))  # lets test_soak.py check that the test can fail
        try:
            result = play(episode)
        except accord.Error as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        now = settled(least)
        least = {name: min(now[name], least.get(name, now[name])) for name in now}
        send(result | {"resources": now, "least": least, "memory": memory()})
