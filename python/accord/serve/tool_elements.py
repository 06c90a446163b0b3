"""Arguments of a call as elements, one for each argument, such as <parameter=KEY>VALUE</parameter>.

A value is a text or JSON. Only the tool's schema says which: "12" may be a postcode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accord import grammar
from accord._core import InvalidArgument

__all__ = ["ElementReader", "element_rules", "loose"]

_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}  # some templates write them
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
_UNENFORCED = ("pattern", "format")  # of texts


def loose(text: str) -> str:
    """Returns a regex for a text in which white space may be anywhere between words and signs."""
    return r"\s*" + "".join(re.escape(part) + r"\s*" for part in re.findall(r"\w+|[^\w\s]", text))


def _parts(argument: str) -> tuple[str, str, str]:
    """Returns the texts before the key, between key and value, and after the value."""
    before, rest = argument.split("KEY")
    middle, after = rest.split("VALUE")
    return before, middle, after


class ElementReader:
    """Reads the elements of one call, which arrive in pieces, as the text of a JSON object.

    argument: the form of an element, with KEY and VALUE. end: the first text after the elements.
    """

    def __init__(self, argument: str, end: str, schema: Mapping[str, Any]):
        before, middle, after = _parts(argument)
        # A new line beside the value is part of the form.
        middle = loose(middle).removesuffix(r"\s*") + (r"\n?" if middle.endswith("\n") else "")
        after = (r"\n?" if after.startswith("\n") else "") + loose(after).removeprefix(r"\s*")
        self._element = re.compile(rf"{loose(before)}(?P<key>[^<>]+?){middle}(?P<value>.*?){after}", re.DOTALL)
        self._end = re.compile(rf"\s*{re.escape(end)}")
        self._schema = schema
        self._count = 0

    def push(self, text: str) -> tuple[int, str, bool]:
        """Returns how many characters of the text are read, more of the JSON object, and whether it is complete."""
        used, parts = 0, []
        while self._end.match(text, used) is None:
            element = self._element.match(text, used)
            if element is None:
                return used, "".join(parts), False
            value = _value(element["value"], _types(_property(self._schema, element["key"]), self._schema))
            member = f"{json.dumps(element['key'], ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
            parts.append((", " if self._count else "{") + member)
            self._count += 1
            used = element.end()
        return used, "".join([*parts, "}" if self._count else "{}"]), True


def element_rules(name: str, argument: str, schema: Mapping[str, Any], literal: Callable[[str], str]) -> Sequence[str]:
    """Returns rules in Lark's notation for the elements that conform to a schema, or for any elements if the schema has
    no properties; `name` is the first one's.

    literal: returns a text in Lark's notation, with special tokens by their ids. Raises InvalidArgument for a schema
    that cannot be enforced.
    """
    before, middle, after = _parts(argument)
    if "properties" not in schema:
        element = f"{literal(before)} {name}_key {literal(middle)} {name}_value"
        values = _value_rules(f"{name}_value", {"type": "string"}, schema, after, literal, "")
        return [f"{name}: ({element})*", f"{name}_key: /[^<>]+/", *values]
    elements, rules = [], []
    for index, (key, one) in enumerate(schema["properties"].items()):
        value = f"{name}_{index}"
        rules += _value_rules(value, one, schema, after, literal, key)
        element = f"{literal(before + key + middle)} {value}"
        elements.append(element if key in schema.get("required", ()) else f"({element})?")
    return [f"{name}: {' '.join(elements) or json.dumps('')}", *rules]


def _value_rules(
    name: str, given: Any, root: Mapping[str, Any], after: str, literal: Callable[[str], str], key: str
) -> list[str]:
    """Returns rules for a value of an element and the text after it; `name` is the first one's."""
    one = _resolved(given, root)
    if several := _alternatives(one):
        names = [f"{name}_{index}" for index in range(len(several))]
        rules = (
            _value_rules(inner, other, root, after, literal, key) for inner, other in zip(names, several, strict=True)
        )
        return [f"{name}: {' | '.join(names)}", *(rule for some in rules for rule in some)]
    if "string" not in _types(one, root):
        definitions = {"$defs": root["$defs"]} if "$defs" in root else {}
        json_rule = grammar.lark_json(definitions | (one if isinstance(one, dict) else {}))
        return [f"{name}: {name}_json {literal(after)}", f"{name}_json: {json_rule}"]
    if values := _values(one):
        texts = (value if isinstance(value, str) else json.dumps(value) for value in values)
        return [f"{name}: ({' | '.join(literal(text) for text in texts)}) {literal(after)}"]
    for keyword in _UNENFORCED:
        if keyword in one:
            raise InvalidArgument(f'"{keyword}" of the argument "{key}" cannot be enforced in this model\'s format')
    characters = f"(?s:.){{{one.get('minLength', 0)},{one.get('maxLength', '')}}}"
    close = re.search(r"<[^<>]+>", after)
    assert close is not None
    # A special token is no text, so a text reaches up to it. Otherwise the text ends at the first end of an element.
    is_special = literal(close[0]).startswith("<[")
    end = close.start() if is_special else close.end()
    text = re.escape(after[:end]).replace("/", r"\/").replace("\\\n", r"\n")
    laziness = "" if is_special else "[lazy]"
    return [f"{name}: {name}_text {literal(after[end:])}", f"{name}_text{laziness}: /{characters}{text}/"]


def _value(text: str, types: frozenset[str]) -> object:
    """Returns the value for which a text stands. No types: those of the schema are not known."""
    if types == {"string"}:
        return text
    try:
        value = json.loads(_PYTHON_NAMES.get(text.strip(), text))
    except ValueError:
        return text
    allowed = tuple(kind for name in types - {"string"} for kind in _JSON_TYPES.get(name, ()))
    return text if "string" in types and not isinstance(value, allowed) else value


def _property(schema: Mapping[str, Any], key: str) -> Any:
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Follows references within the document."""
    for _ in range(len(root.get("$defs", {})) + 1):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
            break
        schema = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
    return schema


def _types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the types that a value may have, none if it may have any."""
    schema = _resolved(schema, root)
    if not isinstance(schema, dict):
        return frozenset()
    if values := _values(schema):
        kinds = ((name for name, types in _JSON_TYPES.items() if isinstance(value, types)) for value in values)
        return frozenset(name for names in kinds for name in names)
    if "type" in schema:
        return frozenset([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
    found = [_types(one, root) for one in _alternatives(schema)]
    return frozenset().union(*found) if all(found) else frozenset()


def _alternatives(schema: Any) -> list[Any]:
    return (schema.get("anyOf") or schema.get("oneOf") or []) if isinstance(schema, dict) else []


def _values(schema: dict[str, Any]) -> list[Any]:
    """Returns the only values that a schema allows, if it lists them."""
    return [schema["const"]] if "const" in schema else schema.get("enum", [])
