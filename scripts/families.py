#!/usr/bin/env python3
"""Tries small models of all types of transformers as engines, and writes the table of docs/families.md.

usage: scripts/families.py [TYPE...]      (with accord in PYTHONPATH; with types: tries these, and keeps the other rows)
"""

import re
import sys
import tempfile
import warnings
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python/support"))
PAGE = ROOT / "docs/families.md"
BEGIN, END = "<!-- table of scripts/families.py -->", "<!-- end of the table -->"


def row_of(model_type: str) -> str:
    import small_models
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        outcome = small_models.trial(model_type, Path(folder))
    return f"| `{model_type}` | {outcome.kind} | {note_of(outcome.kind, outcome.reason)} |"


def note_of(kind: str, reason: str) -> str:
    """Returns what a table says of a reason: without places in files, and without what to do about it."""
    text = " ".join(reason.split()).replace("|", "/")
    if kind == "equal":
        layers = re.findall(r"every rank has all of (.*?)(?:, which|;|$)", text)
        names = sorted({re.sub(r"\.\d+\.", ".*.", name) for one in layers for name in re.findall(r'"(.+?)"', one)})
        if not layers:
            return ""
        return "on every rank whole: " + (", ".join(f"`{name}`" for name in names) if names else "all layers")
    text = re.sub(r" at (\S+/)?transformers/\S+|\(\S*transformers/\S+\)", "", text)
    text = re.sub(r"Class validation error.*?ValueError: ", "", text)
    text = re.sub(r'^no engine can run this model: "\S*": |^\w+Error: |GuardOnDataDepend.*', "", text)
    remedy = r"; (?:a language model|change that|change the|run the model|give |choose)|\. (?:Export|An engine)"
    text = re.split(remedy, text)[0]
    return text if len(text) <= 200 else text[:200].rsplit(" ", 1)[0] + " ..."


def main() -> None:
    if "-h" in sys.argv or "--help" in sys.argv:
        print(__doc__)
        return
    import small_models

    text = PAGE.read_text()
    table = text[text.index(BEGIN) : text.index(END)]
    rows = dict(re.findall(r"^(\| `(?:.+?)` \|)(.*)$", table, re.MULTILINE)) if sys.argv[1:] else {}
    types = sys.argv[1:] or small_models.TYPES
    with get_context("spawn").Pool(2, maxtasksperchild=8) as pool:
        for number, row in enumerate(pool.imap(row_of, types), 1):
            print(f"{number} of {len(types)}: {row}", flush=True)
            name, result = re.fullmatch(r"(\| `.+?` \|)(.*)", row).groups()
            rows[name] = result
    kinds = [result.split(" | ")[0].strip() for result in rows.values()]
    summary = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    lines = [BEGIN, f"{len(rows)} types: {summary}.", "", "| type | result | note |", "|---|---|---|"]
    lines += [name + rows[name] for name in sorted(rows, key=lambda name: name.split("`")[1])]
    PAGE.write_text(text.replace(table, "\n".join(lines) + "\n"))


if __name__ == "__main__":
    main()
