"""Consumer groups of librdkafka, as processes: they share the partitions and lose nothing."""

import pytest
import stories
from confluent_kafka import Consumer, KafkaException, TopicPartition
from scene import Scene

CLIENT = "confluent"
every_strategy = pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])


@every_strategy
@pytest.mark.parametrize("count", [1, 3, 10])
def test_some_at_once(scene: Scene, strategy: str, count: int) -> None:
    """One, three or ten consumers that start together share the topic evenly."""
    stories.some_at_once(scene, CLIENT, strategy, count)


@every_strategy
def test_two_seconds_apart(scene: Scene, strategy: str) -> None:
    """Three consumers that start two seconds apart come to even shares; so when one leaves."""
    stories.two_seconds_apart(scene, CLIENT, strategy)


@every_strategy
def test_one_dies(scene: Scene, strategy: str) -> None:
    """The partitions of a consumer that died go to the others when its session is over."""
    stories.one_dies(scene, CLIENT, strategy)


@every_strategy
def test_one_is_paused(scene: Scene, strategy: str) -> None:
    """A consumer stopped past its session, just before a commit, is refused when it wakes."""
    stories.one_is_paused(scene, CLIENT, strategy)


@every_strategy
def test_rolling_restart(scene: Scene, strategy: str) -> None:
    """A rolling restart of static members moves no partition and disturbs nobody."""
    stories.rolling_restart(scene, CLIENT, strategy)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_broker_dies(scene: Scene, strategy: str) -> None:
    """After kill -9 of the broker its ten members go on in the generation they were in."""
    stories.broker_dies(scene, [(CLIENT, strategy)] * 10)


def test_a_stranger_cannot_commit(scene: Scene) -> None:
    """Who is no member cannot commit for a group that has members."""
    scene.join()
    scene.settled()
    stranger = Consumer({"bootstrap.servers": scene.broker.bootstrap, "group.id": scene.group})
    with pytest.raises(KafkaException) as refusal:
        stranger.commit(offsets=[TopicPartition(scene.topic, 0, 1)], asynchronous=False)
    stranger.close()
    assert refusal.value.args[0].name() == "UNKNOWN_MEMBER_ID"
