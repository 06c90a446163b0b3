"""A small Llama that has learned to call tools in the format of Hermes and Qwen, and a template that takes tools."""

from __future__ import annotations

import json
from pathlib import Path

from text_model import TextModel, make_tokenizer, trained_model

TEMPLATE = """{% if tools %}<|im_start|>system
Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}.
{# arguments of a <tool_call> #}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}{% if message.content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def function(name: str, **properties: dict) -> dict:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [
    function("weather", city={"type": "string", "maxLength": 12}),
    function("add", a={"type": "integer"}, b={"type": "integer"}),
]


def call(name: str, **arguments: object) -> dict:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(text: str) -> dict:
    return {"role": "user", "content": text}


def answers(content: str, *calls: dict) -> dict:
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})


WEATHER = [asks("Is it warm?"), answers("", call("weather", city='Köln "Süd" {'))]
BOTH = [asks("Do both."), answers("I try.", call("weather", city="Bonn"), call("add", a=1, b=22))]
GREETING = [asks("Hello"), answers("Hi <tool> there")]
RESULT = [*WEATHER, {"role": "tool", "content": "12 C", "tool_call_id": "call_1"}, answers("It is 12 C.")]
CONVERSATIONS = [WEATHER, BOTH, GREETING, RESULT]


def make_tool_model(folder: Path) -> TextModel:
    """Creates the model and exports it to a package in `folder`."""
    corpus = [json.dumps(conversation, ensure_ascii=False) for conversation in CONVERSATIONS] + [TEMPLATE] * 4
    tokenizer = make_tokenizer(folder, corpus, TEMPLATE)
    lessons = [
        tokenizer.apply_chat_template(conversation, tools=TOOLS, tokenize=False) for conversation in CONVERSATIONS
    ]
    return trained_model(folder, tokenizer, lessons, rounds=200)
