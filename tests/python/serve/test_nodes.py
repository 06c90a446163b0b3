"""`accord serve` on several nodes, which are processes of this machine that take each other for other hosts; and how
the ranks share a model."""

import contextlib
import json
import os
import signal

import pytest
from accord_command import wait_until
from http_clients import ask, free_ports
from served_model import ServedModel, serve_fails, served
from stream_reader import Reader


@contextlib.contextmanager
def node(number: int, endpoint: str, *packages: object, ranks: int = 1):
    """One of two nodes of a server; its ranks are not ready yet."""
    options = ("--nnodes", 2, "--node-rank", number, "--rdzv-endpoint", endpoint, "--stall-seconds", 20)
    running = ServedModel(*packages, *options, ranks=ranks, ACCORD_HOST_ID=f"node{number}")
    try:
        yield running
    finally:
        running.end()


@contextlib.contextmanager
def two_nodes(*packages: object, ranks: int = 1):
    endpoint = f"127.0.0.1:{free_ports(2)}"
    with node(0, endpoint, *packages, ranks=ranks) as server, node(1, endpoint, *packages, ranks=ranks) as other:
        for one in (server, other):
            one.wait_ready(len(server.names))
        yield server, other


@pytest.fixture(scope="module")
def pair(endless):
    with two_nodes(endless) as both:
        yield both


def completion(server: ServedModel, prompt: str, tokens: int) -> str:
    status, _, text = ask(server, "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0})
    assert status == 200, text
    return json.loads(text)["choices"][0]["text"]


def metrics_of(server: ServedModel) -> set[str]:
    return {line.partition(" ")[0] for line in ask(server, "/metrics")[2].splitlines()}


def test_the_ranks_of_two_nodes_answer_together(text_model, encoder_model):
    with two_nodes(text_model.path, encoder_model.path, ranks=2) as (server, other):
        assert completion(server, "The quick", 9) == text_model.continued("The quick", 9)
        assert ask(server, "/v1/embeddings", {"model": "encoder", "input": "One"})[0] == 200
        assert sorted(server.rank_processes(text_model.path)) == [0, 1]
        assert sorted(other.rank_processes(text_model.path)) == [2, 3]
        for one, ranks in ((server, "01"), (other, "23")):
            assert {f'accord_rank_memory_bytes{{model="model",rank="{rank}"}}' for rank in ranks} <= metrics_of(one)
            assert 'accord_ready{model="encoder"}' in metrics_of(one)
        assert json.loads(ask(other, "/ready")[2]) == {
            "status": "ready",
            "models": {"model": "ready", "encoder": "ready"},
        }
        assert ask(other, "/health")[0] == 200
        assert ask(other, "/v1/models")[0] == 404  # node 0 answers requests
        assert server.stop() == 0
        assert other.process.wait(30) == 0
        other.wait_log_end()
        assert other.events("ended") and not other.events("ranks_ended")


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_streams_continue_after_a_rank_of_either_node_was_killed(pair, number):
    expected = Reader(pair[0], seed=number).result()
    starts = [len(one.events("ready")) for one in pair]
    reader = Reader(pair[0], seed=number)
    wait_until(lambda: reader.events > 3, "the stream has begun")
    os.kill(pair[number].rank_process(number), signal.SIGKILL)
    assert reader.result() == expected
    for one, count in zip(pair, starts, strict=True):
        one.wait_ready(count + 1)
        assert len(one.events("ready")) == count + 1


def test_streams_wait_for_a_node_that_is_started_again(endless):
    endpoint = f"127.0.0.1:{free_ports(1)}"
    with node(0, endpoint, endless) as server:
        with node(1, endpoint, endless) as other:
            server.wait_ready()
            expected = Reader(server, seed=3).result()
            reader = Reader(server, seed=3)
            wait_until(lambda: reader.events > 3, "the stream has begun")
            other.process.kill()
            wait_until(lambda: ask(server, "/ready")[0] == 503, "the loss of the node is noticed")
        with node(1, endpoint, endless):
            assert reader.result() == expected
            assert ask(server, "/ready")[0] == 200


@pytest.mark.slow
def test_a_node_outlives_a_server_that_was_killed(endless):
    endpoint = f"127.0.0.1:{free_ports(1)}"
    with node(1, endpoint, endless) as other:
        with node(0, endpoint, endless) as server:
            other.wait_ready()
            expected = completion(server, "One", 20)
            server.process.kill()
            wait_until(lambda: other.events("ranks_ended"), "the end of the server is noticed")
        with node(0, endpoint, endless) as server:
            other.wait_ready(2)
            assert completion(server.wait_ready(), "One", 20) == expected
            assert other.stop() == 0


def test_requests_are_finished_if_all_nodes_get_sigterm(endless):
    with two_nodes(endless, "--drain-seconds", 60) as both:
        reader = Reader(both[0], seed=4)
        wait_until(lambda: reader.events > 3, "the stream has begun")
        for one in reversed(both):
            one.process.terminate()
        reader.result()
        assert [one.process.wait(30) for one in both] == [0, 0]
        assert [one.events("ranks_ended") for one in both] == [[], []]


def test_nodes_that_serve_different_models_are_told(text_model, endless):
    endpoint = f"127.0.0.1:{free_ports(1)}"
    with node(0, endpoint, text_model.path):
        options = ("--nnodes", 2, "--node-rank", 1, "--rdzv-endpoint", endpoint)
        assert 'job "model"' in serve_fails(endless, *options, "--port", 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--nnodes", 2), "--nnodes 2 needs --rdzv-endpoint"),
        (("--nnodes", 2, "--rdzv-endpoint", "host"), "--node-rank None: expected a number from 0 to 1"),
        (("--nnodes", 2, "--rdzv-endpoint", "host", "--node-rank", 2), "--node-rank 2: expected a number from 0 to 1"),
        (("--node-rank", 1), "--node-rank 1: there is one node; give --nnodes"),
        (("--rdzv-endpoint", "host"), "--rdzv-endpoint host: there is one node; give --nnodes"),
        (
            ("--nnodes", 2, "--rdzv-endpoint", "a:b", "--node-rank", 0),
            "--rdzv-endpoint a:b: expected HOST or HOST:PORT",
        ),
        (
            ("--nnodes", 2, "--rdzv-endpoint", "host:65536", "--node-rank", 0),
            "--rdzv-endpoint host:65536: expected HOST or HOST:PORT",
        ),
    ],
)
def test_wrong_options_of_nodes_are_named(text_model, options, text):
    assert text in serve_fails(text_model.path, *options, code=2)


# How the ranks share a model


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param(2, ("--pp", 2), marks=pytest.mark.slow),
        pytest.param(2, ("--cp", 2), marks=pytest.mark.slow),
        (4, ("--pp", 2, "--cp", 2)),
        pytest.param(4, ("--group", "tp", "--pp", 2, "--overlap-rows", 4), marks=pytest.mark.slow),
        (2, ("--group", "tp", "--all-reduce-dtype", "int8", "--device", "cpu")),
    ],
)
def test_ranks_share_a_model_in_other_ways(text_model, ranks, options):
    with served(text_model.path, *options, ranks=ranks) as server:
        assert completion(server, "The quick", 9) == text_model.continued("The quick", 9)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--pp", 2, "--ranks", 3), "3 ranks cannot form 2 stages of 1 parts of each sequence"),
        (("--cp", 2), "1 rank cannot form 1 stages of 2 parts of each sequence"),
        (("--group", "ep"), 'the package has no group "ep"; it has tp'),
        (("--device", "gpu"), 'device "gpu" does not exist'),
    ],
)
def test_ways_that_are_impossible_are_named(text_model, options, text):
    assert text in serve_fails(text_model.path, *options, "--port", 0)
