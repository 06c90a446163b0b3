"""Time of a language model from its files to its first token, and the memory of all its ranks: with the package
dropped from the page cache, compared with a plain read of the same bytes, and from the page cache."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench import report
from bench.contender import memory_of, rank_environments
from bench.engine import llama
from bench.engine.language_rank import CACHE_DTYPE, MOST_TOKENS

# accord's promises.
OF_READ = 1.3
FROM_PAGE_CACHE = 0.5  # seconds
OF_WEIGHTS_AND_CACHE = 1.1
PIECE = 4 << 20
MIB = 1 << 20


def drop(package: Path) -> None:
    """Removes a package's files from the page cache."""
    for path in package.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_share(path: Path, rank: int, ranks: int) -> None:
    size = path.stat().st_size
    begin, end = size * rank // ranks, size * (rank + 1) // ranks
    buffer = memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0) as file:
        file.seek(begin)
        while begin < end:
            begin += file.readinto(buffer[: min(PIECE, end - begin)]) or end


def read(package: Path, ranks: int) -> float:
    """Returns the seconds in which as many threads as ranks read the weights, which are not in the page cache."""
    drop(package)
    weights = next(package.glob("weights-*.safetensors"))
    start = time.perf_counter()
    with ThreadPoolExecutor(ranks) as threads:
        list(threads.map(lambda rank: read_share(weights, rank, ranks), range(ranks)))
    return time.perf_counter() - start


@dataclass(frozen=True)
class Loaded:
    seconds: float  # until the slowest rank has its first token
    peak: float  # MiB of all ranks, including after a prompt


def load(package: Path, ranks: int, *, cold: bool) -> Loaded:
    program = [sys.executable, "-m", "bench.engine.load_rank", str(package)]
    processes = [
        subprocess.Popen(program, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for env in rank_environments(ranks)
    ]
    ended = threading.Event()
    peaks = [0.0]

    def watch() -> None:
        while not ended.wait(0.02):
            peaks[0] = max(peaks[0], sum(memory_of(process.pid, "Pss") for process in processes))

    def send(command: str) -> list[str]:
        for process in processes:
            print(command, file=process.stdin, flush=True)
        return [process.stdout.readline().strip() for process in processes]

    try:
        send("connect")
        if cold:
            drop(package)
        watcher = threading.Thread(target=watch)
        seconds = max(map(float, send("load")))
        watcher.start()  # reading a process's page table slows it down
        send("prompt")
        ended.set()
        watcher.join()
    finally:
        for process in processes:
            process.stdin.close()
            process.stdout.close()
            process.wait()
    return Loaded(seconds, peaks[0])


def cache_bytes(name: str) -> int:
    config = llama.MODELS[name]
    head = config["hidden_size"] // config["num_attention_heads"]
    keys_and_values = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head
    return keys_and_values * MOST_TOKENS * (4 if CACHE_DTYPE == "float32" else 2)


def measure(name: str, precision: str, files: Path, rounds: int) -> list[dict]:
    """Returns the report lines of one model in one precision, on one rank and on two."""
    import accord

    package = llama.package(name, precision, files)
    held = (accord.inspect(package)["weight_bytes"] + cache_bytes(name)) / MIB
    lines = []
    for ranks, of_ranks in ((1, "one rank"), (2, "two ranks")):
        found: dict[str, list] = {"read": [], "cold": [], "warm": []}
        runs: dict[str, Callable[[], object]] = {
            "read": lambda ranks=ranks: read(package, ranks),
            "cold": lambda ranks=ranks: load(package, ranks, cold=True),
            "warm": lambda ranks=ranks: load(package, ranks, cold=False),
        }
        for _ in range(rounds):
            for label, run in runs.items():
                found[label].append(run())
        plain = statistics.median(found["read"])
        cold = statistics.median(each.seconds for each in found["cold"])
        warm = statistics.median(each.seconds for each in found["warm"])
        peak = max(each.peak for each in found["cold"] + found["warm"])
        title = f"{name} {precision}, {of_ranks}"
        first = {"accord": cold, "read": plain}
        lines.append(report.result("engine", f"{title}, first token, files not cached", "s", first, OF_READ * plain))
        lines.append(report.result("engine", f"{title}, first token", "s", {"accord": warm}, FROM_PAGE_CACHE))
        memory = {"accord": peak, "weights and cache": held}
        lines.append(report.result("engine", f"{title}, most memory", "MiB", memory, OF_WEIGHTS_AND_CACHE * held))
    return lines
