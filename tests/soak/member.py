"""What every rank process of a soak test needs: it talks with the driver, and says what it holds."""

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

GIVEN_BACK_WITHIN = 3  # seconds


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def resources() -> dict[str, int]:
    """What this process holds, once nothing is in use."""
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
    """What this process holds when all is given back; another thread of it may do that a moment after the last call."""
    began = time.monotonic()
    now = resources()
    while time.monotonic() - began < GIVEN_BACK_WITHIN and any(now[name] > least.get(name, 0) for name in now):
        before, now = now, resources()
        if not least and now == before:  # there is nothing to compare it with
            break
    return now


def tell(what: dict) -> None:
    os.write(int(sys.argv[1]), json.dumps(what).encode() + b"\n")


def serve(play: Callable[[dict], dict]) -> None:
    """Plays the episodes that come from standard input, and tells after each what `play` gives and what this process holds."""
    faulthandler.register(signal.SIGUSR1)
    with accord.Communicator.create(accord.MemoryStore(), 0, 1) as alone:
        alone.barrier()  # starts what a process keeps for good; a rank that is stopped at once would not come to it
    least = settled({})
    tell({"ready": True})
    for line in sys.stdin:
        episode = json.loads(line)
        exec(os.environ.get("SOAK_DEFECT", ""))  # test_soak.py sees by it that the test can fail
        try:
            result = play(episode)
        except accord.Error as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        now = settled(least)
        least = {name: min(now[name], least.get(name, now[name])) for name in now}
        tell(result | {"resources": now, "least": least, "memory": memory()})
