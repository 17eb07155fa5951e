"""Consumer groups (KIP-848) through their handlers: members that say what a test wants them to."""

from pathlib import Path
from typing import Any

from group_calls import GROUP, REBALANCE_MS, GroupNode

from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedGroup,
)
from anabranch.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from support.fake_loop import FakeLoop

TOPIC = "t"
PARTITIONS = 4


class ConsumerNode(GroupNode):
    """A broker with one topic of four partitions, whose targets are made at once."""

    def __init__(self, folder: Path, loop: FakeLoop, *overrides: str) -> None:
        super().__init__(
            folder,
            loop,
            "group.consumer.assignment.interval.ms=0",
            "group.consumer.min.assignment.interval.ms=0",
            *overrides,
        )
        if self.broker.topics.get(TOPIC) is None:
            self.create_topic(TOPIC, PARTITIONS)
        self.topic_id: bytes = self.broker.topics.get(TOPIC).topic_id  # type: ignore[union-attr]

    @property
    def consumer_group(self) -> ConsumerGroup:
        group = self.broker.groups.group(GROUP)
        assert isinstance(group, ConsumerGroup)
        return group

    def beat(
        self, member_id: str, epoch: int, version: int = 1, **changes: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat; `owned` are partitions of the topic."""
        if "owned" in changes:
            changes["topic_partitions"] = self._topic_partitions(changes.pop("owned"))
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "member_epoch": epoch,
        }
        answer: ConsumerGroupHeartbeatResponse = self.call(
            ConsumerGroupHeartbeatRequest(**values | changes), version
        )
        return answer

    def _topic_partitions(self, owned: list[int] | None) -> list[TopicPartitions] | None:
        if owned is None:
            return None
        return [TopicPartitions(topic_id=self.topic_id, partitions=owned)] if owned else []

    def enter(
        self, member_id: str, version: int = 1, **changes: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """The first heartbeat of a member, whatever comes of it."""
        values: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        }
        return self.beat(member_id, 0, version, **values | changes)

    def describe_consumer(self, group_id: str = GROUP, version: int = 1, **changes: Any) -> Any:
        request = ConsumerGroupDescribeRequest(group_ids=[group_id], **changes)
        (described,) = self.call(request, version).groups
        assert isinstance(described, DescribedGroup)
        return described


class Member:
    """A member that does what a client does: takes what it is given and says what it has."""

    def __init__(self, node: ConsumerNode, member_id: str, **joining: Any) -> None:
        self.node = node
        self.owned: list[int] = []
        answer = node.enter(member_id, **joining)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        self.member_id = answer.member_id or ""
        self.epoch = answer.member_epoch
        self._take(answer)

    def beat(self, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        """Say that nothing is new, or what is."""
        answer = self.node.beat(self.member_id, self.epoch, **changes)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        self.epoch = answer.member_epoch
        self._take(answer)
        return answer

    def confirm(self) -> ConsumerGroupHeartbeatResponse:
        """Say what it has."""
        return self.beat(owned=self.owned)

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.assignment is not None:
            self.owned = partitions(answer)


def partitions(answer: ConsumerGroupHeartbeatResponse) -> list[int]:
    """The partitions in an answer, which are all of one topic."""
    assert answer.assignment is not None
    return [p for topic in answer.assignment.topic_partitions for p in topic.partitions]


def settle(*members: Member) -> None:
    """Let members speak until nothing moves any more."""
    for _ in range(10):
        if members[0].node.consumer_group.is_settled:
            return
        for member in members:
            member.confirm()
    raise AssertionError("the group does not settle")
