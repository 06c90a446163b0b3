"""Engine packages cached on disk, so that a model compiled once need not be compiled again.

A cache is a directory of packages KEY.accord, each with a file KEY.lock beside it. A process that builds, replaces or
removes a package holds its lock exclusively; processes that use it share the lock. The locks are flock() locks, which
end with their process, however it ends. Leftovers of a killed process (a partly built folder .KEY.accord.*, or a lock
without a package) are removed the next time the cache is used.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accord._core import Corrupt, Error, __version__, verify

if TYPE_CHECKING:
    import torch

FORM = 1  # version of the keys: changes whenever their ingredients do
LIMIT = 20 << 30  # bytes
_LEFT = re.compile(r"\.(?P<key>[0-9a-f]{64})\.accord\..*|(?P<lock>[0-9a-f]{64})\.lock")


def default_directory() -> Path:
    """Returns $XDG_CACHE_HOME/accord/engines, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accord" / "engines"


def cache_key(
    graph: Mapping,
    tensors: Mapping[str, torch.Tensor],
    *,
    sharding: object = None,
    groups: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
) -> str:
    """Returns the key of an engine: 64 hexadecimal digits that differ whenever any of the engine's ingredients
    differs.

    graph: its document (docs/engine-format.md): every op with all its arguments, dtypes, shapes and ranges of sizes.
    tensors: by name; their dtypes, shapes and contents count. sharding, groups (name -> what identifies the group:
    size, members) and options: anything that JSON can express. The versions of accord, of the format and of torch
    count, too. Cost: reads the weights once.
    """
    import torch
    import xxhash

    from accord.package.writer import FORMAT_VERSION

    described = {}
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        data = whole.reshape(-1).view(torch.uint8).numpy()
        described[name] = [str(tensor.dtype), list(tensor.shape), xxhash.xxh3_128_hexdigest(data)]
    facts = {
        "form": FORM,
        "accord": __version__,
        "format": FORMAT_VERSION,
        "torch": torch.__version__,
        "graph": graph,
        "tensors": described,
        "sharding": sharding,
        "groups": dict(groups or {}),
        "options": dict(options or {}),
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CacheEntry:
    """A package in a cache."""

    key: str
    path: Path
    bytes: int
    used: float  # time of last use, in seconds since 1970


class EngineCache:
    """Packages by key, in `directory` (by default default_directory()), of at most `limit` bytes in total.

    Processes and threads may share a directory. When the cache is full, the least recently used packages are removed
    first, but never one that is in use.
    """

    def __init__(self, directory: str | os.PathLike | None = None, *, limit: int = LIMIT) -> None:
        if limit < 0:
            raise ValueError(f"a cache of {limit} bytes cannot be")
        self.directory = Path(directory) if directory is not None else default_directory()
        self.limit = limit

    @contextlib.contextmanager
    def package(self, key: str, build: Callable[[Path], object]) -> Iterator[Path]:
        """Yields the path of the package of `key`, which is not removed while the context lasts. If the package does
        not exist or is damaged, `build(path)` writes it; if several processes ask for it at once, one builds and the
        others wait. Errors that `build` raises are passed on, and nothing is kept. Cost: reads the package once, to
        verify that it is complete.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        while True:
            with self._locked(key, fcntl.LOCK_SH):  # shared by all users: ranks that load it wait for each other
                if self._is_whole(path):
                    os.utime(path)
                    self._trim()
                    yield path
                    return
            with self._locked(key, fcntl.LOCK_EX):
                if not self._is_whole(path):
                    self._empty(key)
                    build(path)
                    if damage := verify(path):
                        raise Corrupt(f"the package of {key} is incomplete: {damage[0].what}")

    def entries(self) -> list[CacheEntry]:
        """Returns all packages, the most recently used first."""
        found = []
        for path in self.directory.glob("*.accord") if self.directory.is_dir() else []:
            with contextlib.suppress(OSError):  # a package removed meanwhile
                size = sum(file.stat().st_size for file in path.iterdir())
                found.append(CacheEntry(path.stem, path, size, path.stat().st_mtime))
        return sorted(found, key=lambda entry: entry.used, reverse=True)

    def clear(self) -> int:
        """Removes all packages that are not in use and returns their number."""
        self.sweep()
        return sum(self._remove(entry.key) for entry in self.entries())

    def sweep(self) -> None:
        """Removes the leftovers of killed processes, but not packages that are being built."""
        names = [file.name for file in self.directory.iterdir()] if self.directory.is_dir() else []
        for key in {found["key"] or found["lock"] for found in map(_LEFT.fullmatch, names) if found}:
            unfinished = any(name.startswith(f".{key}.") for name in names)
            if unfinished or not self._path(key).exists():
                self._remove(key, only_left=True)

    def _path(self, key: str) -> Path:
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise ValueError(f"{key!r} is not a key that cache_key() returns")
        return self.directory / f"{key}.accord"

    @staticmethod
    def _is_whole(path: Path) -> bool:
        if not path.exists():
            return False
        try:
            return not verify(path)
        except (Error, OSError):
            return False

    @contextlib.contextmanager
    def _locked(self, key: str, kind: int) -> Iterator[None]:
        """Holds the lock of `key`. Raises BlockingIOError if `kind` has LOCK_NB and another process holds it."""
        file = self.directory / f"{key}.lock"
        while True:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, kind)
                if not _is_at(descriptor, file):
                    continue  # the previous holder has removed the file
                yield
                return
            finally:
                os.close(descriptor)

    def _trim(self) -> None:
        self.sweep()
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        for entry in reversed(entries):
            if total <= self.limit:
                return
            if self._remove(entry.key):
                total -= entry.bytes

    def _remove(self, key: str, *, only_left: bool = False) -> bool:
        """Removes a package and its lock. Returns False if it is in use. only_left: keeps an existing package."""
        try:
            with self._locked(key, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._empty(key, only_left=only_left)
                if not self._path(key).exists():
                    (self.directory / f"{key}.lock").unlink()
        except BlockingIOError:
            return False
        return True

    def _empty(self, key: str, *, only_left: bool = False) -> None:
        """Removes all files of a key except its lock, which the caller holds exclusively."""
        for folder in self.directory.glob(f".{key}.accord.*"):
            shutil.rmtree(folder, ignore_errors=True)
        if not only_left:
            shutil.rmtree(self._path(key), ignore_errors=True)


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="accord engine cache", allow_abbrev=False)
    parser.add_argument("what", choices=["list", "clear"])
    parser.add_argument("--directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cache = EngineCache(options.directory)
    facts: dict[str, object] = {"directory": str(cache.directory)}
    cache.sweep()
    if options.what == "clear":
        facts["removed"] = cache.clear()
    entries = cache.entries()
    facts["entries"] = [{"key": entry.key, "bytes": entry.bytes, "used": entry.used} for entry in entries]
    if options.json:
        print(json.dumps(facts))
        return 0
    if options.what == "clear":
        print(f"{cache.directory}: removed {facts['removed']}, {len(entries)} in use")
        return 0
    for entry in entries:
        print(f"{entry.key} {entry.bytes / (1 << 20):>10.1f} MiB  {time.strftime('%F %T', time.localtime(entry.used))}")
    total = sum(entry.bytes for entry in entries) / (1 << 20)
    print(f"{cache.directory}: {len(entries)} packages, {total:.1f} MiB of at most {cache.limit >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
