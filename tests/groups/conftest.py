"""The folder's own modules can be imported by its tests; the scene they all play in."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("members", "scene", "stories")

from scene import Scene  # noqa: E402

from support.broker_process import BrokerProcess  # noqa: E402


@pytest.fixture
def scene(make_broker: Callable[..., BrokerProcess]) -> Iterator[Scene]:
    broker = make_broker(
        **{"group.initial.rebalance.delay.ms": "300", "group.min.session.timeout.ms": "1000"}
    )
    made = Scene(broker, "orders")
    yield made
    for member in made.members:
        member.kill()
