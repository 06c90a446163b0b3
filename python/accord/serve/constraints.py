"""Restrictions of answers: `response_format` and `structured_outputs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from accord import grammar
from accord._core import InvalidArgument
from accord.grammar import Grammar
from accord.serve.errors import invalid
from accord.serve.schemas import ResponseFormat, SamplingRequest, StructuredOutputs

__all__ = ["checked_grammar", "format_grammar", "grammar_of", "schema_of"]

Argument = TypeVar("Argument")


async def grammar_of(body: SamplingRequest) -> Grammar | None:
    """Returns the grammar of the answers, None if they are free. The error of an invalid one names the field."""
    outputs = body.structured_outputs
    if body.response_format is not None and body.response_format.type != "text":
        if outputs is not None:
            raise invalid("give either response_format or structured_outputs", "structured_outputs")
        schema_field = "response_format.json_schema.schema"
        return await format_grammar(body.response_format, "response_format", schema_field)
    return None if outputs is None else await _of_outputs(outputs)


async def format_grammar(form: ResponseFormat | None, param: str, schema_param: str) -> Grammar | None:
    """Returns the grammar of a format, None for any text. The names of the fields are for errors."""
    schema = schema_of(form, param)
    return None if schema is None else await checked_grammar(grammar.json_schema, schema, schema_param)


def schema_of(form: ResponseFormat | None, param: str) -> Mapping[str, object] | None:
    """Returns the schema of a format, None for any text."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None:
        raise invalid("the type json_schema needs a json_schema", f"{param}.json_schema")
    return {"type": "object"} if form.json_schema.schema_ is None else form.json_schema.schema_


async def _of_outputs(outputs: StructuredOutputs) -> Grammar | None:
    given = outputs.model_dump(by_alias=True, exclude_none=True)
    if given.get("json_object") is False:
        del given["json_object"]
    if len(given) != 1:
        raise invalid(f"expected one kind of restriction, got {len(given)}", "structured_outputs")
    ((kind, value),) = given.items()
    param = f"structured_outputs.{kind}"
    if kind == "json" and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise invalid(f"it is not valid JSON: {error}", param) from error
        if not isinstance(value, (dict, bool)):
            raise invalid("a schema is an object", param)
    if kind == "json_object":
        value = {"type": "object"}
    makers = {"json": grammar.json_schema, "json_object": grammar.json_schema}
    makers |= {"regex": grammar.regex, "choice": grammar.choice, "grammar": grammar.grammar}
    return await checked_grammar(makers[kind], value, param)


async def checked_grammar(make: Callable[[Argument], Grammar], argument: Argument, param: str) -> Grammar:
    """Returns the grammar. It is made on another thread, because large ones take a while."""
    try:
        return await asyncio.to_thread(make, argument)
    except InvalidArgument as error:
        raise invalid(f"{param}: {error}", param) from error
