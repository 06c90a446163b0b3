"""Checks every include against the layers of docs/architecture.md.

A folder under src/ may include itself and the folders of earlier rows of the table "Layers". Folders of one row never
include each other. A row whose text says "May include `a` and `b` only" narrows that further. Headers in
include/accord include nothing of src/, and any file may include them. A folder under src/ that is missing from the
table is also an error.

The table "Inside a layer" orders the folders of some layers: "`a` < `b` and `c` < `d` · `e`". A folder may include
those before it. Folders that "and" joins may include each other, those that "·" joins may not. Files that lie directly
in the layer's folder are not ordered.

The table "Headers for other layers" names headers of some layers. Other layers and bindings/ include no other header
of these layers.
"""

import re
import sys
from pathlib import Path

from tree import files_of, root_of_this_tree, text_of

ARCHITECTURE = "docs/architecture.md"
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
NARROWED = re.compile(r"may (?:include|import) ((?:`\w+`(?:, | and )?)+) only", re.IGNORECASE)


def section(architecture: str, heading: str) -> str:
    """Returns the text below a heading of the page, up to the next heading."""
    return re.split(r"^#+ ", architecture.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows_of(text: str) -> list[list[str]]:
    """Returns the cells of the rows of all tables in `text`."""
    lines = (line.strip() for line in text.splitlines())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def allowed_includes(text: str) -> dict[str, set[str]]:
    """Maps each layer of the table in `text` to the layers that it may include."""
    allowed: dict[str, set[str]] = {}
    above: set[str] = set()
    for first, *others in rows_of(text):
        layers = re.findall(r"`(\w+)`", first)
        if not layers or " · ".join(f"`{layer}`" for layer in layers) != first:
            continue
        narrowed = NARROWED.search(" ".join(others))
        for layer in layers:
            allowed[layer] = {layer} | (set(re.findall(r"`(\w+)`", narrowed[1])) if narrowed else above)
        above = above | set(layers)
    return allowed


def inner_orders(text: str) -> dict[str, dict[str, set[str]]]:
    """Maps each layer of the table in `text` to its folders, and these to the folders that they may include."""
    orders: dict[str, dict[str, set[str]]] = {}
    for first, *others in rows_of(text):
        if re.fullmatch(r"`\w+`", first):
            order = orders[first.strip("`")] = {}
            for step in others[0].split(" < "):
                before = set(order)
                for group in step.split(" · "):
                    folders = re.findall(r"`(\w+)`", group)
                    order.update((folder, before | set(folders)) for folder in folders)
    return orders


def headers_for_others(text: str) -> dict[str, set[str]]:
    """Maps each layer of the table in `text` to its headers that other layers may include."""
    rows = [row for row in rows_of(text) if re.fullmatch(r"`\w+`", row[0])]
    return {layer.strip("`"): set(re.findall(r"`([^`]+)`", headers)) for layer, headers, *_ in rows}


def in_words(allowed: set[str], folder: str, otherwise: str) -> str:
    return ", ".join(sorted(allowed - {folder})) or otherwise


def hidden_include(layer: str, path: str, headers: dict[str, set[str]]) -> str:
    """Returns what is wrong with the include of `path` in a file of `layer` if other layers may not include it, or
    nothing."""
    folder = path.split("/")[0]
    if folder == layer or path in headers.get(folder, {path}):
        return ""
    return f"{layer} includes {path}; of {folder} it may include only {', '.join(sorted(headers[folder]))}"


def wrong_include(name: Path, path: str, allowed: dict[str, set[str]], orders: dict[str, dict[str, set[str]]]) -> str:
    """Returns what is wrong with the include of `path` in the file `name` of src/, or nothing."""
    layer, inner = name.parts[1], name.parts[2] if len(name.parts) > 3 else ""
    folder, *below = path.split("/")[:-1]
    if folder in allowed and folder not in allowed[layer]:
        return f"{layer} includes {path}; it may include {in_words(allowed[layer], layer, 'nothing else of src/')}"
    order = orders.get(layer, {})
    if folder == layer and below and inner in order and below[0] not in order[inner]:
        return f"{layer}/{inner} includes {path}; it may include {in_words(order[inner], inner, 'no other folder')}"
    return ""


def includes_of(root: Path, name: Path) -> list[tuple[int, str]]:
    """Returns the number of each line of a file that includes another, and the path that it includes."""
    lines = (text_of(root / name) or "").splitlines()
    return [(number, match[1]) for number, line in enumerate(lines, start=1) if (match := INCLUDE.match(line))]


def violations(root: Path) -> list[str]:
    """Returns one line per include that violates the order of the layers or of the folders inside one."""
    architecture = (root / ARCHITECTURE).read_text(encoding="utf-8")
    allowed = allowed_includes(section(architecture, "Layers"))
    orders = inner_orders(section(architecture, "Inside a layer"))
    headers = headers_for_others(section(architecture, "Headers for other layers"))
    if not allowed:
        return [f"{ARCHITECTURE}: the layer table was not found"]
    found = []
    for name in files_of(root):
        if name.parts[0] == "bindings":
            for number, path in includes_of(root, name):
                if wrong := hidden_include("bindings", path, headers):
                    found.append(f"{name}:{number}: {wrong}")
            continue
        public = name.parts[:2] == ("include", "accord")
        if not public and (name.parts[0] != "src" or len(name.parts) < 3):
            continue
        if not public and name.parts[1] not in allowed:
            found.append(f"{name}: folder src/{name.parts[1]} is not in the layer table of {ARCHITECTURE}")
            continue
        order = {} if public or len(name.parts) < 4 else orders.get(name.parts[1], {})
        if order and name.parts[2] not in order:
            found.append(f'{name}: folder {"/".join(name.parts[:3])} is not in the table "Inside a layer"')
            continue
        for number, path in includes_of(root, name):
            if public:
                if path.startswith(("src/", "..")) or ("/" in path and path.split("/")[0] in allowed):
                    found.append(f"{name}:{number}: a public header includes {path}; it may not include src/")
            elif path.startswith((".", "src/", "include/")) or (root / name.parent / path).is_file():
                found.append(f"{name}:{number}: {path} is not a path from src/ or include/")
            elif "/" in path:
                wrong = wrong_include(name, path, allowed, orders) or hidden_include(name.parts[1], path, headers)
                if wrong:
                    found.append(f"{name}:{number}: {wrong}")
    return found


def main() -> int:
    found = violations(root_of_this_tree())
    print("\n".join(found) if found else "layers: every include goes upwards")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
