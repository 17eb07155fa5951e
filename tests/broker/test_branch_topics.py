"""Branch topics as the broker makes, keeps and deletes them, whoever asks for it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch.broker.branch_topics import growth_with_branches
from anabranch.broker.broker import Broker
from anabranch.broker.topics import Topic
from anabranch.config.load import load_settings
from anabranch.model.errors import ErrorCode, KafkaError

BRANCHES_OF_T = {"branch.source.topic": "t"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start a broker on the same folder; the one before is stopped."""
    running: list[Broker] = []

    def stop() -> None:
        while running:
            running.pop().close()

    def make(*overrides: str) -> Broker:
        stop()
        settings = load_settings(environ={}, overrides=[f"log.dirs={tmp_path}", *overrides])
        running.append(Broker(settings, now_ms=lambda: 0))
        return running[0]

    yield make
    stop()


def refusal(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        action()
    return caught.value.code


def found(broker: Broker, name: str) -> Topic:
    topic = broker.topics.get(name)
    assert topic is not None
    return topic


def test_a_source_cannot_be_deleted_by_anybody(start: Callable[..., Broker]) -> None:
    """The broker itself refuses, so that no branch topic is ever without its records."""
    broker = start()
    source = broker.create_topic("t", 2)
    branched = broker.create_topic("b", 4, BRANCHES_OF_T)
    assert refusal(lambda: broker.delete_topic(source)) is ErrorCode.POLICY_VIOLATION
    assert broker.topics.get("t") is source
    broker.delete_topic(branched)
    broker.delete_topic(source)
    assert len(start().topics) == 0


def test_a_refused_creation_leaves_nothing(start: Callable[..., Broker]) -> None:
    """Neither in memory nor on the disk."""
    broker = start()
    broker.create_topic("t", 2)
    assert refusal(lambda: broker.create_topic("b", 3, BRANCHES_OF_T)) is (
        ErrorCode.INVALID_PARTITIONS
    )
    assert refusal(
        lambda: broker.create_topic("b", -1, {**BRANCHES_OF_T, "retention.ms": "1"})
    ) is (ErrorCode.INVALID_CONFIG)
    assert found(broker, "t").branch_topics == []
    assert [topic.name for topic in start().topics] == ["t"]


def test_the_default_ranges_can_change_while_the_broker_runs(start: Callable[..., Broker]) -> None:
    """New branch topics follow the setting, those that are there do not."""
    broker = start("branch.ranges.per.partition=2")
    broker.create_topic("t", 3)
    first = broker.create_topic("a", -1, BRANCHES_OF_T)
    broker.set_broker_configs("", {"branch.ranges.per.partition": "5"})
    second = broker.create_topic("b", -1, BRANCHES_OF_T)
    assert (len(first.partitions), len(second.partitions)) == (6, 15)
    again = start()
    assert [len(found(again, name).partitions) for name in ("a", "b")] == [6, 15]


def test_growth_counts_all_branches(start: Callable[..., Broker]) -> None:
    """A partition of a source comes with those of each branch topic."""
    broker = start()
    source = broker.create_topic("t", 1)
    assert growth_with_branches(source, 3) == 3
    broker.create_topic("a", 2, BRANCHES_OF_T)
    broker.create_topic("b", 5, BRANCHES_OF_T)
    assert growth_with_branches(source, 3) == 3 * (1 + 2 + 5)


def test_branches_follow_the_logs_of_their_source(start: Callable[..., Broker]) -> None:
    """Whatever was grown before a restart, each branch reads the log of its own partition."""
    broker = start()
    source = broker.create_topic("t", 3)
    broker.create_topic("b", 6, BRANCHES_OF_T)
    broker.topics.grow(source, 4, 0)
    late = broker.create_topic("late", 8, BRANCHES_OF_T)
    broker.topics.grow(source, 5, 0)
    for running in (broker, start()):
        for name in ("b", "late"):
            topic = found(running, name)
            assert len(topic.partitions) == 10
            assert topic.layout is not None
            for part in topic.partitions:
                branch = topic.layout.branch_at(part.index)
                assert part.log is found(running, "t").partitions[branch.partition].log
                assert part.branch is not None
                assert part.branch.range_index == branch.range_index
                assert part.branch.tail.branches[branch.range_index] is part
    assert late.layout is not None
    assert late.layout.partitions == 4


def test_a_topic_of_the_sources_old_name_is_another_topic(start: Callable[..., Broker]) -> None:
    """A source that was deleted and made again has no branch topics."""
    broker = start()
    source = broker.create_topic("t", 1)
    broker.delete_topic(broker.create_topic("b", 2, BRANCHES_OF_T))
    broker.delete_topic(source)
    again = broker.create_topic("t", 1)
    assert again.branch_topics == []
    assert broker.create_topic("b", 3, BRANCHES_OF_T).source is again
