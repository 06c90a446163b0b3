"""The formats in which models write calls of tools: a table, and the grammars that follow from it.

A model's format is found by texts in its chat template. Calls are BEGIN call BETWEEN call ... END, and a call has NAME
and ARGUMENTS in it: a JSON object, or an element with KEY and VALUE for each argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from accord import grammar
from accord._core import Tokenizer
from accord.grammar import Grammar
from accord.serve.tool_elements import element_rules

__all__ = ["FORMATS", "MOST_CALLS", "ToolFormat", "calls_grammar", "format_of"]

MOST_CALLS = 16  # of an answer whose calls a grammar enforces: a sampled model may not find an end
_JSON_CALL = '{"name": "NAME", "arguments": ARGUMENTS}'


@dataclass(frozen=True)
class ToolFormat:
    name: str
    signs: tuple[str, ...]  # texts in the chat templates of this format
    other_signs: tuple[str, ...]  # texts that are in no such template
    begin: str
    call: str
    between: str
    end: str
    argument: str = ""  # the element of an argument
    id_length: int = 24  # characters that identify a call; Mistral's templates demand 9

    @property
    def call_parts(self) -> tuple[str, str, str]:
        """Returns the texts before the name, between name and arguments, and after the arguments."""
        before, rest = self.call.split("NAME")
        middle, after = rest.split("ARGUMENTS")
        return before, middle, after

    @property
    def special_texts(self) -> frozenset[str]:
        """Texts that may be special tokens."""
        found = _SPECIAL.findall(self.begin + self.call + self.argument + self.between + self.end)
        return frozenset(text for text in found if not re.search("NAME|KEY", text))


_SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")

FORMATS = (
    ToolFormat(
        name="DeepSeek V3",
        signs=("<｜tool▁calls▁begin｜>", "```json"),
        other_signs=(),
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>",
        between="\n",
        end="<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="DeepSeek V3.1",
        signs=("<｜tool▁calls▁begin｜>",),
        other_signs=("```json",),
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>",
        between="",
        end="<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="Phi 4",
        signs=("<|/tool_call|>",),
        other_signs=(),
        begin="<|tool_call|>[",
        call=_JSON_CALL,
        between=", ",
        end="]<|/tool_call|>",
    ),
    ToolFormat(
        name="Granite",
        signs=("<|tool_call|>",),
        other_signs=("<|/tool_call|>",),
        begin="<|tool_call|>[",
        call=_JSON_CALL,
        between=", ",
        end="]",
    ),
    ToolFormat(
        name="Mistral with [ARGS]",
        signs=("[TOOL_CALLS]", "[ARGS]"),
        other_signs=(),
        begin="[TOOL_CALLS]",
        call="NAME[ARGS]ARGUMENTS",
        between="[TOOL_CALLS]",
        end="",
        id_length=9,
    ),
    ToolFormat(
        name="Mistral",
        signs=("[TOOL_CALLS]",),
        other_signs=("[ARGS]",),
        begin="[TOOL_CALLS] [",
        call=_JSON_CALL,
        between=", ",
        end="]",
        id_length=9,
    ),
    ToolFormat(  # also Qwen 2.5 and 3, SmolLM3 and others
        name="Hermes",
        signs=("<tool_call>", "arguments"),
        other_signs=("<function=", "<arg_key>"),
        begin="<tool_call>\n",
        call=_JSON_CALL,
        between="\n</tool_call>\n<tool_call>\n",
        end="\n</tool_call>",
    ),
    ToolFormat(
        name="Qwen 3 Coder",
        signs=("<tool_call>", "<function=", "<parameter="),
        other_signs=(),
        begin="<tool_call>\n",
        call="<function=NAME>\nARGUMENTS</function>",
        argument="<parameter=KEY>\nVALUE\n</parameter>\n",
        between="\n</tool_call>\n<tool_call>\n",
        end="\n</tool_call>",
    ),
    ToolFormat(  # to 4.7
        name="GLM 4.5",
        signs=("<tool_call>", "<arg_key>", "<arg_value>"),
        other_signs=(),
        begin="<tool_call>",
        call="NAME\nARGUMENTS",
        argument="<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        between="</tool_call>\n<tool_call>",
        end="</tool_call>",
    ),
    ToolFormat(
        name="Llama 3",
        signs=('"parameters": ', "ipython"),
        other_signs=("<tool_call>",),
        begin="",
        call='{"name": "NAME", "parameters": ARGUMENTS}',
        between="; ",
        end="",
    ),
)


def format_of(template: str) -> ToolFormat | None:
    """Returns the format of the models with this chat template, None if it is not in the table."""
    for form in FORMATS:
        if all(sign in template for sign in form.signs) and not any(sign in template for sign in form.other_signs):
            return form
    return None


def calls_grammar(
    form: ToolFormat,
    tools: Sequence[tuple[str, Mapping[str, object]]],
    tokenizer: Tokenizer,
    most: int,
    *,
    with_text: bool = False,
    answer: Mapping[str, object] | None = None,
) -> Grammar:
    """Returns the grammar of one to `most` calls. tools: names, and schemas of arguments. Raises InvalidArgument for a
    schema that cannot be enforced.

    with_text: any text may precede the calls, or stand alone. answer: a schema; JSON that conforms to it may take the
    place of the calls. One of these at most."""
    begin = list(_tokens_and_texts(form.begin, tokenizer))
    rest = _join("call", _more(form, tokenizer, most), _literal(form.end, tokenizer))
    rules = [
        *(_calls_after_text(begin, rest) if with_text else [f"start: {_join(_notation(begin), rest)}"]),
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
    ]
    if answer is not None:
        rules[0] += " | answer"
        rules.append(f"answer: {grammar.lark_json(answer)}")
    before, middle, after = form.call_parts
    for index, (name, schema) in enumerate(tools):
        head = _literal(before + name + middle, tokenizer)
        rules.append(f"call_{index}: {_join(head, f'arguments_{index}', _literal(after, tokenizer))}")
        if form.argument:
            rules += element_rules(f"arguments_{index}", form.argument, schema, lambda text: _literal(text, tokenizer))
        else:
            rules.append(f"arguments_{index}: {grammar.lark_json(schema)}")
    return grammar.grammar("\n".join(rules) + "\n")


def _calls_after_text(begin: list[int | str], rest: str) -> list[str]:
    """Returns rules for a text, which calls may follow. It ends where calls first begin."""
    if not begin:  # an answer is calls from its beginning, or a text
        return [f"start: {rest} | TEXT |", r"TEXT: /[^{](.|\n)*/"]
    if isinstance(begin[0], int):
        return [f"start: text | text {_join(_notation(begin), rest)}", f"text: <[^{begin[0]}]>*"]
    head = f"head[lazy]: TEXT {json.dumps(begin[0])}"
    return [f"start: TEXT | {_join('head', _notation(begin[1:]), rest)}", r"TEXT: /(.|\n)*/", head]


def _more(form: ToolFormat, tokenizer: Tokenizer, most: int) -> str:
    return f"({_join(_literal(form.between, tokenizer), 'call')}){{0,{most - 1}}}" if most > 1 else ""


def _join(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _literal(text: str, tokenizer: Tokenizer) -> str:
    """Returns a text in Lark's notation, with special tokens by their ids."""
    return _notation(_tokens_and_texts(text, tokenizer))


def _notation(parts: Iterable[int | str]) -> str:
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in parts)


def _tokens_and_texts(text: str, tokenizer: Tokenizer) -> Iterator[int | str]:
    """Yields the ids of special tokens, and the texts between them."""
    end = 0
    for match in _SPECIAL.finditer(text):
        token = tokenizer.id_of(match[0])
        if token is not None and tokenizer.bytes_of(token) is None:
            if match.start() > end:
                yield text[end : match.start()]
            yield token
            end = match.end()
    if end < len(text):
        yield text[end:]
