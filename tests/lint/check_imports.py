"""Checks the imports of the modules of python/accord against the table "The Python package" of docs/architecture.md.

A module or package directly in python/accord may import itself and those of earlier rows. Those of one row never
import each other. A row whose text says "May import `a` and `b` only" narrows that further. The row `accord` is
__init__.py, with the public names. A module or package that is missing from the table is also an error. No modules
import each other in a circle, whatever their packages.

Imports in functions count too. What does not count runs on the first use of a name, or never: the tables of
lazy_names(), import_module(), and imports below `if TYPE_CHECKING`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from check_layers import ARCHITECTURE, allowed_includes, in_words, section
from tree import files_of, root_of_this_tree, text_of

PACKAGE = Path("python/accord")

Places = dict[str, str]  # imported module -> file:line of the first import


def module_of(name: Path) -> str:
    """Returns the module that the file `name` contains."""
    parts = name.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_in(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields the imports below `node` that can run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from imports_in(child)


def imported_by(statement: ast.Import | ast.ImportFrom, package: str, modules: set[str]) -> Iterator[str]:
    """Yields the modules of accord that a statement of a module in `package` imports."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        outer = package.split(".")[: 1 - statement.level or None] if statement.level else []
        base = ".".join([*outer, *([statement.module] if statement.module else [])])
        whole = [f"{base}.{alias.name}" for alias in statement.names]
        names = [name if name in modules or name == "accord._core" else base for name in whole]
    yield from (name for name in names if name.split(".")[0] == "accord")


def imports_of_all(root: Path) -> dict[str, Places]:
    """Maps each module to the modules that it imports."""
    files = {module_of(name): name for name in files_of(root) if PACKAGE in name.parents and name.suffix == ".py"}
    found: dict[str, Places] = {}
    for module, name in files.items():
        package = module if name.name == "__init__.py" else module.rpartition(".")[0]
        places = found[module] = {}
        for statement in imports_in(ast.parse(text_of(root / name) or "")):
            for other in imported_by(statement, package, set(files)):
                places.setdefault(other, f"{name}:{statement.lineno}")
    return found


def wrong_layers(imports: dict[str, Places], allowed: dict[str, set[str]]) -> Iterator[str]:
    """Yields one line per import that violates the table's order."""
    for module, places in imports.items():
        layer = layer_of(module)
        if layer not in allowed:
            yield f"{module}: {layer} is not in the table of the Python package of {ARCHITECTURE}"
            continue
        for other, place in places.items():
            if layer_of(other) not in allowed[layer]:
                may = in_words(allowed[layer], layer, "no other module of accord")
                yield f"{place}: {module} imports {other}; {layer} may import {may}"


def layer_of(module: str) -> str:
    return ".".join(module.split(".")[:2]).removeprefix("accord.")


def circles(imports: dict[str, Places]) -> Iterator[str]:
    """Yields one line per shortest circle of imports; modules that are in one are in no other."""
    reported: set[str] = set()
    for module in sorted(imports):
        circle = shortest_circle(module, imports, reported)
        reported.update(circle)
        if circle:
            links = zip(circle, [*circle[1:], module], strict=True)
            yield "circle: " + ", ".join(f"{one} imports {other} ({imports[one][other]})" for one, other in links)


def shortest_circle(start: str, imports: dict[str, Places], excluded: set[str]) -> list[str]:
    """Returns the modules of a circle that begins with `start`, in order, or nothing."""
    came_from: dict[str, str] = {}
    waiting = [start] if start not in excluded else []
    for module in waiting:  # grows while it is read: breadth first
        for other in imports[module]:
            if other == start and module != start:
                path = [module]
                while path[0] != start:
                    path.insert(0, came_from[path[0]])
                return path
            if other in imports and other not in excluded | came_from.keys() | {start}:
                came_from[other] = module
                waiting.append(other)
    return []


def violations(root: Path) -> list[str]:
    """Returns one line per import that violates the order, and one per circle."""
    allowed = allowed_includes(section((root / ARCHITECTURE).read_text(encoding="utf-8"), "The Python package"))
    if not allowed:
        return [f"{ARCHITECTURE}: the table of the Python package was not found"]
    imports = imports_of_all(root)
    return [*wrong_layers(imports, allowed), *circles(imports)]


def main() -> int:
    found = violations(root_of_this_tree())
    print("\n".join(found) if found else "imports: every import goes upwards, and none in a circle")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
