"""Arguments of nodes in graph.json, and argument lists of ops in the table."""

from __future__ import annotations

from accord.graph.ops import ARGUMENTS


def argument_names(op: str) -> list[tuple[str, str]]:
    """Returns (name, type) of each argument of an op in the table."""
    pieces = [piece.split("=")[0].strip() for piece in ARGUMENTS[op].split(", ")]
    return [(piece.split(" ")[1], piece.split(" ")[0]) for piece in pieces]


def values_in(argument) -> list[str]:
    """Returns the names of the values in an argument."""
    if isinstance(argument, dict) and "value" in argument:
        return [argument["value"]]
    if isinstance(argument, dict) and "values" in argument:
        return [name for name in argument["values"] if name is not None]
    return []


def renamed(argument, old: str, new: str):
    """Returns the argument with the value `old` renamed to `new`."""
    if isinstance(argument, dict) and argument.get("value") == old:
        return {"value": new}
    if isinstance(argument, dict) and "values" in argument:
        return {"values": [new if name == old else name for name in argument["values"]]}
    return argument


def read_by(node: dict) -> set[str]:
    """Returns the names of the values that a node reads."""
    return {name for argument in node["arguments"].values() for name in values_in(argument)}


def with_new_names(node: dict, new_names: dict[str, str]) -> dict:
    """Returns the node with the values in `new_names` renamed in its arguments."""
    arguments = node["arguments"]
    for old in read_by(node) & new_names.keys():
        arguments = {key: renamed(value, old, new_names[old]) for key, value in arguments.items()}
    return {**node, "arguments": arguments}


def equal(given, default) -> bool:
    """Returns True if an argument equals its default, where 1 is not equal to True."""
    if isinstance(given, bool) or isinstance(default, bool):
        return given is default
    return isinstance(given, (int, float, str, type(None))) and given == default


def is_integer_zero(given) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given == 0
