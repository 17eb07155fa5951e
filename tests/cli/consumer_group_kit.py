"""Members of consumer groups that do only what a test has them do."""

from typing import Any

from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from support.raw_client import RawClient


class WireMember:
    """A member that gives up what it was told to only when a test lets it confirm."""

    def __init__(self, bootstrap: str, group: str, member_id: str, topic: str, **more: Any) -> None:
        self.group = group
        self.member_id = member_id
        self.client = RawClient(bootstrap, client_id=f"{member_id}-client")
        (found,) = self.client.metadata(topic).topics
        self.topic_id = found.topic_id
        self.epoch = 0
        self.owned: list[int] = []
        self._beat(
            rebalance_timeout_ms=600_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
            **more,
        )

    def beat(self) -> None:
        """Say nothing but that it is there."""
        self._beat()

    def confirm(self) -> None:
        """Say what it has."""
        parts = [TopicPartitions(topic_id=self.topic_id, partitions=self.owned)]
        self._beat(topic_partitions=parts if self.owned else [])

    def leave(self) -> None:
        self.epoch = -1
        self._beat()
        self.client.close()

    def _beat(self, **values: Any) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, **values
        )
        answer = self.client.send(CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert answer.error_code == 0, answer.error_message
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [p for t in answer.assignment.topic_partitions for p in t.partitions]
