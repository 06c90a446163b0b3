"""Checks every include against the layer table of docs/architecture.md.

A folder under src/ may include itself and the folders of earlier rows. Folders of one row never include each other. A
row whose text says "May include `a` and `b` only" narrows that further. Headers in include/accord include nothing of
src/, and any file may include them. A folder under src/ that is missing from the table is also an error.
"""

import re
import sys
from pathlib import Path

from tree import files_of, root_of_this_tree, text_of

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
NARROWED = re.compile(r"may include ((?:`\w+`(?:, | and )?)+) only", re.IGNORECASE)


def allowed_includes(architecture: str) -> dict[str, set[str]]:
    """Maps each layer of the table to the layers that it may include."""
    allowed: dict[str, set[str]] = {}
    above: set[str] = set()
    for line in architecture.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        layers = re.findall(r"`(\w+)`", cells[0]) if line.lstrip().startswith("|") else []
        if not layers or " · ".join(f"`{layer}`" for layer in layers) != cells[0]:
            if allowed:
                break  # end of the table
            continue
        narrowed = NARROWED.search(" ".join(cells[1:]))
        for layer in layers:
            allowed[layer] = {layer} | (set(re.findall(r"`(\w+)`", narrowed[1])) if narrowed else above)
        above = above | set(layers)
    return allowed


def violations(root: Path) -> list[str]:
    """Returns one line per include that violates the layer order."""
    allowed = allowed_includes((root / "docs/architecture.md").read_text(encoding="utf-8"))
    if not allowed:
        return ["docs/architecture.md: the layer table was not found"]
    found = []
    for name in files_of(root):
        public = name.parts[:2] == ("include", "accord")
        if not public and (name.parts[0] != "src" or len(name.parts) < 3):
            continue
        if not public and name.parts[1] not in allowed:
            found.append(f"{name}: folder src/{name.parts[1]} is not in the layer table of docs/architecture.md")
            continue
        for number, line in enumerate((text_of(root / name) or "").splitlines(), start=1):
            match = INCLUDE.match(line)
            if match is None:
                continue
            folder = match[1].split("/")[0] if "/" in match[1] else ""
            if public:
                if folder in allowed or match[1].startswith(("src/", "..")):
                    found.append(f"{name}:{number}: a public header includes {match[1]}; it may not include src/")
            elif match[1].startswith((".", "src/", "include/")) or (root / name.parent / match[1]).is_file():
                found.append(f"{name}:{number}: {match[1]} is not a path from src/ or include/")
            elif folder in allowed and folder not in allowed[name.parts[1]]:
                may = ", ".join(sorted(allowed[name.parts[1]] - {name.parts[1]})) or "nothing else of src/"
                found.append(f"{name}:{number}: {name.parts[1]} includes {match[1]}; it may include {may}")
    return found


def main() -> int:
    found = violations(root_of_this_tree())
    print("\n".join(found) if found else "layers: every include goes upwards")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
