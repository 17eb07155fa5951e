"""Fixtures that every test folder can use."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
# Here, because whichever folder comes first imports them.
pytest.register_assert_rewrite("support")

from support.broker_process import BrokerProcess  # noqa: E402

# Runs are repeatable: a failure shows up again on the next run with the same code.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Brokers with settings of their own: `make_broker(**{"num.partitions": "4"})`."""
    made: list[BrokerProcess] = []

    def make(**overrides: str) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / f"data-{len(made)}", overrides)
        broker.start()
        made.append(broker)
        return broker

    yield make
    for broker in made:
        if broker.is_running:
            broker.kill()


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker with default settings and an empty folder."""
    return make_broker()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of a module, which keep apart by topic names."""
    broker = BrokerProcess(tmp_path_factory.mktemp("shared") / "data", {"num.partitions": "4"})
    broker.start()
    yield broker
    broker.kill()
