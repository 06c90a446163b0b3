"""Report entries: what happened to options that a program sets for backends other than accord."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import accord

NO_EFFECT_ON_CPU = "it has no effect on CPU ranks"


def fate_of(option: str, value: Any, fate: str, why: str) -> dict[str, Any]:
    """Returns a report entry. fate: "applied", "translated" or "not applicable"."""
    return {"option": option, "value": str(value), "fate": fate, "why": why}


def raise_if_unused(unused: Sequence[dict[str, Any]]) -> None:
    """Implements strict: raises Unsupported, which names the first option, if any option is not applicable."""
    if unused:
        raise accord.Unsupported(f"mesh: {unused[0]['option']} has no effect: {unused[0]['why']}")


def changed_options(options: Any) -> dict[str, Any]:
    """Returns the options of a backend that differ from their defaults, by name; none for None."""
    if options is None:
        return {}
    try:
        defaults = type(options)()
    except (TypeError, RuntimeError):
        return {type(options).__name__: options}
    found = {}
    for part, default in ((options, defaults), (getattr(options, "config", None), getattr(defaults, "config", None))):
        for name in dir(part):
            value = None if name.startswith("_") else getattr(part, name, None)
            if isinstance(value, bool | int | float | str) and value != getattr(default, name, None):
                found[name] = value
    return found
