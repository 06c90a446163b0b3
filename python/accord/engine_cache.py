"""Engine packages kept on disk, so that what was compiled once need not be compiled again.

A cache is a directory of packages KEY.accord, each with a file KEY.lock beside it. Whoever builds, replaces or removes a package
holds its lock alone; who uses it shares the lock. Locks are flock()'s: they end with their process, however that ends. What a killed
process left beside them (a folder of a build, .KEY.accord.*, a lock without a package) goes when the cache is used next.
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

FORM = 1  # of the keys: changes with what they are made of
LIMIT = 20 << 30  # bytes
_LEFT = re.compile(r"\.(?P<key>[0-9a-f]{64})\.accord\..*|(?P<lock>[0-9a-f]{64})\.lock")


def default_directory() -> Path:
    """$XDG_CACHE_HOME/accord/engines, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accord" / "engines"


def cache_key(
    graph: Mapping,
    tensors: Mapping[str, torch.Tensor],
    *,
    sharding: object = None,
    groups: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
) -> str:
    """The key of an engine: 64 hexadecimal digits that differ whenever anything does that the engine is made of.

    graph: its document (docs/engine-format.md): every op with all its arguments, dtypes, shapes and ranges of sizes. tensors: by name;
    dtype, shape and contents count. sharding, groups (name -> what tells the group: size, members) and options: whatever
    JSON can hold. Versions of accord, of the format and of torch count too. Costs one reading of the weights.
    """
    import torch
    import xxhash

    from accord.package import FORMAT_VERSION

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
    """A package of a cache."""

    key: str
    path: Path
    bytes: int
    used: float  # when it was used last, in seconds since 1970


class EngineCache:
    """Packages by key, in `directory` (default_directory() unless given), of at most `limit` bytes in all.

    Processes and threads may share a directory. Those used longest ago go first when it is full, but none that is in use.
    """

    def __init__(self, directory: str | os.PathLike | None = None, *, limit: int = LIMIT) -> None:
        if limit < 0:
            raise ValueError(f"a cache of {limit} bytes cannot be")
        self.directory = Path(directory) if directory is not None else default_directory()
        self.limit = limit

    @contextlib.contextmanager
    def package(self, key: str, build: Callable[[Path], object]) -> Iterator[Path]:
        """The package of `key` while the context lasts: nobody removes it. `build(path)` writes it if it is not there, or
        damaged; of several processes that want it at once, one builds and the others wait. What `build` raises is passed on,
        and nothing is kept. Costs one reading of the package, to see that it is whole.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        while True:
            with self._locked(key, fcntl.LOCK_SH):  # with all who use it: ranks that load it wait for each other
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
                        raise Corrupt(f"what was built for {key} is no whole package: {damage[0].what}")

    def entries(self) -> list[CacheEntry]:
        """All packages, the one used last first."""
        found = []
        for path in self.directory.glob("*.accord") if self.directory.is_dir() else []:
            with contextlib.suppress(OSError):  # one that goes meanwhile
                size = sum(file.stat().st_size for file in path.iterdir())
                found.append(CacheEntry(path.stem, path, size, path.stat().st_mtime))
        return sorted(found, key=lambda entry: entry.used, reverse=True)

    def clear(self) -> int:
        """Removes all packages that are not in use; gives how many."""
        self.sweep()
        return sum(self._remove(entry.key) for entry in self.entries())

    def sweep(self) -> None:
        """Removes what killed processes left, but not what is being built."""
        names = [file.name for file in self.directory.iterdir()] if self.directory.is_dir() else []
        for key in {found["key"] or found["lock"] for found in map(_LEFT.fullmatch, names) if found}:
            unfinished = any(name.startswith(f".{key}.") for name in names)
            if unfinished or not self._path(key).exists():
                self._remove(key, only_left=True)

    def _path(self, key: str) -> Path:
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise ValueError(f"{key!r} is no key of cache_key()")
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
        """BlockingIOError if `kind` has LOCK_NB and another holds it."""
        file = self.directory / f"{key}.lock"
        while True:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, kind)
                if not _is_at(descriptor, file):
                    continue  # who held it before has removed it
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
        """False if it is in use. only_left: not a package that is there."""
        try:
            with self._locked(key, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._empty(key, only_left=only_left)
                if not self._path(key).exists():
                    (self.directory / f"{key}.lock").unlink()
        except BlockingIOError:
            return False
        return True

    def _empty(self, key: str, *, only_left: bool = False) -> None:
        """Removes all of a key but its lock, which the caller holds alone."""
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
