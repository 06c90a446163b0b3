"""The files of the tree that the lint checks look at: whatever git has or would take, so no build products."""

import re
import subprocess
from pathlib import Path

CODE_SUFFIXES = (".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".py", ".pyi", ".cmake", ".sh")


def root_of_this_tree() -> Path:
    """The repository that this file lies in."""
    return Path(__file__).resolve().parents[2]


def files_of(root: Path) -> list[Path]:
    """Files below `root`, relative to it: git's if it is a repository, else all that .gitignore names no folder of."""
    if (root / ".git").exists():
        listing = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True,
            capture_output=True,
        ).stdout.decode()
        names = sorted({Path(name) for name in listing.split("\0") if name})
    else:
        ignore = root / ".gitignore"
        left_out = set(re.findall(r"^/?([^/*\n]+)/$", ignore.read_text(), re.MULTILINE)) if ignore.exists() else set()
        names = sorted(path.relative_to(root) for path in root.rglob("*"))
        names = [name for name in names if not left_out.intersection(name.parts[:-1])]
    return [name for name in names if (root / name).is_file() and not (root / name).is_symlink()]


def text_of(path: Path) -> str | None:
    """The file's text, or None if it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
