"""Consumer groups of kafka-python and aiokafka, as processes, also mixed with librdkafka."""

import pytest
import stories
from scene import Scene

every_client = pytest.mark.parametrize(
    ("client", "strategy"), [("kafka-python", "range"), ("aiokafka", "roundrobin")]
)
MIXED = [("confluent", "range")] * 4 + [("kafka-python", "range")] * 3 + [("aiokafka", "range")] * 3


@every_client
@pytest.mark.parametrize("count", [1, 3, 10])
def test_some_at_once(scene: Scene, client: str, strategy: str, count: int) -> None:
    """One, three or ten consumers that start together share the topic evenly."""
    stories.some_at_once(scene, client, strategy, count)


@pytest.mark.parametrize(
    ("client", "strategy"),
    [("kafka-python", "range"), ("kafka-python", "cooperative-sticky"), ("aiokafka", "roundrobin")],
)
def test_two_seconds_apart(scene: Scene, client: str, strategy: str) -> None:
    """Three consumers that start two seconds apart come to even shares; so when one leaves."""
    stories.two_seconds_apart(scene, client, strategy)


@every_client
def test_one_dies(scene: Scene, client: str, strategy: str) -> None:
    """The partitions of a consumer that died go to the others when its session is over."""
    stories.one_dies(scene, client, strategy)


@every_client
def test_one_is_paused(scene: Scene, client: str, strategy: str) -> None:
    """A consumer stopped past its session, just before a commit, is refused when it wakes."""
    stories.one_is_paused(scene, client, strategy)


@every_client
def test_rolling_restart(scene: Scene, client: str, strategy: str) -> None:
    """A rolling restart of static members moves no partition and disturbs nobody."""
    stories.rolling_restart(scene, client, strategy)


def test_broker_dies(scene: Scene) -> None:
    """After kill -9 of the broker ten members of three clients go on in their generation."""
    stories.broker_dies(scene, MIXED)
