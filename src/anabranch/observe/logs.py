"""Log lines: readable on a terminal, JSON elsewhere.

One event is one line. An event is named in the message (`connection.closed`), its facts are passed
as `extra={"fields": {...}}` through `event`, so that both forms carry the same facts.
"""

import json
import logging
import sys
from typing import Any, TextIO

LOGGER = logging.getLogger("anabranch")


def event(level: int, name: str, /, **fields: Any) -> None:
    """Log one event with its facts; cheap when the level is off."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, name, extra={"fields": fields})


def info(name: str, /, **fields: Any) -> None:
    event(logging.INFO, name, **fields)


def warning(name: str, /, **fields: Any) -> None:
    event(logging.WARNING, name, **fields)


def error(name: str, /, **fields: Any) -> None:
    event(logging.ERROR, name, **fields)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        facts = "".join(f" {key}={_plain(value)}" for key, value in fields.items())
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}{facts}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        document = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "event": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def _plain(value: Any) -> str:
    """A value as one word; quoted where it has spaces, or what a terminal would act upon."""
    text = str(value)
    is_word = text.isprintable() and text and not set(text) & {" ", '"', "="}
    return text if is_word else json.dumps(text)


def set_up_logging(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send the broker's events to a stream (stderr unless told otherwise)."""
    stream = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_TextFormatter() if stream.isatty() else _JsonFormatter())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level)
    LOGGER.propagate = False
