"""GenerationQueue, samples that are resumed, and the counters of a model: what a server needs."""

import random
import threading
import time

import pytest
from text_model import CONTEXT

import accord

PROMPT = [0, 40, 41, 42]


@pytest.fixture(scope="module")
def model(text_model):
    with accord.load(text_model.path) as engine:
        made = accord.LanguageModel.create(engine, cache_tokens=4 * CONTEXT)
        yield made
        made.stop()


def streamed(model, prompt, **options) -> list[list[int]]:
    """Returns the tokens of each sample, by LanguageModel.submit()."""
    tokens = [[] for _ in range(options.get("samples", 1))]
    for event in model.submit(prompt, **options):
        tokens[event.sample - options.get("first_sample", 0)].append(event.token)
    return tokens


def test_a_queue_has_the_events_of_all_requests(model):
    options = {"max_new_tokens": 20, "temperature": 1.3, "samples": 2}
    expected = [streamed(model, [*PROMPT, token], seed=token, **options) for token in range(50, 60)]
    queue = model.queue()
    requests = [queue.submit([*PROMPT, token], seed=token, **options) for token in range(50, 60)]
    tokens = {request: [[], []] for request in requests}
    ends = 0
    largest = 0
    while ends < 20:
        events = queue.next(30)
        assert events
        largest = max(largest, len(events))
        for event in events:
            assert event.index == len(tokens[event.request][event.sample])
            tokens[event.request][event.sample].append(event.token)
            ends += event.finish == "length"
    assert [tokens[request] for request in requests] == expected
    assert largest > 1  # a step's events come together
    assert queue.next(0) == []


def test_next_waits_for_events_and_no_longer_than_its_timeout(model):
    queue = model.queue()
    begin = time.monotonic()
    assert queue.next(0.2) == []
    assert 0.2 <= time.monotonic() - begin < 5
    with pytest.raises(accord.InvalidArgument, match="timeout"):
        queue.next(-1)
    threading.Timer(0.1, queue.submit, (PROMPT,), {"max_new_tokens": 1}).start()
    assert [event.finish for event in queue.next(60)] == ["length"]


def test_cancelled_requests_end_and_those_of_a_queue_that_is_gone(model):
    queue = model.queue()
    request = queue.submit(PROMPT, temperature=2.0, biases={2: float("-inf")})
    queue.next(30)
    queue.cancel(request)
    events = []
    while not events or not events[-1].finish:
        events += queue.next(30)
    assert events[-1].finish == "cancelled"
    queue.cancel(request)
    queue.submit(PROMPT, temperature=2.0, biases={2: float("-inf")})
    del queue
    deadline = time.monotonic() + 30
    while model.stats.requests > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert model.stats.requests == 0


def test_counters_count(model):
    before = model.stats
    streamed(model, PROMPT, max_new_tokens=9)
    after = model.stats
    assert after.steps - before.steps == 9
    assert (
        after.computed_tokens + after.reused_tokens - before.computed_tokens - before.reused_tokens == len(PROMPT) + 8
    )
    assert after.blocks == 4 * CONTEXT // 16
    assert after.available_blocks == after.blocks
    assert model.error is None


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1.7},
        {"temperature": 1.7, "samples": 3},
        {"temperature": 1.2, "presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.4},
        {"temperature": 1.2, "repetition_penalty": 0.8, "top_k": 12, "samples": 2},
    ],
    ids=str,
)
def test_a_resumed_sample_gets_the_tokens_that_would_have_followed(model, options):
    options |= {"max_new_tokens": 40, "seed": 9, "biases": {2: float("-inf")}}
    whole = streamed(model, PROMPT, **options)
    chance = random.Random(1)
    for sample, tokens in enumerate(whole):
        for cut in (0, 1, chance.randrange(2, 39), 39):
            more = options | {"samples": 1, "first_sample": sample, "generated": cut, "max_new_tokens": 40 - cut}
            assert streamed(model, PROMPT + tokens[:cut], **more) == [tokens[cut:]]


def test_events_of_a_resumed_sample_are_numbered_on(model):
    events = list(model.submit(PROMPT, max_new_tokens=2, first_sample=3, generated=2))
    assert [(event.sample, event.index) for event in events] == [(3, 2), (3, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generated": 4}, "generated=4; expected a number from 0 to 3"),
        ({"generated": -1}, "generated=-1"),
        ({"first_sample": -1}, "first_sample=-1"),
        ({"first_sample": 1020, "samples": 5}, "first_sample=1020 and samples=5"),
    ],
)
def test_a_sample_that_cannot_be_resumed_is_rejected(model, options, message):
    with pytest.raises(accord.InvalidArgument, match=message):
        model.submit(PROMPT, **options)
    with pytest.raises(accord.InvalidArgument, match="only submit"):
        model.generate("One", first_sample=1)


def test_counters_are_complete_before_the_first_step(text_model):
    with accord.load(text_model.path) as engine:
        for _ in range(50):  # the loop's thread may or may not have begun
            model = accord.LanguageModel.create(engine)
            assert model.stats.blocks == model.stats.available_blocks == CONTEXT // 16
            model.stop()


def test_a_stopped_model_says_so(text_model):
    with accord.load(text_model.path) as engine:
        model = accord.LanguageModel.create(engine)
        queue = model.queue()
        model.stop()
        assert isinstance(model.error, accord.Closed)
        with pytest.raises(accord.Closed):
            queue.submit(PROMPT)
