"""`accord engine generate`: texts and conversations from a package, on the command's own ranks and on a launcher's."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from accord_command import ACCORD, accord, end, is_running, next_line, start_accord, wait_until
from text_model import CONVERSATIONS, TEXTS, transformers

import accord as library


@pytest.fixture(scope="module")
def endless(text_model, tmp_path_factory) -> Path:
    """The package of a model that never ends a text by itself, so that a generation takes a while."""
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=len(text_model.tokenizer),
        max_position_embeddings=1 << 18,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path_factory.mktemp("endless") / "endless.accord"
    return library.export(model, path=path, sharding="auto", tokenizer=text_model.path.parent)


def generate(path: Path, *arguments: object, **more):
    return accord("engine", "generate", path, *arguments, **more)


def test_the_continuation_of_a_prompt_matches_transformers(text_model):
    result = generate(text_model.path, "--prompt", "Ça", "--stats")
    assert result.returncode == 0, result.stderr
    assert result.stdout == text_model.continued("Ça", 40) + "\n"
    assert re.search(r"3 prompt tokens, 17 answer tokens; first after \d+\.\d", result.stderr)
    assert "tokens/s" in result.stderr


@pytest.mark.parametrize(
    ("launched", "ranks", "options"),
    [
        ([], 2, ["--ranks", 2, "--memory-limit", "100MiB"]),
        ([], 2, ["--ranks", 2, "--group", "pp"]),
        ([], 4, ["--ranks", 4, "--pp", 2, "--canonical-ranks", 2]),
        ([], 4, ["--ranks", 4, "--cp", 2]),
        (["run", "-n", 2, ACCORD], 2, []),
    ],
)
def test_ranks_answer_a_message(text_model, launched, ranks, options):
    result = accord(
        *launched, "engine", "generate", text_model.path, "--chat", "--prompt", TEXTS[2], "--json", *options
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.removeprefix("[0] "))
    assert answer["text"] == TEXTS[3]
    assert (answer["ranks"], answer["finish"]) == (ranks, "stop_token")
    assert answer["completion_tokens"] == len(text_model.tokens(CONVERSATIONS[2][:1], 40))
    assert answer["tokens_per_second"] > 0
    assert 0 < answer["first_token_seconds"] < 60
    assert answer["load_seconds"] > 0


def test_options_match_those_of_the_library(text_model):
    drawn = ["--temperature", 2, "--top-k", 50, "--top-p", 0.95, "--seed", 4, "--max-new-tokens", 15, "--no-stream"]
    expected = library.generate(
        text_model.path, "One", temperature=2.0, top_k=50, top_p=0.95, seed=4, max_new_tokens=15
    ).text
    assert generate(text_model.path, "--prompt", "One", *drawn).stdout == expected + "\n"
    result = generate(text_model.path, "--prompt", "One", "--stop", "two", "--stop", "three")
    assert result.stdout == " 😀 \n"


def test_a_conversation_survives_an_invalid_message(text_model):
    lines = [TEXTS[0], "", "far too long " * 200, TEXTS[1]]
    result = generate(text_model.path, "--interactive", "--ranks", 2, input="\n".join(lines))
    assert result.returncode == 0, result.stderr
    first = text_model.continued(CONVERSATIONS[0][:1], 40)
    messages = [CONVERSATIONS[0][0], {"role": "assistant", "content": first}, {"role": "user", "content": TEXTS[1]}]
    assert result.stdout.splitlines() == [first, text_model.continued(messages, 40)]
    assert "context" in result.stderr


def test_a_system_message_comes_first(text_model):
    messages = [{"role": "system", "content": TEXTS[3]}, *CONVERSATIONS[1][:1]]
    result = generate(text_model.path, "--system", TEXTS[3], "--prompt", TEXTS[1], "--json")
    prompt = text_model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert json.loads(result.stdout)["prompt_tokens"] == len(
        text_model.tokenizer(prompt, add_special_tokens=False).input_ids
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--promt", "x"], 2, 'unknown option "--promt"; did you mean "--prompt"'),
        ([], 2, "--prompt or --interactive is required"),
        (["--prompt", "x", "--interactive"], 2, "excludes"),
        (["--prompt", "x", "--top-p", "2"], 2, "--top-p"),
        (["--prompt", "x", "--temperature", "-1"], 2, "--temperature: -1 is less than 0\n"),
        (["--prompt", "x", "--max-new-tokens", "0"], 2, "--max-new-tokens: 0 is not greater than 0\n"),
        (["--prompt", "x", "--seed", "-1"], 2, "--seed: -1 is less than 0\n"),
        (["--prompt", "x", "--seed", "1.5"], 2, "--seed = 1.5 is not a valid number for this option\n"),
        (["--prompt", "x", "--cache-dtype", "int3"], 1, "int3"),
        (["--prompt", "x " * 300], 1, "context"),
        (["--prompt", "x", "--ranks", 3], 1, "rank"),
        (["--prompt", "x", "--ranks", 3, "--pp", 2], 1, "3 ranks cannot form 2 stages of 1 replicas"),
        (["--prompt", "x", "--memory-limit", "100KiB"], 1, "the limit is 100 KiB"),
        (["--prompt", "x", "--memory-limit", "two"], 1, "--memory-limit"),
        (["--prompt", "x", "--canonical-ranks", 3], 1, "canonical_ranks is 3, which is not a power of two"),
    ],
)
def test_invalid_input_is_an_error(text_model, arguments, code, message):
    result = generate(text_model.path, *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr


def children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def start_endless(endless):
    """Starts a generation on two ranks and returns once it is in progress."""
    started = start_accord("engine", "generate", endless, "--prompt", "One", "--ranks", "2")
    assert started.stdout.read(1) != ""
    (other,) = wait_until(lambda: children_of(started.pid), "the other rank")
    return started, other


def test_the_interrupt_key_ends_an_answer(endless):
    started, other = start_endless(endless)
    try:
        os.kill(started.pid, signal.SIGINT)
        os.kill(other, signal.SIGINT)  # as a terminal does
        _, errors = started.communicate(timeout=20)
        assert started.returncode == 130
        assert errors == "accord engine generate: interrupted\n"
        wait_until(lambda: not is_running(other), "the end of the other rank")
    finally:
        end(started)


def test_the_interrupt_key_ends_a_waiting_conversation(text_model):
    started = start_accord("engine", "generate", text_model.path, "--interactive", stdin=-1)
    try:
        started.stdin.write(TEXTS[0] + "\n")
        started.stdin.flush()
        assert next_line(started.stdout) == TEXTS[1] + "\n"
        os.kill(started.pid, signal.SIGINT)
        assert started.wait(timeout=20) == 130
    finally:
        end(started)


def test_a_rank_that_dies_ends_the_command(endless):
    started, other = start_endless(endless)
    try:
        os.kill(other, signal.SIGKILL)
        _, errors = started.communicate(timeout=20)
        assert started.returncode == 1
        assert "peer_lost" in errors
        assert "rank 1" in errors
    finally:
        end(started)
