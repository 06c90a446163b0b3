"""The page at /, without a browser: what it refers to exists, and its script, run by Node, chats with the server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from accord_command import process_state
from http_clients import ask
from served_model import ServedModel, served
from text_model import CONVERSATIONS

pytest.importorskip("starlette")
import accord.serve

PAGE = Path(accord.serve.__file__).with_name("page.html")
RUNNER = Path(__file__).with_name("page_runner.js")


def metric_names(server) -> set[str]:
    return set(re.findall(r"^accord_([a-z_]+)", ask(server, "/metrics")[2], re.MULTILINE))


def test_the_page_is_served_and_nothing_comes_from_outside(server):
    status, headers, text = ask(server, "/")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert text == PAGE.read_text(encoding="utf-8")
    assert not re.search(r"https?://|//[a-z]+\.|src=|href=|@import|url\(", text)


def test_what_the_page_calls_and_shows_exists(server):
    text = PAGE.read_text(encoding="utf-8")
    paths = set(re.findall(r'fetch\("([^"]+)"', text))
    assert paths == {"ready", "v1/models", "metrics", "v1/chat/completions"}
    for path in paths:
        assert ask(server, f"/{path}")[0] in (200, 405)
    used = set(re.findall(r"now\.([a-z_]+)", text)) | set(re.findall(r'perSecond\("([a-z_]+)"\)', text))
    assert len(used) > 5
    assert used <= metric_names(server)
    defined = set(re.findall(r' id="(\w+)"', text))
    assert set(re.findall(r'element\("(\w+)"\)', text)) <= defined


def test_metrics_by_rank_are_those_of_the_processes(server):
    processes = server.rank_processes()
    text = ask(server, "/metrics")[2]
    for rank, process in processes.items():
        assert process_state(process) not in "ZX"
        labels = f'{{model="{server.name}",rank="{rank}"}}'
        (shown,) = re.findall(rf"^accord_rank_memory_bytes{labels} (\S+)$", text, re.MULTILINE)
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        (resident,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
        assert 0.8 * resident < float(shown) < 1.25 * resident
        (seconds,) = re.findall(rf"^accord_rank_cpu_seconds_total{labels} (\S+)$", text, re.MULTILINE)
        assert float(seconds) > 0
    assert len(re.findall(r"^accord_rank_memory_bytes{", text, re.MULTILINE)) == len(processes) == 2


@pytest.mark.parametrize("question", [CONVERSATIONS[0][0]["content"], CONVERSATIONS[2][0]["content"]])
def test_a_chat_by_the_pages_script(server, text_model, question):
    shown = shown_after_chat(server, question, server.name)
    assert (shown["models"], shown["state"]) == ([server.name], "ready")
    asked, answered = shown["messages"]
    assert (asked["role"], asked["text"]) == ("message user", question)
    assert answered["text"] == text_model.continued([{"role": "user", "content": question}], 60)
    assert re.match(r"\d+ tokens, first after \d+ ms", answered["note"])
    head, *rows = shown["ranks"]
    assert head[:2] == [server.name, "ready"]
    assert [row[0] for row in rows] == ["0", "1"]
    assert all(row[1].endswith(" MiB") for row in rows)
    assert shown["cache"].endswith(" %")


def test_the_page_offers_the_models_that_generate_text(text_model, tool_model, encoder_model):
    question = "Hello"  # to which only the second one has learned an answer
    packages = (f"first={text_model.path}", f"encoder={encoder_model.path}", f"second={tool_model.path}")
    with served(*packages) as server:
        shown = shown_after_chat(server, question, "second")
    assert (shown["models"], shown["state"]) == (["first", "second"], "ready")
    _, answered = shown["messages"]
    assert answered["text"] == tool_model.continued([{"role": "user", "content": question}], 60)
    assert [row[0] for row in shown["ranks"]] == ["first", "0", "encoder", "0", "second", "0"]


def shown_after_chat(server: ServedModel, question: str, model: str) -> dict:
    """Returns what the page shows after a question to a model."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    words = [node, RUNNER, server.url, PAGE, question, model]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
