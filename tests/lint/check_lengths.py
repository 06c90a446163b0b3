"""Checks that no code file exceeds 400 lines unless tests/lint/long_files.txt lists it with a reason.

A line of that list has the form "path: reason". An entry is an error if its file does not exist or is short enough,
so the list can only shrink.
"""

import sys
from pathlib import Path

from tree import CODE_SUFFIXES, files_of, root_of_this_tree, text_of

LIMIT = 400
LIST = Path("tests/lint/long_files.txt")


def listed(root: Path) -> dict[str, str]:
    """Maps each path of the list to its reason."""
    path = root / LIST
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries = [line.partition(":") for line in lines if line.strip() and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in entries}


def violations(root: Path) -> list[str]:
    """Returns one line per file that is too long without a reason, and per listed file that is not too long."""
    reasons = listed(root)
    found = []
    long_files = set()
    for name in files_of(root):
        if name.suffix not in CODE_SUFFIXES and name.name != "CMakeLists.txt":
            continue
        lines = len((text_of(root / name) or "").splitlines())
        if lines <= LIMIT:
            continue
        long_files.add(str(name))
        if not reasons.get(str(name)):
            found.append(f"{name}: {lines} lines; split it, or give the reason in {LIST}")
    found += [f"{LIST}: {name} is not over {LIMIT} lines" for name in reasons if name not in long_files]
    return found


def main() -> int:
    found = violations(root_of_this_tree())
    print("\n".join(found) if found else f"lengths: no code file over {LIMIT} lines without a reason")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
