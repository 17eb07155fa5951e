"""Log lines: words on a terminal, JSON elsewhere, one line for one event in both."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from anabranch.observe import logs


class Stream(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    """Other tests find the logger as it was."""
    logger = logs.LOGGER
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def _lines(is_terminal: bool) -> Stream:
    stream = Stream(is_terminal)
    logs.set_up_logging(stream)
    return stream


def test_json() -> None:
    """Where nobody looks on, an event is one JSON document with its facts."""
    stream = _lines(is_terminal=False)
    logs.info("connection.closed", client="127.0.0.1", reason="two\nlines and \x1b[31m", count=3)
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("time")
    assert event == {
        "level": "INFO",
        "event": "connection.closed",
        "client": "127.0.0.1",
        "reason": "two\nlines and \x1b[31m",
        "count": 3,
    }


def test_terminal() -> None:
    """On a terminal an event is its time, level, name and facts as words."""
    stream = _lines(is_terminal=True)
    logs.warning("log.stray", folder="orders-0", reason="not known here", nothing="")
    assert stream.getvalue().endswith(
        ' WARNING log.stray folder=orders-0 reason="not known here" nothing=""\n'
    )


@pytest.mark.parametrize(
    "value", ["a\nb", "a\rb", "\x1b[31mred", "a\u2028b", "x=1", 'quo"te', "\x00", "\u202ereversed"]
)
def test_facts_cannot_forge_lines(value: str) -> None:
    """What a client sent, such as its id, can neither begin a line nor colour the terminal."""
    stream = _lines(is_terminal=True)
    logs.info("event", client_id=value)
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert text[:-1].isprintable()
    assert f"client_id={json.dumps(value)}" in text


def test_values_that_json_does_not_know() -> None:
    """Facts of any type are written, by what they say of themselves."""
    stream = _lines(is_terminal=False)
    logs.error("event", error=OSError(28, "full"), raw=b"\xff")
    event = json.loads(stream.getvalue())
    assert event["error"] == "[Errno 28] full"
    assert event["raw"] == "b'\\xff'"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_exceptions(is_terminal: bool) -> None:
    """A traceback that somebody logs on purpose is there in both forms."""
    stream = _lines(is_terminal)
    try:
        raise ValueError("deep down")
    except ValueError:
        logs.LOGGER.exception("event")
    assert "ValueError: deep down" in stream.getvalue()


def test_levels() -> None:
    """Events below the level are not written, and setting up twice does not write twice."""
    stream = Stream(False)
    logs.set_up_logging(stream, logging.WARNING)
    logs.set_up_logging(stream, logging.WARNING)
    logs.info("quiet")
    logs.error("loud")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "loud"


def test_other_modules_loggers() -> None:
    """Modules that log by themselves, under anabranch, end in the same stream and form."""
    stream = _lines(is_terminal=False)
    logging.getLogger("anabranch.log.recovery").warning("cut %s", "orders-0")
    event = json.loads(stream.getvalue())
    assert (event["level"], event["event"]) == ("WARNING", "cut orders-0")
