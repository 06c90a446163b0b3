"""Names the producer of a package in its manifest."""

from __future__ import annotations

import importlib.metadata

import torch


def producer() -> str:
    """Returns the versions of accord and torch in words."""
    try:
        version = importlib.metadata.version("accord")
    except importlib.metadata.PackageNotFoundError:
        version = "(source tree)"
    return f"accord {version}, torch {torch.__version__.split('+')[0]}"
