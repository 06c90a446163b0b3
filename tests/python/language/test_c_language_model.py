"""Language models through the C interface: the structs and functions of accord.h, called through ctypes."""

import ctypes
from ctypes import byref, c_char_p, c_int64, c_void_p

import pytest
from c_language_model import (
    CANCELLED,
    INVALID_ARGUMENT,
    LENGTH,
    STOP_SEQUENCE,
    STOP_TOKEN,
    Event,
    Library,
    Message,
    Request,
    request,
)
from text_model import CONVERSATIONS, TEXTS


@pytest.fixture
def library(text_model):
    made = Library(text_model.path)
    yield made
    made.close()


def test_answers_to_prompts_and_messages_match_transformers(text_model, library):
    assert library.texts(request(prompt=b"The quick")) == [(text_model.continued("The quick", 40), STOP_TOKEN)]
    question = CONVERSATIONS[2][0]["content"].encode()
    messages = (Message * 1)(Message(b"user", question))
    assert library.texts(request(messages=messages, message_count=1)) == [(TEXTS[3], STOP_TOKEN)]


def test_every_request_field_takes_effect(text_model, library):
    stops = (c_char_p * 2)(b"three", "👍🏽".encode())
    assert library.texts(request(prompt=b"One", stop=stops, stop_count=2)) == [(" 😀 two ", STOP_SEQUENCE)]
    assert library.texts(request(prompt=b"One", max_new_tokens=1))[0][1] == LENGTH
    drawn = {"prompt": b"One", "temperature": 3.0, "samples": 3, "max_new_tokens": 12}
    plain = library.texts(request(**drawn))
    assert len(plain) == 3
    assert library.texts(request(**drawn, seed=1)) != plain
    best = library.texts(request(prompt=b"One", max_new_tokens=12))[0]
    for only_the_best in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert library.texts(request(**drawn, **only_the_best)) == [best] * 3
    assert library.texts(request(prompt=b"One", max_new_tokens=12, repetition_penalty=50.0)) != [best]


def test_an_event_with_a_wrong_size_loses_no_text(text_model, library):
    stream = library.stream(request(prompt=b"The quick"))
    wrong = Event(struct_size=3)
    assert library.call("text_stream_next", stream, c_int64(60 * 10**9), byref(wrong)) == INVALID_ARGUMENT
    assert "accord_text_event_t has a struct_size of 3" in library.error()
    assert library.texts_of(stream) == [(text_model.continued("The quick", 40), STOP_TOKEN)]


def test_a_stream_keeps_its_model_and_its_engine(text_model):
    library = Library(text_model.path)
    stream = library.stream(request(prompt=b"The quick"))
    library.functions.accord_language_model_free(library.model)
    library.functions.accord_engine_free(library.engine)
    assert library.texts_of(stream) == [(text_model.continued("The quick", 40), STOP_TOKEN)]


def test_a_stream_reports_its_usage_and_can_be_cancelled(text_model, library):
    stream = library.stream(request(prompt=b"One", temperature=3.0))
    event = Event(struct_size=ctypes.sizeof(Event))
    library.ok("text_stream_cancel", stream)
    while not event.finish:
        library.ok("text_stream_next", stream, c_int64(60 * 10**9), byref(event))
    assert event.finish in (CANCELLED, STOP_TOKEN)
    prompt, completion = c_int64(), c_int64()
    library.ok("text_stream_usage", stream, byref(prompt), byref(completion))
    assert prompt.value == len(text_model.tokenizer("One").input_ids)
    assert completion.value < 256
    library.functions.accord_text_stream_free(stream)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"struct_size": 8}, "accord_text_request_t has a struct_size of 8"),
        ({"top_p": 2.0}, "top_p=2"),
        ({"priority": 101}, "priority=101"),
        ({"message_count": 1}, "messages is null"),
        ({"stop_count": 1}, "stop is null"),
        ({"prompt": b"x", "messages": (Message * 1)(Message(b"user", None)), "message_count": 1}, "content is null"),
    ],
)
def test_an_invalid_request_is_rejected(library, wrong, message):
    stream = c_void_p(1)
    request = Request(**{"struct_size": ctypes.sizeof(Request), "prompt": b"One"} | wrong)
    assert library.call("language_model_generate", library.model, byref(request), byref(stream)) == INVALID_ARGUMENT
    assert message in library.error()
    assert stream.value is None
    library.ok("language_model_stop", library.model)
