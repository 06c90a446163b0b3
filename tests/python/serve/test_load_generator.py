"""`accord bench serve` against a server that answers at known times, and against `accord serve`."""

import json
import signal
import subprocess
import time

import pytest
from accord_command import accord, program_environment, start_accord, wait_until
from delayed_server import delayed_server

np = pytest.importorskip("numpy")
pytest.importorskip("h11")
from accord.serve.bench.report import percentile  # noqa: E402

pytestmark = pytest.mark.alone  # it compares times
FIRST, NEXT, TOKENS = 0.15, 0.02, 10
SLOWER = 0.12  # how much later than the server's times a busy machine may be


def bench(url: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return accord("bench", "serve", url, *words, timeout=120, env=program_environment(**environment))


def results(url: str, *words: object, **environment: str) -> dict:
    result = bench(url, *words, "--json", "-", **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_times_and_rates_are_those_of_the_server():
    with delayed_server(first_seconds=FIRST, next_seconds=NEXT) as server:
        answer = results(server.url, "--clients", "1,4", "--requests", 8, "--answer-tokens", TOKENS)
    assert answer["model"] == "delayed"
    assert [one["clients"] for one in answer["measurements"]] == [1, 4]
    whole = FIRST + (TOKENS - 1) * NEXT
    for one in answer["measurements"]:
        assert (one["requests"], one["answered"], one["errors"]) == (8, 8, {})
        assert one["answer_tokens"] == 8 * TOKENS
        for name, expected in [
            ("time_to_first_token", FIRST),
            ("time_per_token", NEXT),
            ("time_between_events", NEXT),
            ("time_of_request", whole),
        ]:
            assert expected - 0.005 < one[name]["p50"] < expected + SLOWER, name
            assert one[name]["min"] <= one[name]["p50"] <= one[name]["p90"] <= one[name]["p99"] <= one[name]["max"]
        rounds = 8 / one["clients"]
        assert rounds * whole - 0.01 < one["seconds"] < rounds * (whole + SLOWER)
        assert one["answer_tokens_per_second"] == pytest.approx(8 * TOKENS / one["seconds"])
    assert server.most_running == 4


def test_prompts_have_the_wanted_lengths_and_differ():
    with delayed_server(first_seconds=0, next_seconds=0) as server:
        results(server.url, "--clients", 4, "--requests", 40, "--prompt-tokens", "32:512", "--answer-tokens", "3:9")
        asked = [one["body"] for one in server.asked()]
        results(server.url, "--clients", 4, "--requests", 40, "--prompt-tokens", "32:512", "--answer-tokens", "3:9")
        again = [one["body"] for one in server.asked()[41:]]
    lengths = [len(body["prompt"].split()) for body in asked]
    assert 25 < min(lengths) < 120
    assert 400 < max(lengths) < 560
    assert {body["max_tokens"] for body in asked} == set(range(3, 10))
    assert len({body["prompt"][:20] for body in asked}) > 30
    assert all(body["stream"] and body["stream_options"] == {"include_usage": True} for body in asked)
    assert {body["prompt"] for body in again} == {body["prompt"] for body in asked}  # the same seed


def test_arrivals_are_random_at_the_rate_and_do_not_wait_for_answers():
    with delayed_server(first_seconds=0.5, next_seconds=0) as server:
        answer = results(server.url, "--rate", 50, "--requests", 150, "--answer-tokens", 1)
        times = [one["time"] for one in server.asked()]
    gaps = np.diff(times)
    assert 150 / 50 * 0.7 < times[-1] - times[0] < 150 / 50 * 1.4
    assert 0.6 < np.std(gaps) / np.mean(gaps) < 1.5  # 1 for an exponential distribution, 0 for equal gaps
    assert server.most_running > 10
    (one,) = answer["measurements"]
    assert one["rate"] == 50
    assert 0.5 <= one["time_to_first_token"]["p50"] < 0.5 + SLOWER


def test_questions_and_lengths_of_a_data_set(tmp_path):
    path = tmp_path / "shared.json"
    turns = [("one two three four", "a b c d e f g h"), ("five six seven eight", "i j k l")]
    entries = [
        {"id": str(index), "conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]}
        for index, (asked, answer) in enumerate(turns)
    ]
    path.write_text(json.dumps([*entries, {"id": "x", "conversations": [{"from": "gpt", "value": "alone"}]}]))
    with delayed_server(first_seconds=0, next_seconds=0) as server:
        more = ("--requests", 4, "--body", '{"temperature": 0, "top_k": 1}')
        results(server.url + "/v1", "--dataset", path, "--chat", *more, OPENAI_API_KEY="secret")
        asked = server.asked()
    questions = [one["body"]["messages"][0]["content"] for one in asked]
    assert sorted(questions) == sorted(question for question, _ in turns * 2)
    characters = len(turns[0][0]) / 4, len(turns[1][0]) / 4  # of a token, by the first request
    for one in asked:
        answer = dict(turns)[one["body"]["messages"][0]["content"]]
        assert one["body"]["max_tokens"] in [max(1, round(len(answer) / count)) for count in characters]
        assert (one["body"]["temperature"], one["body"]["top_k"]) == (0, 1)
        assert one["path"] == "/v1/chat/completions"
        assert one["headers"]["Authorization"] == "Bearer secret"


def test_errors_are_counted_and_do_not_end_the_measurement():
    with delayed_server(first_seconds=0, next_seconds=0, fails=lambda number: number % 4 == 0) as server:
        result = bench(server.url, "--requests", 12, "--clients", 3)
    assert result.returncode == 0
    assert "3 x error: 429 too many" in result.stdout
    with delayed_server(fails=lambda number: True) as server:
        result = bench(server.url, "--requests", 5, "--json", "-")
    assert result.returncode == 1
    assert "no request was answered" in result.stderr
    assert json.loads(result.stdout)["measurements"][0]["errors"] == {"429 too many": 5}


def test_ctrl_c_gives_the_results_so_far(tmp_path):
    path = tmp_path / "results.json"
    with delayed_server(first_seconds=0.05, next_seconds=0) as server:
        words = ("bench", "serve", server.url, "--requests", 10000, "--json", path)
        process = start_accord(*words, env=program_environment())
        wait_until(lambda: len(server.requests) > 8, "some requests have ended")
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        output, errors = process.communicate(timeout=20)
        assert time.monotonic() - begin < 3
    assert process.returncode == 130
    answer = json.loads(path.read_text())
    assert answer["interrupted"]
    assert answer["measurements"][0]["answered"] >= 6
    assert "interrupted after" in errors
    assert "1 clients" in output


def test_an_image_of_the_distributions(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "times.png"
    with delayed_server(first_seconds=0, next_seconds=0) as server:
        assert bench(server.url, "--requests", 5, "--clients", "1,2", "--plot", path).returncode == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("127.0.0.1:8000",), '"127.0.0.1:8000" is not the address of a server'),
        (("http://127.0.0.1:1",), "http://127.0.0.1:1: "),
        (("http://127.0.0.1:1", "--clients", "1,x"), "--clients 1,x: expected numbers above 0"),
        (("http://127.0.0.1:1", "--clients", "1", "--rate", "2"), "give either clients or rates"),
        (("http://127.0.0.1:1", "--prompt-tokens", "9:3"), "--prompt-tokens 9:3: expected a number, or a range"),
        (("http://127.0.0.1:1", "--body", "[1]"), "--body: expected a JSON object"),
        (("http://127.0.0.1:1", "--dataset", "/no/such/file"), "/no/such/file"),
        (("http://127.0.0.1:1", "--json", "/no/such/folder/file"), "/no/such/folder/file"),
    ],
)
def test_invalid_arguments_are_named(words, message):
    result = bench(*words)
    assert result.returncode in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_percentiles_match_numpy():
    values = np.random.default_rng(0).exponential(size=37)
    for percent in (0, 50, 90, 95, 99, 100):
        assert percentile(values.tolist(), percent) == pytest.approx(np.percentile(values, percent))
    assert percentile([3.0], 99) == 3.0


def test_counts_of_accord_serve_match_its_own(server):
    pytest.importorskip("starlette")
    answer = results(server.url, "--clients", 4, "--requests", 12, "--prompt-tokens", "20:60", "--answer-tokens", 20)
    (one,) = answer["measurements"]
    assert (one["answered"], one["errors"]) == (12, {})
    lines = wait_until(lambda: (found := server.events("request"))[12:] and found[-12:], "the requests are logged")
    assert one["prompt_tokens"] == sum(line["prompt_tokens"] for line in lines)
    assert one["answer_tokens"] == sum(line["completion_tokens"] for line in lines)
    assert one["time_to_first_token"]["p50"] <= one["time_of_request"]["p50"]
