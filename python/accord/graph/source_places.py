"""Locations in a model's source code, for messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import torch

import accord

GENERATED = "<eval_with_key>"  # torch's name for the code of graphs


def place_of(node: torch.fx.Node) -> str:
    """Returns file:line of the innermost frame that is not torch's own, relative to Python's search path."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return place_in(frames) or place_in(frames, of_torch=True) or node.name


def place_in(frames: Sequence[tuple[str, int | str]], of_torch: bool = False) -> str | None:
    """Returns file:line of the innermost of these frames that is neither torch's nor accord's own, or None."""
    own = () if of_torch else tuple(os.path.dirname(one.__file__) + os.sep for one in (torch, accord))
    others = [frame for frame in frames if not frame[0].startswith((*own, GENERATED))]
    if not others:
        return None
    path, line = others[-1]
    roots = [root for root in map(os.path.abspath, sys.path) if path.startswith(root.rstrip(os.sep) + os.sep)]
    return f"{os.path.relpath(path, max(roots, key=len)) if roots else os.path.basename(path)}:{line}"
