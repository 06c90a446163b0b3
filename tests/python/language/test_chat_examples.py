"""examples/chat.cpp and examples/chat.c: conversations on two ranks, invalid messages, killed ranks."""

import signal
import socket
import subprocess

import pytest
from accord_command import ACCORD, BUILD, clean_environment, end, next_line
from text_model import TEXTS

EXAMPLES = ["chat", "chat_c"]


def program(name: str):
    path = BUILD / "examples" / name
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


@pytest.mark.parametrize("example", EXAMPLES)
def test_messages_are_answered_after_an_invalid_one(text_model, example):
    lines = "\n".join([TEXTS[2], "far too long " * 200, TEXTS[2]])
    command = [ACCORD, "run", "-n", "2", program(example), text_model.path]
    result = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert result.returncode == 0, result.stderr
    question, answer = {"role": "user", "content": TEXTS[2]}, {"role": "assistant", "content": TEXTS[3]}
    conversation = [question, answer, question] if example == "chat" else [question]
    expected = f"{TEXTS[3]}\n{text_model.continued(conversation, 100)}"
    assert result.stdout.splitlines() == [f"[0] {line}" for line in expected.splitlines()]
    assert "[0] not answered: " in result.stderr
    assert "context" in result.stderr


def start_ranks(example: str, package) -> list[subprocess.Popen]:
    """Starts two ranks without a launcher, because a launcher would end one rank when the other fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = clean_environment(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen([program(example), package], env=place | {"RANK": str(r)}, **pipes) for r in range(2)]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_killed_rank_ends_the_other_one(text_model, example, victim):
    ranks = start_ranks(example, text_model.path)
    try:
        ranks[0].stdin.write(TEXTS[2] + "\n")
        ranks[0].stdin.flush()
        assert next_line(ranks[0].stdout) == TEXTS[3] + "\n"
        ranks[victim].send_signal(signal.SIGKILL)
        ranks[victim].wait(timeout=20)
        left = ranks[1 - victim]
        _, errors = left.communicate(TEXTS[2] + "\n" if victim == 1 else None, timeout=20)
        assert left.returncode == 1
        assert "peer_lost" in errors
        assert f"rank {victim}" in errors
    finally:
        end(*ranks)
