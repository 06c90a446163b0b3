"""The functions of accord.h for language models, called through ctypes."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p

from accord_command import BUILD

OK, INVALID_ARGUMENT, TIMEOUT = 0, 1, 6
STOP_TOKEN, STOP_SEQUENCE, LENGTH, CANCELLED = 1, 2, 3, 4


class Message(ctypes.Structure):
    _fields_ = (("role", c_char_p), ("content", c_char_p))


class Request(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("prompt", c_char_p),
        ("messages", POINTER(Message)),
        ("message_count", c_size_t),
        ("stop", POINTER(c_char_p)),
        ("stop_count", c_size_t),
        ("seed", c_uint64),
        *((name, c_int32) for name in ("max_new_tokens", "samples", "priority", "top_k")),
        *((name, c_double) for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
        ("adapter", c_char_p),
    )


class Event(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("text", c_char_p), ("sample", c_int32), ("finish", c_int32))


def request(**fields) -> Request:
    return Request(struct_size=ctypes.sizeof(Request), **fields)


class Library:
    """accord.h's functions on one rank, with a model."""

    def __init__(self, path):
        self.functions = ctypes.CDLL(str(BUILD / "src/libaccord.so"))
        self.functions.accord_last_error.restype = c_char_p
        self.engine, self.model = c_void_p(), c_void_p()
        self.ok("engine_load", str(path).encode(), None, c_size_t(0), None, byref(self.engine))
        self.ok("language_model_create", self.engine, None, None, byref(self.model))

    def call(self, name, *arguments) -> int:
        return getattr(self.functions, f"accord_{name}")(*arguments)

    def error(self) -> str:
        return self.functions.accord_last_error().decode()

    def ok(self, name, *arguments) -> None:
        assert self.call(name, *arguments) == OK, self.error()

    def stream(self, request: Request) -> c_void_p:
        stream = c_void_p()
        self.ok("language_model_generate", self.model, byref(request), byref(stream))
        return stream

    def texts(self, request: Request) -> list[tuple[str, int]]:
        """Returns the text and the finish reason of each sample."""
        return self.texts_of(self.stream(request))

    def texts_of(self, stream: c_void_p) -> list[tuple[str, int]]:
        found = {}
        event = Event(struct_size=ctypes.sizeof(Event))
        while True:
            self.ok("text_stream_next", stream, c_int64(60 * 10**9), byref(event))
            if event.text is None:
                break
            text, _ = found.get(event.sample, ("", 0))
            found[event.sample] = text + event.text.decode(), event.finish
        self.functions.accord_text_stream_free(stream)
        return [found[sample] for sample in sorted(found)]

    def close(self) -> None:
        self.functions.accord_language_model_free(self.model)
        self.functions.accord_engine_free(self.engine)
