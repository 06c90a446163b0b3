"""Clients that take more than their share, by malice or by mistake, while others are served on."""

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from accord_command import wait_until
from http_clients import LONG, ask, connect, endless_streams, metric, send_request
from served_model import ServedModel, served

pytest.importorskip("starlette")
from accord.serve.clients import FairQueue

pytestmark = pytest.mark.alone
CONNECTIONS = 40


@pytest.fixture(scope="module")
def strict(endless):
    """A server with short limits."""
    options = (
        "--max-connections",
        CONNECTIONS,
        "--header-seconds",
        1,
        "--send-seconds",
        1,
        "--max-body-bytes",
        1 << 20,
    )
    with served(endless, *options, "--max-tokens", 16000) as running:
        yield running


def is_served(server: ServedModel) -> bool:
    body = {"model": server.name, "prompt": "One", "max_tokens": 3}
    return ask(server, "/v1/completions", body)[0] == 200


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            answer += piece
    return answer


def is_healthy(connection: socket.socket) -> bool:
    """Reads the answer to /health."""
    answer = b""
    while not answer.endswith(b"}") and (piece := connection.recv(65536)):
        answer += piece
    return answer.startswith(b"HTTP/1.1 200")


def error_of(answer: bytes) -> tuple[int, dict]:
    """Returns the status and the error object of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def resident(server: ServedModel) -> int:
    """Returns the MiB of the server's process."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


def test_a_thousand_silent_connections_are_replaced_by_others(strict):
    (stream,) = endless_streams(strict, 1)
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(strict)) for _ in range(1000)]
        assert is_served(strict)
        wait_until(lambda: not any(is_open(one) for one in silent[:900]), "the oldest are closed")
        assert strict.descriptors() < 4 * CONNECTIONS
        assert stream.recv(1)
    stream.close()


def test_a_connection_is_refused_if_all_others_are_busy(endless):
    with served(endless, "--max-connections", 3) as server:
        streams = endless_streams(server, 3)
        with connect(server) as connection:
            status, error = error_of(read_all(connection))
        assert (status, error["message"]) == (503, "the server has 3 connections")
        assert all(stream.recv(1) for stream in streams)
        streams[0].close()
        wait_until(lambda: ask(server, "/health")[0] == 200, "a place is free")
        for stream in streams:
            stream.close()


def test_headers_that_arrive_slowly_end_with_an_error(strict):
    with connect(strict) as idle, connect(strict) as slow:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert is_healthy(idle)
        begin = time.monotonic()
        for byte in b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"y" * 200:
            try:
                slow.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.05)
            if time.monotonic() - begin > 2.5:
                break
        status, error = error_of(read_all(slow))
        assert (status, error["message"]) == (408, "the headers did not arrive within 1 s")
        idle.sendall(b"GET /health HTTP/1.1\r\n")  # a connection without a request may wait for longer
        time.sleep(0.2)
        idle.sendall(b"Host: x\r\n\r\n")
        assert is_healthy(idle)
        idle.sendall(b"GET /hea")
        assert error_of(read_all(idle))[0] == 408
    assert is_served(strict)


def test_a_client_that_reads_nothing_is_disconnected_and_a_slow_one_is_not(strict):
    much = {"max_tokens": 16000, "logprobs": 20}  # more than the kernel keeps
    with socket.socket() as stuck, socket.socket() as slow:
        for connection in (stuck, slow):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(60)
            connection.connect(("127.0.0.1", int(strict.url.rpartition(":")[2])))
            send_request(connection, LONG | {"model": strict.name} | much)
        got = b""
        while not strict.events("slow_client"):
            got += slow.recv(8192)
            time.sleep(0.01)
        assert is_served(strict)
        wait_until(lambda: metric(strict, "accord_open_requests") <= 1, "the request of the first is cancelled")
        for _ in range(50):
            got += slow.recv(8192)
        assert len(got) > 100_000
        assert len(strict.events("slow_client")) == 1
        assert b"[DONE]" not in read_all(stuck)
    wait_until(lambda: metric(strict, "accord_open_requests") == 0, "the other request is cancelled")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gigabyte_is_refused_while_others_are_served(strict, chunked):
    before = resident(strict)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 1000000000"
    piece = b"x" * (1 << 20)
    if chunked:
        piece = b"%x\r\n%s\r\n" % (len(piece), piece)
    sent = 0
    with connect(strict) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n")
        if chunked:
            connection.sendall(piece * 2)
        assert connection.recv(12) == b"HTTP/1.1 413"  # before the rest
        begin = time.monotonic()
        with suppress(OSError):
            while sent < 1000 and time.monotonic() - begin < 30:
                connection.sendall(piece)
                sent += 1
                if sent == 5:
                    assert is_served(strict)
    assert sent > 4
    assert is_served(strict)
    assert resident(strict) < before + 30


def test_floods_of_headers_are_refused(strict):
    floods = [
        b"x-flood: " + b"y" * 200_000,
        b"".join(b"x-%d: y\r\n" % number for number in range(20_000)),
        b"\r\n" * 3 + b"\0" * 100,
    ]
    for flood in floods:
        with connect(strict) as connection:
            with suppress(OSError):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + flood)
            with suppress(ConnectionError):
                answer = connection.recv(65536)
                assert not answer or answer.startswith(b"HTTP/1.1 400") or flood == floods[2]
        assert is_served(strict)


def test_broken_text_is_an_error_of_the_client(strict):
    broken = b'{"model": "endless", "prompt": "\xff\xfe\xc3"}'
    heads = [
        (b"POST /v1/completions", b"", broken, 400),
        (b"POST /tokenize", b"", b'{"prompt": "\\ud800"}', 400),
        (b"POST /tokenize", b"", b"\xef\xbb\xbf\x00{}", 400),
        (b"GET /%ff%fe%00", b"", b"", 404),
        (b"GET /v1/models/%c3%28", b"", b"", 404),
        (b"GET /health?%ff", b"", b"", 200),
        (b"GET /health", b"X-Text: \xff\xc3\x28\r\nAuthorization: Bearer \xff\xfe\r\n", b"", 200),
        (b"GET /\xff\xfe", b"", b"", 400),
    ]
    for begin, headers, body, expected in heads:
        with connect(strict) as connection:
            head = begin + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = read_all(connection)
            assert answer.split()[1] == str(expected).encode(), (begin, answer)
            if expected != 200:
                assert error_of(answer)[1]["message"]
    assert is_served(strict)


def test_half_closed_connections_are_ended(strict):
    """A client that closes its sending side has gone: nothing distinguishes it from one that closes the connection."""
    with connect(strict) as early, connect(strict) as middle, connect(strict) as late:
        early.shutdown(socket.SHUT_WR)
        middle.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        middle.shutdown(socket.SHUT_WR)
        send_request(late, LONG | {"model": strict.name, "max_tokens": 16000})
        assert late.recv(1) == b"H"
        late.shutdown(socket.SHUT_WR)
        wait_until(lambda: metric(strict, "accord_open_requests") == 0, "the request is cancelled", seconds=5)
        for connection in (early, middle, late):
            read_all(connection)  # ends
    assert is_served(strict)


def ask_many(server: ServedModel, key: str, count: int, ended: list[str], tokens: int) -> list[threading.Thread]:
    def one() -> None:
        body = {"model": server.name, "prompt": "One", "max_tokens": tokens}
        assert ask(server, "/v1/completions", body, Authorization=f"Bearer {key}")[0] == 200
        ended.append(key)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_clients_take_turns(endless, tmp_path):
    (tmp_path / "keys").write_text("greedy\nmodest\n")
    with served(endless, "--api-keys", tmp_path / "keys", "--max-sequences", 2) as server:
        ended: list[str] = []
        threads = ask_many(server, "greedy", 20, ended, 400)
        key = {"Authorization": "Bearer greedy"}
        wait_until(lambda: metric(server, "accord_queued_requests", **key) > 10, "requests wait")
        threads += ask_many(server, "modest", 3, ended, 400)
        for thread in threads:
            thread.join(120)
    assert len(ended) == 23
    # With turns, each answer to the second client comes after at most as many of the first, and those that ran already.
    assert max(index for index, key in enumerate(ended) if key == "modest") < 14, ended


def test_a_client_that_has_taken_all_places_does_not_keep_others_out(endless, tmp_path):
    (tmp_path / "keys").write_text("greedy\nmodest\n")
    with served(endless, "--api-keys", tmp_path / "keys", "--max-requests", 4) as server:
        connections = [connect(server) for _ in range(4)]
        for connection in connections:
            send_request(connection, LONG | {"model": server.name}, Authorization="Bearer greedy")
            assert connection.recv(1) == b"H"
        body = {"model": server.name, "prompt": "One", "max_tokens": 2}
        assert ask(server, "/v1/completions", body, Authorization="Bearer greedy")[0] == 429
        assert ask(server, "/v1/completions", body, Authorization="Bearer modest")[0] == 200
        assert ask(server, "/v1/completions", body | {"prompt": ["One"] * 3}, Authorization="Bearer modest")[0] == 429
        for connection in connections:
            connection.close()


def test_the_queue_gives_each_client_its_turn_and_keeps_its_order():
    queue: FairQueue[str] = FairQueue()
    for client, item in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]:
        queue.push(client, item)
    queue.remove("a", "a2")
    queue.remove("c", "c9")  # never waited
    order = []
    while (item := queue.first()) is not None:
        order.append(item)
        queue.pop()
    assert order == ["a1", "b1", "c1", "a3", "b2"]
    assert len(queue) == 0
