"""Options of groups in the form of Megatron's programs: a YAML file, or its contents."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import accord


def group_options(
    given: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None, high_priority: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Returns options by the keys of the families, as MeshPlan takes them.

    given: a YAML file, {"dp_cp": {"max_ctas": 32, "net_name": "IB"}} as text, or that mapping itself. high_priority:
    keys for which is_high_priority_stream is also set. MeshPlan checks the names.
    """
    if isinstance(given, str | os.PathLike):
        given = _read(given)
    options: dict[str, dict[str, Any]] = {}
    for key, values in (given or {}).items():
        if not isinstance(values, Mapping | None):
            raise accord.InvalidArgument(f'mesh: options of "{key}" are not a dict')
        options[str(key)] = dict(values or {})
    for key in high_priority:
        options.setdefault(key, {})["is_high_priority_stream"] = True
    return options


def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        text = f"mesh: reading {os.fspath(path)} requires the package pyyaml; or pass its contents as a dict"
        raise accord.Unsupported(text) from None
    try:
        with open(path, encoding="utf-8") as file:
            read = yaml.safe_load(file)
    except OSError as error:
        raise accord.IoError(f"mesh: {os.fspath(path)}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise accord.InvalidArgument(f"mesh: {os.fspath(path)} is not valid YAML: {error}") from None
    if read is not None and not isinstance(read, Mapping):
        raise accord.InvalidArgument(f"mesh: {os.fspath(path)} does not contain options by names of groups")
    return read or {}
