"""Chat formats: tables that are derived from templates and render conversations as transformers renders the
templates."""

import json
import random

import pytest
from chat_templates import NO_TABLES, SMOLLM2, TABLES
from tokenizer_kinds import of_kind
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

import accord
import accord.chat_format

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<x>"]}


def conversations(count: int):
    chance = random.Random(42)
    words = ["Hello", " ", "\n", "é", "</s>", "日本", "\u00a0", "\x1f", "<|im_start|>", "{{", "''", "\\n"]
    for i in range(count):
        roles = ["user", "assistant"] * 4 if i % 3 else ["system", "user", "assistant", "user", "user", "system"]
        begin = chance.randrange(2)
        roles = roles[begin : begin + chance.randrange(1, 7)]
        yield [{"role": r, "content": "".join(chance.choices(words, k=chance.randrange(5)))} for r in roles]


@pytest.mark.parametrize("name", TABLES)
def test_rendered_conversations_match_transformers(name):
    chat_format = accord.ChatFormat.parse(accord.chat_format.derive(TABLES[name], SPECIAL))
    rendered = 0
    for messages in conversations(150):
        for prompt in (True, False):
            try:
                made = chat_format.render(messages, add_generation_prompt=prompt)
            except accord.InvalidArgument as error:
                made = str(error)
                assert "this chat format does not allow a message of" in made
            try:
                ((expected,), _) = render_jinja_template(
                    [messages], chat_template=TABLES[name], add_generation_prompt=prompt, **SPECIAL
                )
            except Exception:
                assert "does not allow a message of" in made
            else:
                # Llama 2's template omits a system message that nothing follows.
                assert made == expected or [m["role"] for m in messages] == ["system"]
                rendered += made == expected
    assert rendered > 50


@pytest.mark.parametrize("name", NO_TABLES)
def test_an_unsupported_template_is_rejected_with_the_reason(name):
    template, reason = NO_TABLES[name]
    document = json.loads(accord.chat_format.derive(template, SPECIAL))
    assert reason in document["unsupported"]
    with pytest.raises(accord.Unsupported, match="the model's chat template cannot be expressed in this ") as error:
        accord.ChatFormat.parse(json.dumps(document))
    assert reason in str(error.value)


def test_a_file_is_read_and_errors_name_it(tmp_path):
    path = tmp_path / "chat_format.json"
    document = accord.chat_format.derive(SMOLLM2)
    path.write_text(document)
    user = [{"role": "user", "content": "Hi"}]
    assert accord.ChatFormat.load(path).render(user) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    whole = json.loads(document)
    for key in whole.keys() - {"template", "special_tokens"}:  # which are only kept
        for damaged in ({k: v for k, v in whole.items() if k != key}, {**whole, key: 7}, {**whole, key + "s": 1}):
            path.write_text(json.dumps(damaged))
            with pytest.raises((accord.Corrupt, accord.Unsupported), match=str(path)):
                accord.ChatFormat.load(path)


@pytest.mark.parametrize("place", ["config", "list", "file"])
def test_text_and_ids_from_a_models_folder_match_transformers(tmp_path, place):
    of_kind("smollm2").save(str(tmp_path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"__type": "AddedToken", "content": "<s>"},
        "eos_token": "</s>",
    }
    template = TABLES["Mistral"]
    if place == "config":
        config["chat_template"] = template
    elif place == "list":
        config["chat_template"] = [{"name": "tool_use", "template": ""}, {"name": "default", "template": template}]
    else:
        (tmp_path / "chat_template.jinja").write_text(template)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokenizer = accord.Tokenizer.load(tmp_path / "tokenizer.json")
    chat_format = accord.ChatFormat.parse(accord.chat_format.of_folder(tmp_path))
    messages = [{"role": r, "content": f"{r} says 12 <s>"} for r in ("user", "assistant", "user")]
    text = chat_format.render(messages)
    assert text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode(text, add_special_tokens=False) == ids


def test_a_folder_without_a_template_has_no_chat_format(tmp_path):
    assert accord.chat_format.of_folder(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null}')
    assert accord.chat_format.of_folder(tmp_path) is None


@pytest.mark.parametrize("messages", [[], [{"role": "robot", "content": "x"}]])
def test_an_invalid_conversation_is_an_error(messages):
    chat_format = accord.ChatFormat.parse(accord.chat_format.derive(SMOLLM2))
    with pytest.raises(accord.InvalidArgument):
        chat_format.render(messages)


def test_a_message_without_content_is_an_error():
    with pytest.raises(KeyError):
        accord.ChatFormat.parse(accord.chat_format.derive(SMOLLM2)).render([{"role": "user"}])
