"""Calls whose arguments are elements of XML: what the templates of the models write is read with the types of the
tool's schema, and required calls conform to it."""

import json
import random
import shutil

import pytest
from served_model import served
from tool_answers import accepts, parsed, split, tokenizer_with

import accord
from accord.serve.tool_formats import FORMATS, calls_grammar, format_of

jinja2 = pytest.importorskip("jinja2")
jsonschema = pytest.importorskip("jsonschema")
openai = pytest.importorskip("openai")

# The parts of the models' chat templates that write calls.
TEMPLATES = {
    "Qwen 3 Coder": """{%- for tool_call in calls %}
{{- '' if loop.first else '\\n' }}{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
{%- for args_name, args_value in tool_call.arguments|items %}
{{- '<parameter=' + args_name + '>\\n' }}
{%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is
not string) else args_value | string %}
{{- args_value }}
{{- '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}""",
    "GLM 4.5": """{%- for tc in calls %}
{{- '' if loop.first else '\\n' }}{{- '<tool_call>' + tc.name }}
{% for k, v in tc.arguments.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}""",
}
BY_NAME = {form.name: form for form in FORMATS}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "postcode": {"$ref": "#/$defs/code"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "near": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "ratio": {"type": ["number", "string"]},
        "parts": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object"},
        "unit": {"anyOf": [{"enum": ["C", "F"], "type": "string"}, {"type": "null"}]},
        "kind": {"const": "now", "type": "string"},
        "any": {},
    },
    "required": ["city"],
    "$defs": {"code": {"type": "string", "maxLength": 5}},
}
SCHEMAS = {"get-weather": SCHEMA, "stop": {"type": "object", "properties": {}}}
ARGUMENTS = {
    "city": 'Köln "Süd"\n  </p> & <b>',
    "postcode": "01067",
    "days": 3,
    "exact": True,
    "near": "null and void",
    "ratio": 0.5,
    "parts": ["a", "b\n"],
    "place": {"x": 1, "y": None},
    "unit": "F",
    "kind": "now",
    "any": [1, "2"],
}
CALLS = [{"name": "get-weather", "arguments": ARGUMENTS}, {"name": "stop", "arguments": {}}]


def written(name: str, calls: list[dict]) -> str:
    """Returns the text that the model's template writes for calls."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATES[name]).render(calls=calls)


def calls_in(name: str, pieces, **more) -> tuple[str, list[tuple[str, dict]]]:
    text, calls = parsed(BY_NAME[name], pieces, schemas=SCHEMAS, **more)
    return text, [(called, json.loads(arguments)) for called, arguments in calls]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_templates_write_is_read_in_pieces_of_every_size(name):
    answer = written(name, CALLS)
    expected = [(call["name"], call["arguments"]) for call in CALLS]
    assert calls_in(name, [answer]) == ("", expected)
    assert calls_in(name, answer) == ("", expected)  # a character at a time
    chance = random.Random(1)
    for _ in range(50):
        assert calls_in(name, split(answer, chance)) == ("", expected)
    assert calls_in(name, "I look.\n" + answer) == ("I look.", expected)
    assert calls_in(name, answer, single=True) == ("", expected[:1])
    assert calls_in(name, answer.replace(">\n<", "><")) == ("", expected)


@pytest.mark.parametrize("name", TEMPLATES)
def test_formats_are_known_by_their_templates(name):
    assert format_of(TEMPLATES[name]).name == name


@pytest.mark.parametrize("name", TEMPLATES)
def test_values_have_the_types_of_the_schema(name):
    """A text stays one, whatever it looks like; where the schema does not tell, JSON is read."""
    written_values = {"city": "12", "near": "null", "ratio": "half", "days": "many", "any": "12", "unknown": "[1]"}
    answer = written(name, [{"name": "get-weather", "arguments": written_values}])
    read = {"city": "12", "near": None, "ratio": "half", "days": "many", "any": 12, "unknown": [1]}
    assert calls_in(name, answer) == ("", [("get-weather", read)])
    for word, value in {"True": True, "false": False}.items():
        answer = written(name, [{"name": "get-weather", "arguments": {"exact": word}}])
        assert calls_in(name, answer) == ("", [("get-weather", {"exact": value})])


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["Hello", "", "<tool", " a <tool_call b> x", "x\n\n<", "\n", "<parameter=x>"])
def test_other_answers_stay_texts(name, text):
    assert calls_in(name, text) == (text, [])
    assert calls_in(name, [text]) == (text, [])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_that_was_cut_keeps_whole_arguments(name):
    answer = written(name, CALLS)
    _, calls = parsed(BY_NAME[name], answer[: answer.index("b\\n")], schemas=SCHEMAS)
    ((called, arguments),) = calls
    assert called == "get-weather"
    kept = {key: ARGUMENTS[key] for key in ("city", "postcode", "days", "exact", "near", "ratio")}
    assert json.loads(arguments + "}") == kept


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("special", [False, True])
def test_the_grammar_allows_calls_with_valid_arguments_only(name, special):
    """Also where texts of the format are special tokens."""
    form = BY_NAME[name]
    tokenizer = tokenizer_with(sorted(form.special_texts) if special else [])

    def allowed(arguments: dict, most: int = 2) -> bool:
        answer = written(name, [{"name": "get-weather", "arguments": arguments}, CALLS[1]])
        return accepts(tokenizer, calls_grammar(form, list(SCHEMAS.items()), tokenizer, most=most), answer)

    valid = ARGUMENTS | {"exact": "true"}
    assert allowed(valid)
    assert allowed({"city": ""})
    assert allowed({"city": "x < y <</p>", "unit": "C"})
    assert not allowed(valid, most=1)
    assert not allowed({"unit": "C"})  # city is missing
    assert allowed({"city": "x", "near": "null", "unit": "null"})
    assert not allowed({"city": "x", "unit": "K"})
    assert not allowed({"city": "x", "kind": "then"})
    assert not allowed({"city": "x", "days": "many"})
    assert not allowed({"city": "x", "postcode": "010678"})
    assert not allowed({"city": "x", "other": "y"})


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("special", [False, True])
def test_the_grammar_allows_texts_and_other_answers_beside_calls(name, special):
    form = BY_NAME[name]
    tokenizer = tokenizer_with(sorted(form.special_texts) if special else [])
    tools = [("get-weather", SCHEMA), ("free", {"type": "object"})]
    valid, free = (
        {"name": "get-weather", "arguments": {"city": "Bonn"}},
        {"name": "free", "arguments": {"a": "1 <b>"}},
    )
    answer = written(name, [valid, free])
    invalid = answer.replace("city", "town")
    after_text = calls_grammar(form, tools, tokenizer, most=2, with_text=True)
    for text in ("", "Hello", "a < b\n<tool"):
        assert accepts(tokenizer, after_text, text)
        assert accepts(tokenizer, after_text, text + answer)
        assert not accepts(tokenizer, after_text, text + invalid)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    or_answer = calls_grammar(form, tools, tokenizer, most=2, answer=schema)
    assert accepts(tokenizer, or_answer, '{"n": 12}')
    assert accepts(tokenizer, or_answer, answer)
    assert not accepts(tokenizer, or_answer, invalid)
    assert not accepts(tokenizer, or_answer, '{"n": "12"}')


def test_a_schema_that_cannot_be_enforced_is_named():
    text = {"type": "string", "pattern": "^[a-z]+$"}
    for schema in (text, {"anyOf": [text, {"type": "null"}]}):
        tools = [("f", {"type": "object", "properties": {"day": schema}})]
        with pytest.raises(accord.InvalidArgument, match='"pattern" of the argument "day"'):
            calls_grammar(BY_NAME["GLM 4.5"], tools, tokenizer_with([]), most=1)


@pytest.mark.parametrize("name", TEMPLATES)
def test_required_calls_of_a_server_conform_to_their_schemas(tool_model, tmp_path, name):
    """A model that knows another format, with the template of this one."""
    source = tool_model.path.parent
    shutil.copy(source / "tokenizer.json", tmp_path)
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["chat_template"] += f"{{% set calls = [] %}}{TEMPLATES[name]}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    path = tmp_path / "model.accord"
    package = accord.export(tool_model.model, path=path, sharding="auto", tokenizer=tmp_path)
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "get-weather", "parameters": schema}}]
    options = {"messages": [{"role": "user", "content": "Hello"}], "tools": tools, "tool_choice": "required"}
    with served(package) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        made = client.chat.completions.create(
            model=server.name, n=6, temperature=1.7, seed=3, max_tokens=200, parallel_tool_calls=False, **options
        )
    complete = [choice for choice in made.choices if choice.finish_reason == "tool_calls"]
    assert complete
    for choice in complete:
        (call,) = choice.message.tool_calls
        assert call.function.name == "get-weather"
        jsonschema.validate(json.loads(call.function.arguments), schema)
