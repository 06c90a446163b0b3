"""Lazily imported names: names of a package that need more than the package itself are imported on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the __getattr__ of `package`. places: the module that contains each name; a name that is itself a
    module is mapped to its package.
    """

    def get(name: str) -> object:
        namespace = sys.modules[package]
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=namespace)
        place = importlib.import_module(places[name])
        value = place if place.__name__ == f"{package}.{name}" else getattr(place, name)
        setattr(namespace, name, value)
        return value

    return get
