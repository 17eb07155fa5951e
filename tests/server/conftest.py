"""Brokers to be attacked."""

from collections.abc import Callable, Iterator

import pytest

from support.broker_process import BrokerProcess

pytest.register_assert_rewrite("victim", "support.raw_client")

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
