"""Brokers to be attacked."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anabranch.observe.logs import LOGGER
from support.broker_process import BrokerProcess

pytest.register_assert_rewrite("victim", "fake_wire")

from victim import REQUEST_MAX_BYTES, Victim  # noqa: E402 - after the registration


@pytest.fixture(scope="module")
def attacked_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of a module: what one test leaves behind, the next one meets."""
    folder = tmp_path_factory.mktemp("attacked") / "data"
    broker = BrokerProcess(folder, {"socket.request.max.bytes": str(REQUEST_MAX_BYTES)})
    broker.start()
    yield broker
    code = broker.stop()
    assert code == 0


@pytest.fixture
def victim(attacked_broker: BrokerProcess) -> Iterator[Victim]:
    """The module's broker, checked after the test."""
    victim = Victim(attacked_broker)
    yield victim
    victim.check()


@pytest.fixture
def make_victim(make_broker: Callable[..., BrokerProcess]) -> Iterator[Callable[..., Victim]]:
    """Brokers with settings of their own, checked after the test."""
    made: list[Victim] = []

    def make(**overrides: str) -> Victim:
        made.append(Victim(make_broker(**overrides)))
        return made[-1]

    yield make
    for victim in made:
        victim.check()


class Events(logging.Handler):
    """What the broker's code logged in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append((record.getMessage(), getattr(record, "fields", {})))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.all]

    @property
    def reasons(self) -> list[str]:
        """Why connections were closed."""
        return [fields["reason"] for name, fields in self.all if name == "connection.closed"]


@pytest.fixture
def events() -> Iterator[Events]:
    """The events of one test that runs the server in its own process."""
    handler = Events()
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)
