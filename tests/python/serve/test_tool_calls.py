"""Calls in answers of each format, as the models' authors describe them, in pieces of every size."""

import json
import random
from types import SimpleNamespace

import pytest
from tool_answers import accepts, parsed, split, tokenizer_with

from accord.serve.answer import Choice, Piece
from accord.serve.generation import NewToken
from accord.serve.tool_calls import ToolCallParser, joined
from accord.serve.tool_formats import FORMATS, calls_grammar, format_of

BY_NAME = {form.name: form for form in FORMATS}
ARGUMENTS = ['{"city": "Köln \\"}{\\" \\\\", "days": [1, {"x": null}]}', "{}"]
ANSWERS = {
    "DeepSeek V3": "<｜tool▁calls▁begin｜>"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get-weather\n```json\n%s\n```<｜tool▁call▁end｜>"
    "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add_2\n```json\n%s\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "DeepSeek V3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get-weather<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>add_2<｜tool▁sep｜>%s<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "Phi 4": '<|tool_call|>[{"name": "get-weather", "arguments": %s}, {"name": "add_2", "arguments": %s}]'
    "<|/tool_call|>",
    "Granite": '<|tool_call|>[{"name": "get-weather", "arguments": %s}, {"name": "add_2", "arguments": %s}]',
    "Mistral with [ARGS]": "[TOOL_CALLS]get-weather[ARGS]%s[TOOL_CALLS]add_2[ARGS]%s",
    "Mistral": '[TOOL_CALLS] [{"name": "get-weather", "arguments": %s}, {"name": "add_2", "arguments": %s}]',
    "Hermes": '<tool_call>\n{"name": "get-weather", "arguments": %s}\n</tool_call>\n'
    '<tool_call>\n{"name": "add_2", "arguments": %s}\n</tool_call>',
    "Llama 3": '{"name": "get-weather", "parameters": %s}; {"name": "add_2", "parameters": %s}',
}


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_are_found_in_pieces_of_every_size(name):
    form = BY_NAME[name]
    answer = ANSWERS[name] % tuple(ARGUMENTS)
    expected = [("get-weather", ARGUMENTS[0]), ("add_2", ARGUMENTS[1])]
    assert parsed(form, [answer]) == ("", expected)
    assert parsed(form, answer) == ("", expected)  # a character at a time
    chance = random.Random(1)
    for _ in range(50):
        assert parsed(form, split(answer, chance)) == ("", expected)
    compact = answer.replace(", {", ",{").replace('": ', '":').replace(">\n", ">").replace("] [", "][")
    assert [call for call, _ in parsed(form, compact)[1]] == ["get-weather", "add_2"]
    assert parsed(form, answer, single=True) == ("", expected[:1])
    if form.begin:
        for begin in ("I look.\n", "a < b [T "):
            assert parsed(form, begin + answer) == (begin.rstrip(), expected)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    "text", ["Hello", "", "<tool", "[TOOL_", " a <tool_call b> x", 'so {"name": 1}', "x\n\n<", "\n"]
)
def test_other_answers_stay_texts(name, text):
    assert parsed(BY_NAME[name], text) == (text, [])
    assert parsed(BY_NAME[name], [text]) == (text, [])


def test_a_call_that_is_not_one_stays_a_text():
    for text in ('<tool_call>\n{"nam": "x"}', "<tool_call>" + "x" * 2000, "<tool_call>x</tool_call> and more"):
        assert parsed(BY_NAME["Hermes"], text) == (text, [])
    text = '{"name": "x", "other": {}}'
    assert parsed(BY_NAME["Llama 3"], text) == (text, [])


def test_a_call_that_was_cut_keeps_what_there_is():
    text = (ANSWERS["Hermes"] % tuple(ARGUMENTS)).partition('", "days"')[0]
    assert parsed(BY_NAME["Hermes"], text) == ("", [("get-weather", '{"city": "Köln \\"}{\\" \\\\')])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (
            '... <tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>',
            "Hermes",
        ),
        ("{{- '<tool_call>\\n<function=' + tool_call.name }} {{ tool_call.arguments }}", None),
        ("{{ '[TOOL_CALLS] [' }}", "Mistral"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", "Mistral with [ARGS]"),
        ("""{{- '"parameters": ' }} {{- "<|start_header_id|>ipython<|end_header_id|>" }}""", "Llama 3"),
        ("{{ '<|tool_call|>' }}", "Granite"),
        ("{{ '<|tool_call|>' }}{{ '<|/tool_call|>' }}", "Phi 4"),
        ("{{ message.content }}", None),
    ],
)
def test_formats_are_known_by_their_templates(template, name):
    form = format_of(template)
    assert (form and form.name) == name


TOOLS = [
    ("get-weather", {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
                     "additionalProperties": False, "$defs": {"city": {"type": "string", "maxLength": 5}}}),
    ("add_2", {"type": "object", "properties": {}, "additionalProperties": False}),
]  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("special", [False, True])
def test_the_grammar_allows_calls_with_valid_arguments_only(name, special):
    """Also where texts of the format are special tokens."""
    form = BY_NAME[name]
    answer = ANSWERS[name] % ('{"city": "Bonn"}', "{}")
    tokenizer = tokenizer_with(sorted(form.special_texts) if special else [])
    made = calls_grammar(form, TOOLS, tokenizer, most=2)
    assert accepts(tokenizer, made, answer)
    assert accepts(tokenizer, made, ANSWERS[name] % ('{"city":"Bonn"}', "{}"))
    assert not accepts(tokenizer, made, answer.replace("Bonn", "Berlin"))
    assert not accepts(tokenizer, made, answer.replace("get-weather", "get"))
    assert not accepts(tokenizer, calls_grammar(form, TOOLS, tokenizer, most=1), answer)
    assert not accepts(tokenizer, made, "Hello")


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("special", [False, True])
def test_the_grammar_allows_texts_beside_valid_calls(name, special):
    form = BY_NAME[name]
    answer = ANSWERS[name] % ('{"city": "Bonn"}', "{}")
    tokenizer = tokenizer_with(sorted(form.special_texts) if special else [])
    made = calls_grammar(form, TOOLS, tokenizer, most=2, with_text=True)
    for text in ("", "Hello", "a < b [T\n<tool"):
        assert accepts(tokenizer, made, text)
        if form.begin:
            assert accepts(tokenizer, made, text + answer)
            assert not accepts(tokenizer, made, text + answer.replace("Bonn", "Berlin"))
    assert accepts(tokenizer, made, answer)
    assert not accepts(tokenizer, made, answer.replace("get-weather", "get"))
    assert not accepts(tokenizer, made, answer.replace("Bonn", "Berlin"))


@pytest.mark.parametrize("name", [name for name in ANSWERS if BY_NAME[name].begin])
def test_the_grammar_allows_an_answer_in_place_of_calls(name):
    form = BY_NAME[name]
    tokenizer = tokenizer_with(sorted(form.special_texts))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    made = calls_grammar(form, TOOLS, tokenizer, most=2, answer=schema | {"additionalProperties": False})
    assert accepts(tokenizer, made, '{"n": 12}')
    assert accepts(tokenizer, made, ANSWERS[name] % ('{"city": "Bonn"}', "{}"))
    assert not accepts(tokenizer, made, "Hello")
    assert not accepts(tokenizer, made, '{"n": "12"}')


def test_arguments_are_those_of_the_call():
    for name, answer in ANSWERS.items():
        _, calls = parsed(BY_NAME[name], answer % tuple(ARGUMENTS))
        assert [json.loads(arguments) for _, arguments in calls] == [json.loads(text) for text in ARGUMENTS]


def test_what_models_add_or_leave_out_is_accepted():
    expected = [("get-weather", ARGUMENTS[0]), ("add_2", ARGUMENTS[1])]
    with_ids = (
        '[TOOL_CALLS][{"name": "get-weather", "arguments": %s, "id": "a1B2c3D4e"}, '
        '{"name":"add_2","arguments":%s,"id":"1"}]'
    )
    assert parsed(BY_NAME["Mistral"], with_ids % tuple(ARGUMENTS)) == ("", expected)
    alone = (
        '<|tool_call|>{"name": "get-weather", "arguments": %s}<|/tool_call|>'
        '<|tool_call|>{"name": "add_2", "arguments": %s}<|/tool_call|>'
    )
    assert parsed(BY_NAME["Phi 4"], alone % tuple(ARGUMENTS)) == ("", expected)


@pytest.mark.parametrize("name", ANSWERS)
def test_special_tokens_are_part_of_calls_and_of_nothing_else(name):
    form = BY_NAME[name]
    tokenizer = tokenizer_with(["<think>", "<|python_tag|>", *sorted(form.special_texts)])
    choice = Choice(SimpleNamespace(tokenizer=tokenizer), [], ToolCallParser(form, single=False, schemas={}))
    text = "" if name == "Llama 3" else "<think>Well."
    piece = Piece()
    tokens = tokenizer.encode(text + "<|python_tag|>" + ANSWERS[name] % tuple(ARGUMENTS))
    for token in [*tokens, 0]:
        choice.push(NewToken(0, token, "" if token else "stop_token"), piece)
    assert [(call.name, call.arguments) for call in joined(piece.calls)] == [
        ("get-weather", ARGUMENTS[0]),
        ("add_2", ARGUMENTS[1]),
    ]
    assert (piece.text, piece.finish) == (text.removeprefix("<think>"), "tool_calls")
