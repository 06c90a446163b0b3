"""Work of a thread of Python, with the interface of accord.Work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta


class Background:
    """Has ended once finish() was called, with an error or without."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._at_end: list[Callable[[BaseException | None], object]] = []

    def finish(self, error: BaseException | None = None) -> None:
        """Called once."""
        self.error = error
        with self._lock:
            self._ended.set()
            callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback(self.error)

    def do(self, function: Callable[[], object]) -> None:
        """Calls `function`, and finishes with the error that it raises, or with none."""
        try:
            function()
        except BaseException as error:
            self.finish(error)
        else:
            self.finish()

    def test(self) -> bool:
        return self._ended.is_set()

    def on_end(self, callback: Callable[[BaseException | None], object]) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._at_end.append(callback)
                return
        callback(self.error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        ended = self._ended.wait(None if timeout is None else timeout.total_seconds())
        if self.error is not None:
            raise self.error
        return ended
