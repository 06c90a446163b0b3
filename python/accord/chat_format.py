"""Converts a model's chat template to a chat_format.json, which renders conversations without Jinja, and renders
templates with Jinja where that is not enough.

    document = accord.chat_format.of_folder("model")  # its tokenizer_config.json or chat_template.jinja
    Path("chat_format.json").write_text(document)
    accord.ChatFormat.load("chat_format.json").render([{"role": "user", "content": "Hello"}])

A template is a program, but most templates amount to a table: the text before the first message, between two
messages, and after the last one depends only on their roles, and the messages themselves are copied, perhaps with
surrounding white space removed. The template is therefore rendered with marker words in place of the messages, for
every order of roles, and the texts between the markers are the table. The table is then checked against the template
on random conversations. Templates that do more (cut answers short, count messages, move a system message) are
detected and rejected, with the reason.

Needs Jinja2, which is installed with transformers.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox

from accord._core import ChatFormat, InvalidArgument, NotFound, Unsupported

__all__ = ["ChatTemplate", "derive", "of_folder"]

ROLES = ("system", "user", "assistant")
LONGEST_PROBE = 4  # messages
CONVERSATIONS = 300  # random conversations that are compared
# Placeholder for a date that the template asks for while it is probed, and the strftime directives that it may use:
# those that are constant for a day.
DATE = "\ue000{}\ue001"
DATE_PARTS = re.compile("\ue000(.*?)\ue001", re.DOTALL)
OF_A_DAY = re.compile(r"(?:[^%]|%-?[aAbBdejmuwyY%])*")


class _NoTable(Exception):
    """The template does something that a table cannot express."""


class _Generation(jinja2.ext.Extension):
    """{% generation %}, with which transformers marks the assistant's words: renders its content unchanged."""

    tags = frozenset({"generation"})

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(Exception):
    """The template raised an error: it rejects this conversation."""


class _Template:
    """A chat template, compiled as transformers compiles it."""

    def __init__(self, template: str, special_tokens: Mapping[str, str]):
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = self._raise
        environment.globals["strftime_now"] = lambda form: self.strftime_now(form)
        self._special_tokens = {name: str(token) for name, token in special_tokens.items() if isinstance(token, str)}
        self.strftime_now = DATE.format
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateError as error:
            raise _NoTable(f"it cannot be read: {error}") from error

    @staticmethod
    def _raise(message: str) -> None:
        raise _Refused(message)

    def render(self, roles: Sequence[str], contents: Sequence[str], add_generation_prompt: bool) -> str | None:
        """Returns the text, or None if the template rejects the conversation."""
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            return self.fill(messages, None, add_generation_prompt)
        except _Refused:
            return None
        except Exception as error:
            raise _NoTable(f"it fails for a conversation of {_listed(roles)}: {error}") from error

    def fill(self, messages: Sequence[Mapping[str, object]], tools: object, add_generation_prompt: bool) -> str:
        return self._template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special_tokens,
        )


class ChatTemplate:
    """The chat template in a chat_format.json, run as transformers runs it: for conversations with tools, and for
    templates that a table cannot express."""

    def __init__(self, document: str):
        """Raises NotFound if the document has no template, and Unsupported if the template cannot be read."""
        content = json.loads(document)
        if "template" not in content:
            raise NotFound("the chat format has no template: export the model again")
        self.source: str = content["template"]
        try:
            self._template = _Template(self.source, content.get("special_tokens", {}))
        except _NoTable as error:
            raise Unsupported(f"the chat template: {error}") from error
        self._template.strftime_now = lambda form: datetime.datetime.now().strftime(form)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Returns the text of a conversation, special tokens included. Raises InvalidArgument with the template's
        reason if it rejects the conversation.

        tools: {"type": "function", "function": {"name": ..., "description": ..., "parameters": SCHEMA}} each. Arguments
        of calls in `messages` are objects, not texts.
        """
        try:
            return self._template.fill(messages, tools, add_generation_prompt)
        except Exception as error:  # anything may be raised by a template
            raise InvalidArgument(f"the chat template rejects this conversation: {error}") from error

    @functools.cached_property
    def takes_tools(self) -> bool:
        """True if the names of tools reach the model."""
        probe = {"name": "probe_of_tools", "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            text = self.render([{"role": "user", "content": ""}], tools=[{"type": "function", "function": probe}])
        except InvalidArgument:
            return False
        return probe["name"] in text


def derive(template: str, special_tokens: Mapping[str, str] | None = None) -> str:
    """Returns the chat_format.json of a chat template, as text.

    special_tokens: tokens that the template refers to by name (`bos_token`, `eos_token`, ...).

    If a table cannot express the template, the file contains the reason, and ChatFormat raises Unsupported with it. The
    file also has the template itself, for ChatTemplate.
    """
    head = {"format": "accord-chat-format", "format_version": 1}
    source = {"template": template, "special_tokens": dict(special_tokens or {})}
    try:
        compiled = _Template(template, special_tokens or {})
        document = json.dumps({**head, **_table_of(compiled), **source}, indent=1, ensure_ascii=False) + "\n"
        _compare(compiled, ChatFormat.parse(document))
    except _NoTable as reason:
        unsupported = {"unsupported": " ".join(str(reason).split())}
        return json.dumps({**head, **unsupported, **source}, indent=1, ensure_ascii=False) + "\n"
    return document


def of_folder(folder: str | os.PathLike[str]) -> str | None:
    """Returns the chat_format.json of the model in `folder`, or None if the model has no chat template. See derive().

    Reads chat_template.jinja, or else `chat_template` of tokenizer_config.json (if it has several, the one named
    "default"), and the special tokens of tokenizer_config.json.
    """
    path = Path(folder) / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    alone = Path(folder) / "chat_template.jinja"
    if alone.exists():
        template = alone.read_text(encoding="utf-8")
    if template is None:
        return None
    tokens = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in config.items()
        if name.endswith("_token")
    }
    return derive(template, {name: token for name, token in tokens.items() if isinstance(token, str)})


def _listed(roles: Sequence[str]) -> str:
    return ", ".join(roles)


def _table_of(template: _Template) -> dict:
    start: dict[str, str] = {}
    between: dict[str, dict[str, str]] = {}
    ends: dict[bool, dict[str, str]] = {False: {}, True: {}}

    def note(place: dict[str, str], role: str, text: str, where: str) -> None:
        if place.setdefault(role, text) != text:
            raise _NoTable(f"what it writes {where} is not always the same: {place[role]!r} and {text!r}")

    for length in range(1, LONGEST_PROBE + 1):
        for roles in itertools.product(ROLES, repeat=length):
            for prompt in (False, True):
                texts = _texts_between(template, roles, prompt)
                if texts is None:
                    continue
                note(start, roles[0], texts[0], f"before a first message of {roles[0]}")
                for (before, after), text in zip(itertools.pairwise(roles), texts[1:-1], strict=True):
                    note(between.setdefault(before, {}), after, text, f"between messages of {before} and {after}")
                note(ends[prompt], roles[-1], texts[-1], f"after a last message of {roles[-1]}")
    if "user" not in ends[True]:
        raise _NoTable("it takes no conversation that ends with the user")
    return {
        "start": {role: _parts(text) for role, text in start.items()},
        "between": {role: {r: _parts(text) for r, text in after.items()} for role, after in between.items()},
        "end": {role: _parts(text) for role, text in ends[False].items()},
        "generation": {role: _parts(text) for role, text in ends[True].items()},
        "trimmed": [role for role in ROLES if _is_trimmed(template, role)],
    }


def _texts_between(template: _Template, roles: Sequence[str], prompt: bool) -> list[str] | None:
    """Returns the texts before, between and after the messages; None if the template rejects or omits a message."""
    marks = [f"\ue002{i}\ue003" for i in range(len(roles))]
    text = template.render(roles, marks, prompt)
    if text is None or any(mark not in text for mark in marks):
        return None
    texts = re.split("\ue002\\d+\ue003", text)
    if re.findall("\ue002\\d+\ue003", text) != marks:
        raise _NoTable(f"it does not write the messages of {_listed(roles)} once each, in their order")
    return texts


def _parts(text: str) -> str | list[str | dict[str, str]]:
    """Returns the text itself, or a list of parts if it contains dates."""
    parts: list[str | dict[str, str]] = []
    for i, part in enumerate(DATE_PARTS.split(text)):
        if i % 2 == 1:
            if not OF_A_DAY.fullmatch(part):
                raise _NoTable(f"it writes more of the time than the day: {part!r}")
            parts.append({"date": part})
        elif part:
            parts.append(part)
    return text if len(parts) == 1 and parts[0] == text else parts or ""


def _is_trimmed(template: _Template, role: str) -> bool:
    space = " \n\u2003\x1c"
    for roles in itertools.chain.from_iterable(itertools.product(ROLES, repeat=length) for length in (1, 2, 3)):
        if role in roles and _texts_between(template, roles, False) is not None:
            contents = [f"{space}{r}{space}" if r == role else r for r in roles]
            text = template.render(roles, contents, False)
            return text is not None and f"{space}{role}" not in text and f"{role}{space}" not in text
    return False


def _compare(template: _Template, chat_format: ChatFormat) -> None:
    """Renders random conversations both ways and compares the results."""
    chance = random.Random(0)
    words = [
        "Hello",
        "x",
        " ",
        "\n",
        "  ",
        "é",
        "日本",
        "{{ x }}",
        "{% if %}",
        "<|im_end|>",
        "[INST]",
        "<<SYS>>",
        "\u2003",
    ]
    words += ["<think>\n", "</think>", "```", "\t", "[/INST]", "<|eot_id|>", "\x1c", "tool_call", "0"]
    template.strftime_now = lambda form: datetime.datetime.now().strftime(form)
    accepted = 0
    for _ in range(CONVERSATIONS):
        length = chance.randrange(1, 9)
        roles = _usual_roles(chance, length) if chance.random() < 0.7 else chance.choices(ROLES, k=length)
        contents = ["".join(chance.choices(words, k=chance.randrange(6))) for _ in roles]
        prompt = chance.random() < 0.5
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        for is_last_try in (False, True):
            today = datetime.date.today()
            expected = template.render(roles, contents, prompt)
            try:
                made = chat_format.render(messages, add_generation_prompt=prompt)
            except InvalidArgument:
                made = None
            if made == expected or is_last_try or today == datetime.date.today():
                break
        if made is not None and made != expected:
            raise _NoTable(
                f"for a conversation of {_listed(roles)} with contents {contents} it "
                + (f"writes {expected!r}, not {made!r}" if expected is not None else "raises an error")
            )
        if made is None and expected is not None and _texts_between(template, roles, prompt) is not None:
            raise _NoTable(f"for a conversation of {_listed(roles)} it writes what none of up to {LONGEST_PROBE} has")
        accepted += made is not None
    if accepted < CONVERSATIONS // 10:
        raise _NoTable("it takes hardly any conversation")


def _usual_roles(chance: random.Random, length: int) -> list[str]:
    turns = [("user", "assistant")[i % 2] for i in range(length)]
    return ["system", *turns] if chance.random() < 0.5 else turns
