"""Writes the package's metadata into a build tree: entry_points.py PYPROJECT VERSION FOLDER."""

import shutil
import sys
import tomllib
from pathlib import Path

pyproject, version, folder = sys.argv[1:]
project = tomllib.loads(Path(pyproject).read_text())["project"]
groups = project["entry-points"]
metadata = Path(folder) / f"{project['name']}-{version}.dist-info"
for older in set(Path(folder).glob(f"{project['name']}-*.dist-info")) - {metadata}:
    shutil.rmtree(older)
metadata.mkdir(exist_ok=True)
(metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
(metadata / "entry_points.txt").write_text(
    "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )
)
