"""The server's log: one JSON object a line, on standard error."""

from __future__ import annotations

import datetime
import json
import logging
import sys

__all__ = ["log", "redirect_logging"]


def log(event: str, level: str = "info", **facts: object) -> None:
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = json.dumps({"time": time, "level": level, "event": event, **facts}, ensure_ascii=False, default=str)
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        facts = {"message": record.getMessage()}
        if record.exc_info:
            facts["traceback"] = logging.Formatter().formatException(record.exc_info)
        log(record.name, record.levelname.lower(), **facts)


def redirect_logging() -> None:
    """Puts the warnings of libraries into this log."""
    root = logging.getLogger()
    root.handlers = [_Handler()]
    root.setLevel(logging.WARNING)
