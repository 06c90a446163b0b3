"""Limits, keys, TLS, clients that misbehave, and how the server starts and ends."""

import json
import os
import shutil
import signal
import socket
import ssl
import threading

import pytest
from accord_command import is_running, wait_until
from http_clients import LONG, ask, connect, endless_streams, make_certificate, metric, send_request
from served_model import ServedModel, serve_fails, served

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def limited(endless):
    """A server with small limits."""
    options = ("--max-requests", 3, "--max-body-bytes", 20000, "--request-seconds", 4, "--max-tokens", 8000)
    with served(endless, *options, ranks=1) as running:
        yield running


def test_more_requests_than_the_limit_are_told_when_to_try_again(limited):
    streams = endless_streams(limited, 3)
    status, headers, text = ask(limited, "/v1/completions", {"model": limited.name, "prompt": "One"})
    assert (status, headers["Retry-After"]) == (429, "1")
    assert json.loads(text)["error"]["code"] == "too_many_requests"
    for stream in streams:
        stream.close()
    wait_until(lambda: metric(limited, "accord_open_requests") == 0, "requests of clients that have gone are cancelled")
    assert ask(limited, "/v1/completions", {"model": limited.name, "prompt": "One"})[0] == 200


def test_a_request_whose_client_goes_is_cancelled_without_a_stream_too(limited):
    with connect(limited) as connection:
        send_request(connection, LONG | {"model": limited.name, "stream": False})
        wait_until(lambda: metric(limited, "accord_open_requests") == 1, "the request runs")
    wait_until(lambda: metric(limited, "accord_open_requests") == 0, "the request is cancelled", seconds=3)


def test_a_client_that_asks_to_close_gets_its_answer(limited):
    with connect(limited) as connection:
        send_request(connection, {"model": limited.name, "prompt": "One", "max_tokens": 5}, Connection="close")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert b'"completion_tokens":5' in answer


def test_a_request_that_takes_too_long_ends_with_an_error(limited):
    status, _, text = ask(limited, "/v1/completions", LONG | {"model": limited.name, "stream": False})
    if status != 200:  # a fast machine is done in time
        assert (status, json.loads(text)["error"]["code"]) == (504, "timeout")
    assert metric(limited, "accord_open_requests") == 0


def test_an_answer_of_more_tokens_than_the_limit_is_refused(limited):
    status, _, text = ask(limited, "/v1/completions", LONG | {"model": limited.name, "max_tokens": 8001})
    assert (status, json.loads(text)["error"]["param"]) == (400, "max_tokens")


def test_a_body_that_is_too_large_is_refused_before_it_has_arrived(limited):
    with connect(limited) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
    with connect(limited) as connection:  # without a length
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(6):
            connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_clients_that_say_nothing_or_read_nothing_do_not_disturb_others(limited):
    silent = [connect(limited) for _ in range(300)]
    (slow,) = endless_streams(limited, 1)  # nothing of it is read
    answer = ask(limited, "/v1/completions", {"model": limited.name, "prompt": "One", "max_tokens": 20})
    assert answer[0] == 200
    for connection in [*silent, slow]:
        connection.close()
    wait_until(lambda: metric(limited, "accord_open_requests") == 0, "the slow stream is cancelled")


def test_a_web_page_may_call_the_server_only_if_its_origin_is_allowed(text_model, limited):
    headers = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in ask(limited, "/health", **headers)[1]
    with served(text_model.path, "--cors-origins", "https://page.example,https://other.example") as server:
        assert ask(server, "/health", **headers)[1]["access-control-allow-origin"] == headers["Origin"]
        assert "access-control-allow-origin" not in ask(server, "/health", Origin="https://evil.example")[1]


def test_requests_need_one_of_the_keys(text_model, tmp_path):
    (tmp_path / "keys").write_text("# for the tests\nfirst-key\n\nsecond-key\n")
    body = {"model": text_model.path.stem, "prompt": "The quick", "max_tokens": 2}
    with served(text_model.path, "--api-keys", tmp_path / "keys") as server:
        for key in ("first-key", "second-key"):
            assert ask(server, "/v1/completions", body, Authorization=f"Bearer {key}")[0] == 200
        for headers in ({}, {"Authorization": "Bearer third-key"}, {"Authorization": "Basic first-key"}):
            status, answered, text = ask(server, "/v1/completions", body, **headers)
            assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
            assert json.loads(text)["error"]["code"] == "invalid_api_key"
        assert ask(server, "/metrics")[0] == 401
        assert ask(server, "/health")[0] == ask(server, "/ready")[0] == 200
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="second-key", max_retries=0) as client:
            assert client.models.list().data[0].id == server.name


def test_a_client_behind_a_trusted_proxy_has_its_own_address(text_model):
    body = {"prompt": "One", "max_tokens": 1}
    for options, client in {(): "192.0.2.7", ("--trusted-proxies", "192.0.2.0/24,::1"): "127.0.0.1"}.items():
        with served(text_model.path, *options) as server:
            ask(server, "/v1/completions", body, **{"X-Forwarded-For": "198.51.100.1, 192.0.2.7"})
            (line,) = wait_until(lambda server=server: server.events("request"), "the request is logged")
            assert line["client"] == client
    assert "192.0.2.300" in serve_fails(text_model.path, "--trusted-proxies", "192.0.2.300", code=2)


def test_https_with_a_certificate(text_model, tmp_path):
    certificate, key = make_certificate(tmp_path)
    with served(text_model.path, "--tls-certificate", certificate, "--tls-key", key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(certificate))
        assert ask(server, "/health", context=context)[0] == 200


def test_the_log_has_prompts_only_if_asked(text_model):
    body = {"model": text_model.path.stem, "prompt": "The quick", "max_tokens": 5, "temperature": 0}
    with served(text_model.path) as server:
        ask(server, "/v1/completions", body)
        (line,) = wait_until(lambda: server.events("request"), "the request is logged")
        assert (line["path"], line["status"], line["completion_tokens"]) == ("/v1/completions", 200, 5)
        assert "quick" not in json.dumps(server.log)
        assert "brown" not in json.dumps(server.log)
    with served(text_model.path, "--log-prompts") as server:
        ask(server, "/v1/completions", body)
        (line,) = wait_until(lambda: server.events("request"), "the request is logged")
        assert (line["prompt"], line["answers"]) == ("The quick", [" brown fox"])


def test_running_requests_are_finished_after_sigterm(endless):
    with served(endless, ranks=2) as server:
        text: list[str] = []

        def read():
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
                for event in client.completions.create(model=server.name, prompt="One", max_tokens=1500, stream=True):
                    text.append(event.choices[0].finish_reason or "")

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: len(text) > 3, "the stream has begun")
        ranks = server.rank_processes()
        server.process.terminate()
        wait_until(lambda: not server.accepts(), "the server refuses connections")
        reader.join(60)
        assert text[-1] == "length"
        assert server.process.wait(30) == 0
        assert not any(is_running(process) for process in ranks.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_server_at_once(endless, number):
    with served(endless) as server:
        (stream,) = endless_streams(server, 1)
        server.process.send_signal(number)
        wait_until(lambda: not server.accepts(), "the server refuses connections")
        assert server.process.poll() is None
        server.process.send_signal(number)
        assert server.process.wait(15) == 0
        stream.close()


def test_a_server_that_is_interrupted_while_it_starts_ends(text_model):
    server = ServedModel(text_model.path, ranks=2)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(15) == 0
    server.wait_log_end()
    assert server.other_lines == []


def test_an_error_at_start_is_one_clear_line(text_model, tmp_path):
    package = text_model.path
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve_fails(package, "--port", port) == (
            f"accord serve: cannot listen on 127.0.0.1:{port}: Address already in use"
        )
    assert "no-such-package" in serve_fails(tmp_path / "no-such-package")
    bare = tmp_path / "bare.accord"
    shutil.copytree(package, bare)
    (bare / "tokenizer.json").unlink()
    assert "tokenizer.json" in serve_fails(bare, "--port", 0)
    broken = tmp_path / "broken.accord"
    shutil.copytree(package, broken)
    weights = next(broken.glob("weights-*.safetensors"))
    os.truncate(weights, weights.stat().st_size // 2)
    assert weights.name in serve_fails(broken, "--port", 0, "--ranks", 2)
    assert "the limit is 1 KiB" in serve_fails(package, "--port", 0, "--memory-limit", "1KiB")
    assert "float7" in serve_fails(package, "--port", 0, "--cache-dtype", "float7")
    assert "keys" in serve_fails(package, "--api-keys", tmp_path / "keys")
    assert "cert.pem" in serve_fails(package, "--tls-certificate", tmp_path / "cert.pem")


def test_an_invalid_option_is_named(text_model):
    assert '"--prot"' in serve_fails(text_model.path, "--prot", 1, code=2)
    assert "--ranks" in serve_fails(text_model.path, "--ranks", "two", code=2)
    assert "--ranks" in serve_fails(text_model.path, "--ranks", 0, code=2)
    assert "--port 70000" in serve_fails(text_model.path, "--port", 70000, code=2)
    assert "models" in serve_fails(code=2)


def test_a_missing_python_package_is_named(text_model, tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')\n")
    assert serve_fails(text_model.path, before=tmp_path) == (
        'accord serve: needs the Python package uvicorn; install accord with its extra "serve"'
    )
