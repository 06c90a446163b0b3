"""The calling convention of a saved model: the structure of its arguments and its results, as stored in packages.

docs/engine-format.md describes the entries. The specs are in torch's own text format. A named tuple is identified by
its module, its name and its fields, so that a process without its class can create an equal one.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import math
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from torch.utils import _pytree

from accord._core import Corrupt, Unsupported
from accord.graph.errors import ExportError
from accord.graph.symbolic_sizes import evaluate, read_symbol

NAMED_TUPLE = "collections.namedtuple"  # its type in torch's text
# Libraries whose modules register their output classes when they are imported.
IMPORTED = ("transformers", "diffusers")


@dataclass(frozen=True)
class CallStructure:
    """`inputs` and `outputs` are the leaves of the model's arguments and of its results: {"name", "dtype", "shape"}
    with None for sizes that may change, {"name", "number"}, {"value": name}, {"size", "symbols"}, or {"constant":
    value}."""

    inputs: list[dict]
    outputs: list[dict]
    in_spec: str
    out_spec: str

    @staticmethod
    def read(entry: Mapping) -> CallStructure:
        return CallStructure(**{name: entry[name] for name in ("inputs", "outputs", "in_spec", "out_spec")})

    def entry(self) -> dict:
        return asdict(self)

    def results(self, values: Mapping[str, object]) -> list:
        """Returns the leaves of the model's results. values: the model's arguments and its parts' results, by name."""
        return [_result(entry, values) for entry in self.outputs]


def _result(entry: dict, values: Mapping[str, object]) -> object:
    if "value" in entry:
        return values[entry["value"]]
    if "size" in entry:
        symbols = {symbol: read_symbol(values, *source) for symbol, source in entry["symbols"].items()}
        return evaluate(entry["size"], symbols)
    return constant_from(entry["constant"])


def constant_entry(value: object) -> object:
    """Returns a number, a string or None as JSON. Raises ExportError for anything else."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ExportError(
        f"a {type(value).__name__} among the arguments or outputs of the model is not saved: tensors, numbers, text and None are"
    )


def constant_from(entry: object) -> object:
    return float(entry["float"]) if isinstance(entry, dict) else entry


def spec_to_text(spec: _pytree.TreeSpec) -> str:
    """Returns torch's text of `spec`. Raises ExportError for classes that torch cannot write."""
    for kind in _classes_in(spec):
        _register(kind)
    try:
        text = _pytree.treespec_dumps(spec)
        if _pytree.treespec_loads(text) != spec:
            raise TypeError("JSON does not keep the keys of its dicts, which may be text and numbers")
    except (NotImplementedError, TypeError, ImportError, AttributeError) as error:
        raise ExportError(
            f"the structure of the model's arguments or outputs is not saved: {error}; use tuples, lists, dicts, named tuples, or "
            "dataclasses that torch.export.register_dataclass knows"
        ) from error
    return text


def spec_from_text(text: str) -> _pytree.TreeSpec:
    """Reads torch's text of a spec. Raises Unsupported for classes that this process does not have."""
    try:
        _, top = json.loads(text)
        _resolve(top)
        return _pytree.treespec_loads(text)
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"a class that the model takes or gives cannot be imported: {error}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise Corrupt(f"the structure of the model's arguments or outputs cannot be read: {error}") from error


def _classes_in(spec: _pytree.TreeSpec) -> list[type]:
    """Returns the classes of named tuples and of registered pytree nodes in `spec`."""
    found, waiting = [], [spec]
    while waiting:
        one = waiting.pop()
        if one.type is collections.namedtuple:
            found.append(one.context)
        elif one.type is not None:
            found.append(one.type)
        waiting += one.children() if hasattr(one, "children") else one.children_specs
    return found


def _register(kind: type) -> None:
    """Gives a class a name in torch's text if it has none."""
    known = _pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    if known is not None and known.serialized_type_name != _pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        return
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _pytree.is_namedtuple_class(kind):
        _pytree._register_namedtuple(kind, serialized_type_name=f"{name}({', '.join(kind._fields)})")
        return
    node = _pytree.SUPPORTED_NODES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "already registered"
        _pytree._private_register_pytree_node(
            kind,
            node.flatten_fn,
            node.unflatten_fn,
            serialized_type_name=name,
            flatten_with_keys_fn=node.flatten_with_keys_fn,
        )


def _resolve(node: dict) -> None:
    """Registers the classes named by a node of torch's text, and by the nodes below it, with torch."""
    name = node["context"] if node["type"] == NAMED_TUPLE else node["type"]
    if name is not None and name not in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        _find(name, named_tuple=node["type"] == NAMED_TUPLE)
    for child in node["children_spec"]:
        _resolve(child)


def _find(name: str, named_tuple: bool) -> None:
    path, _, fields = name.removesuffix(")").partition("(")
    fields = fields.split(", ") if fields else []
    if path.split(".")[0] in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(path.rpartition(".")[0])
        if name in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            return
    kind = _loaded_class(path)
    if named_tuple and re.fullmatch(r"[\w.<>]+\(.*\)", name):
        if list(getattr(kind, "_fields", ())) != fields:
            kind = collections.namedtuple(path.rpartition(".")[2], fields)
        _pytree._register_namedtuple(kind, serialized_type_name=name)
    elif kind in _pytree.SUPPORTED_NODES:
        _register(kind)
    if name not in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise Unsupported(
            f'the model takes or gives a "{path}", which this process does not know: import the '
            "module that defines it, and register it as where the model was saved (torch.export.register_dataclass), before loading"
        )


def _loaded_class(path: str) -> type | None:
    """Returns the class with this path from a module that this process has imported."""
    pieces = path.split(".")
    for end in range(len(pieces) - 1, 0, -1):
        found = sys.modules.get(".".join(pieces[:end]))
        for piece in pieces[end:] if found is not None else ():
            found = getattr(found, piece, None)
        if isinstance(found, type):
            return found
    return None
