"""`metrics.listeners`: what is an address and what is not."""

import pytest

from anabranch.config.load import ConfigError, load_settings
from anabranch.config.metrics_settings import METRICS_LISTENERS, Address, parse_address


def addresses(text: str) -> list[Address]:
    settings = load_settings(environ={}, overrides=[f"{METRICS_LISTENERS}={text}"])
    return [parse_address(entry) for entry in settings.get_list(METRICS_LISTENERS)]


def test_nothing_listens_by_default() -> None:
    """Metrics are served only where somebody asked for it."""
    assert load_settings(environ={}).get_list(METRICS_LISTENERS) == ()


@pytest.mark.parametrize(
    ("text", "expected", "shown"),
    [
        ("localhost:9400", [("localhost", 9400)], "localhost:9400"),
        (":9400", [("", 9400)], "*:9400"),
        ("[::1]:0", [("::1", 0)], "[::1]:0"),
        ("127.0.0.1:1, h:65535", [("127.0.0.1", 1), ("h", 65535)], "127.0.0.1:1"),
    ],
)
def test_addresses(text: str, expected: list[tuple[str, int]], shown: str) -> None:
    """A host and a port, several with commas between, IPv6 in brackets."""
    found = addresses(text)
    assert found == expected
    assert str(found[0]) == shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9400", "has no port"),
        ("localhost", "has no port"),
        ("localhost:", "has no port from 1"),
        ("localhost:http", "has no port from 1"),
        ("localhost:65536", "has no port from 1"),
        ("localhost:-1", "has no port from 1"),
        ("::1:9400", "IPv6 address in brackets"),
        ("http://localhost:9400", "more than a host and a port"),
        ("localhost:9400/metrics", "more than a host and a port"),
    ],
)
def test_what_is_no_address(text: str, why: str) -> None:
    """The sentence says what is wrong with it, and how it is written."""
    with pytest.raises(ConfigError, match=why) as error:
        addresses(text)
    assert "localhost:9400" in str(error.value)
