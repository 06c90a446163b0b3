"""The page at /: what it refers to exists, and a user chats in a browser."""

import re
from pathlib import Path

import pytest
from accord_command import process_state, wait_until
from browser import Page, opened
from http_clients import ask, metric
from served_model import served
from text_model import CONVERSATIONS

pytest.importorskip("starlette")
import accord.serve

PAGE = Path(accord.serve.__file__).with_name("page.html")


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
def test_a_chat_in_a_browser(server, text_model, question):
    with opened(server.url) as page:
        page.wait_ready()
        assert page.models() == [server.name]
        shown = answer_of(page, question)
        assert shown[0] == ("message user", question, "")
        _, text, note = shown[1]
        assert text == text_model.continued([{"role": "user", "content": question}], 60)
        assert re.match(r"\d+ tokens, first after \d+ ms", note)
        page.wait(lambda: page.element("cache").text.endswith(" %"))
        head, *rows = page.rows("ranks")
        assert head[:2] == [server.name, "ready"]
        assert [row[0] for row in rows] == ["0", "1"]
        assert all(row[1].endswith(" MiB") for row in rows)
        assert page.errors() == []
        assert all(address.startswith(f"{server.url}/") for address in page.addresses())


def test_a_conversation_goes_on_and_is_cleared(server, text_model):
    conversation = []
    with opened(server.url) as page:
        page.wait_ready()
        for turn in range(2):
            conversation.append({"role": "user", "content": CONVERSATIONS[turn][0]["content"]})
            shown = answer_of(page, conversation[-1]["content"])
            conversation.append({"role": "assistant", "content": text_model.continued(conversation, 60)})
            assert [text for _, text, _ in shown] == [message["content"] for message in conversation]
        page.element("clear").click()
        assert page.messages() == []
        (_, first, _), _ = answer_of(page, "Hello")
        assert first == "Hello"


def test_an_answer_is_stopped(endless):
    with served(endless) as server, opened(server.url) as page:
        page.wait_ready()
        page.send("One")
        page.wait(lambda: len(page.messages()) == 2 and page.messages()[1][1])
        page.element("stop").click()
        page.wait(lambda: not page.is_answering())
        assert page.messages()[1][2] == "stopped"
        wait_until(lambda: metric(server, "accord_open_requests") == 0, "the request is cancelled")


def test_the_page_says_what_is_wrong(text_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with served(text_model.path, "--api-keys", keys) as server, opened(server.url) as page:
        page.wait(lambda: "API key" in page.element("state").text)
        page.enter("key", "secret")
        page.wait_ready()
        page.enter("max_tokens", 100_000)
        page.send("Hello")
        page.wait(lambda: len(page.messages()) == 2 and not page.is_answering())
        kind, _, note = page.messages()[1]
        assert kind == "message assistant error"
        assert "exceed the context" in note


def test_the_page_offers_the_models_that_generate_text(text_model, tool_model, encoder_model):
    question = "Hello"  # to which only the second one has learned an answer
    packages = (f"first={text_model.path}", f"encoder={encoder_model.path}", f"second={tool_model.path}")
    with served(*packages) as server, opened(server.url) as page:
        page.wait_ready()
        assert page.models() == ["first", "second"]
        page.choose("second")
        _, (_, answer, _) = answer_of(page, question)
        assert [row[0] for row in page.rows("ranks")] == ["first", "0", "encoder", "0", "second", "0"]
    assert answer == tool_model.continued([{"role": "user", "content": question}], 60)


def answer_of(page: Page, question: str) -> list[tuple[str, str, str]]:
    """Asks a question, and returns the messages once it has been answered."""
    page.enter("temperature", 0)
    page.enter("max_tokens", 60)
    before = len(page.messages())
    page.send(question)
    page.wait(lambda: len(page.messages()) == before + 2 and not page.is_answering())
    return page.messages()
