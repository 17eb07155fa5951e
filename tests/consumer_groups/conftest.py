"""The folder's own modules can be imported by its tests; the stage they all play on."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The histories of members are read in the same way as those of classic groups.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "groups")]

pytest.register_assert_rewrite("stage", "members")

from stage import Stage  # noqa: E402

from support.broker_process import BrokerProcess  # noqa: E402

# As short as a machine that is busy with other tests lets healthy members live with.
SHORT_SESSION = {
    "group.consumer.session.timeout.ms": "5000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
}


@pytest.fixture
def make_stage(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> Iterator[Callable[..., Stage]]:
    """A stage whose broker has settings of its own; the histories stay in the test's folder."""
    made: list[Stage] = []

    def make(rate_per_s: int = 200, **overrides: str) -> Stage:
        made.append(Stage(make_broker(**overrides), rate_per_s))
        return made[-1]

    yield make
    for stage in made:
        for member in stage.members:
            member.kill()
        stage.load.abandon()
        stage.write_histories(tmp_path)


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    """A broker with its default settings."""
    return make_stage()


@pytest.fixture
def brief_stage(make_stage: Callable[..., Stage]) -> Stage:
    """A broker that forgets silent members after five seconds."""
    return make_stage(**SHORT_SESSION)
