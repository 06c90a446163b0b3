"""Twenty schemas whose answers fit into 400 tokens."""

from __future__ import annotations


def _object(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _array(items: object, most: int = 4, least: int = 0) -> dict[str, object]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _text(most: int = 24, **more: object) -> dict[str, object]:
    return {"type": "string", "maxLength": most, **more}


def _integer(least: int = 0, most: int = 1000) -> dict[str, object]:
    return {"type": "integer", "minimum": least, "maximum": most}


_FLAG = {"type": "boolean"}
_NUMBER = {"type": "number", "minimum": -1000, "maximum": 1000}
_POINT = _object(x=_integer(), y=_integer())

SCHEMAS: dict[str, dict[str, object]] = {
    "person": _object(name=_text(), age=_integer(0, 150), is_student=_FLAG),
    "city": _object(name=_text(), country=_text(), population=_integer(0, 40_000_000)),
    "choice": {"enum": ["red", "green", "blue", 1, 2.5, True, None, "größer"]},
    "constants": _object(version={"const": 2}, kind={"const": "report"}),
    "tags": _array({"enum": ["new", "old", "lent", "sold"]}, least=1),
    "nested": _object(a=_object(b=_object(c=_object(d=_text(8))))),
    "points": _array(_POINT, least=2),
    "matrix": _array(_array(_integer(0, 9), 3, 3), 3, 3),
    "union": {"anyOf": [_object(text=_text()), _object(number=_integer()), {"type": "null"}]},
    "optional": {
        "type": "object",
        "properties": {"id": _integer(), "note": _text(), "score": _integer(1, 5)},
        "required": ["id"],
        "additionalProperties": False,
    },
    "pattern": _object(plate=_text(12, pattern="^[A-Z]{1,3}-[0-9]{2,4}$"), code=_text(8, pattern="^[0-9a-f]{8}$")),
    "date": _object(day={"type": "string", "format": "date"}, time=_text(5, pattern="^[0-2][0-9]:[0-5][0-9]$")),
    "address": _object(id={"type": "string", "format": "uuid"}, host={"type": "string", "format": "ipv4"}),
    "numbers": _object(mean=_integer(-50, 50), values=_array(_integer(-9, 9), 6, 2)),
    "references": {**_object(left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}),
                   "$defs": {"leaf": _object(value=_text(10), weight=_integer(0, 9))}},
    "tree": {**_object(name=_text(6), children=_array({"$ref": "#/$defs/child"}, 2)),
             "$defs": {"child": _object(name=_text(6), leaves=_array(_text(4), 2))}},
    "map": {"type": "object", "patternProperties": {"^[a-z]{1,6}$": _integer()}, "additionalProperties": False,
            "maxProperties": 3},
    "tuple": {"type": "array", "prefixItems": [_text(8), _integer(), _FLAG], "items": False, "minItems": 3},
    "order": _object(customer=_text(), lines=_array(_object(item=_text(12), count=_integer(1, 99), is_gift=_FLAG), 3, 1),
                     state={"enum": ["open", "paid", "sent"]}),
    "quoted": _object(**{'a "quoted" name': _text(10), "naïve": _FLAG, "x\\y": _integer(0, 9)}),
}  # fmt: skip
