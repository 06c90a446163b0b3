"""The files that the lint checks read: those that git tracks or would track, so no build products."""

import re
import subprocess
from pathlib import Path

CODE_SUFFIXES = (".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".py", ".pyi", ".cmake", ".sh")


def root_of_this_tree() -> Path:
    """The repository that contains this file."""
    return Path(__file__).resolve().parents[2]


def files_of(root: Path) -> list[Path]:
    """Returns the files below `root` as relative paths: git's list if `root` is a repository, otherwise every file
    that is not in a folder named by .gitignore."""
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
    """Returns the file's text, or None if it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
