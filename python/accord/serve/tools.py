"""The tools of a request: how they get into the prompt, and how their calls get out of the answer."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from accord import grammar
from accord.grammar import Grammar
from accord.serve.constraints import checked_grammar
from accord.serve.errors import invalid
from accord.serve.schemas import ChosenTool, FunctionDefinition, Message
from accord.serve.texts import Texts
from accord.serve.tool_calls import ToolCallParser
from accord.serve.tool_formats import MOST_CALLS, ToolFormat, calls_grammar

__all__ = ["ToolUse", "conversation_of", "tool_use_of"]

_NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}
_ANY_ARGUMENTS: dict[str, object] = {"type": "object"}


@dataclass(frozen=True)
class ToolUse:
    """definitions: the tools as chat templates take them. grammar: of the answers, None if they are free."""

    form: ToolFormat
    definitions: list[dict[str, object]]
    grammar: Grammar | None
    single: bool
    schemas: dict[str, dict[str, object]]  # of arguments, by name

    def make_parser(self) -> ToolCallParser:
        return ToolCallParser(self.form, single=self.single, schemas=self.schemas)


async def tool_use_of(
    functions: Sequence[FunctionDefinition],
    choice: str | ChosenTool | None,
    *,
    parallel: bool,
    texts: Texts,
    answer: Mapping[str, object] | None,
    param_of: Callable[[int], str],
) -> ToolUse | None:
    """Returns None if the model may call no tool.

    answer: the schema of answers that call no tool; None for any text. param_of: returns the field with the parameters
    of a function, for errors.
    """
    if not functions:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice needs tools", "tool_choice")
        return None
    if choice == "none":
        return None
    form = texts.tool_format()
    chosen = functions
    if isinstance(choice, ChosenTool):
        chosen = [function for function in functions if function.name == choice.function.name]
        if not chosen:
            raise invalid(f'there is no tool "{choice.function.name}" among tools', "tool_choice")
    must_call = choice == "required" or isinstance(choice, ChosenTool)
    single = not parallel or isinstance(choice, ChosenTool)
    if answer is not None and not must_call and not form.begin:
        # Both begin with a brace, and a token at a time cannot tell one from the other.
        message = "models with this format of calls cannot choose between a call and an answer with a structure"
        raise invalid(f'{message}; set tool_choice to "none" or "required"', "tool_choice", "unsupported_value")
    made = None
    if must_call or answer is not None or any(function.strict for function in functions):
        schemas = []
        for index, function in enumerate(functions):
            if function not in chosen:
                continue
            is_enforced = must_call or function.strict
            schema = (function.parameters or _NO_PARAMETERS) if is_enforced else _ANY_ARGUMENTS
            await checked_grammar(grammar.json_schema, schema, param_of(index))  # so that the error names the field
            schemas.append((function.name, schema))
        make = functools.partial(
            calls_grammar,
            form,
            tokenizer=texts.tokenizer,
            most=1 if single else MOST_CALLS,
            with_text=not must_call and answer is None,
            answer=None if must_call else answer,
        )
        made = await checked_grammar(make, schemas, "tools")
    parameters = {function.name: function.parameters or _NO_PARAMETERS for function in functions}
    return ToolUse(form, [_definition(function) for function in functions], made, single, parameters)


def _definition(function: FunctionDefinition) -> dict[str, object]:
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description or "",
            "parameters": function.parameters or _NO_PARAMETERS,
        },
    }


def conversation_of(messages: Sequence[Message], param: str = "messages") -> list[dict[str, object]]:
    """Returns the messages as chat templates take them: with "system" for OpenAI's "developer", with objects as
    arguments of calls, and with the names of tools beside their results."""
    names: dict[str, str] = {}
    conversation = []
    for place, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        made: dict[str, object] = {"role": role, "content": message.text()}
        if message.tool_calls:
            made["tool_calls"] = calls = []
            for index, call in enumerate(message.tool_calls):
                names[call.id] = call.function.name
                arguments = _arguments(call.function.arguments, f"{param}.{place}.tool_calls.{index}")
                function = {"name": call.function.name, "arguments": arguments}
                calls.append({"id": call.id, "type": "function", "function": function})
        if message.tool_call_id is not None:
            made["tool_call_id"] = message.tool_call_id
            if message.tool_call_id in names:
                made["name"] = names[message.tool_call_id]
        conversation.append(made)
    return conversation


def _arguments(text: str, param: str) -> dict[str, object]:
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid("arguments are a JSON object as text", f"{param}.function.arguments")
    return arguments
