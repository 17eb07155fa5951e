"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over a socket, as a client sends them."""

import pytest

from anabranch.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
)
from anabranch.wire.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from support.broker_process import BrokerProcess
from support.raw_client import RawClient


@pytest.mark.parametrize("version", [0, 1])
def test_two_members_hand_over(shared_broker: BrokerProcess, version: int) -> None:
    """Frames of both versions: join, be told to give up, confirm, get, be described, leave."""
    group = topic = f"wire-{version}"

    with RawClient(shared_broker.bootstrap) as client:
        found = client.metadata(topic, auto_create=True)
        while found.topics[0].error_code:
            found = client.metadata(topic, auto_create=True)
        topic_id, count = found.topics[0].topic_id, len(found.topics[0].partitions)

        def beat(member_id: str, epoch: int, owned: list[int] | None = None) -> tuple[int, list]:
            parts = [TopicPartitions(topic_id=topic_id, partitions=owned)] if owned else []
            request = ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id=member_id,
                member_epoch=epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=[topic],
                topic_partitions=parts,
            )
            answer = client.send(CONSUMER_GROUP_HEARTBEAT, version, request)
            assert answer.error_code == 0, answer.error_message
            assert answer.member_id == member_id
            given = answer.assignment.topic_partitions if answer.assignment else []
            return answer.member_epoch, [p for one in given for p in one.partitions]

        def describe(asks: bool) -> object:
            request = ConsumerGroupDescribeRequest(group_ids=[group], include_movements=asks)
            return client.send(CONSUMER_GROUP_DESCRIBE, version, request).groups[0]

        epoch_a, owned_a = beat("a", 0)
        assert owned_a == list(range(count)) and count > 1
        epoch_b, owned_b = beat("b", 0)
        while owned_a == list(range(count)):
            epoch_a, owned_a = beat("a", epoch_a, list(range(count)))
        epoch_b, owned_b = beat("b", epoch_b, [])
        assert owned_b == []
        asked, plain = describe(asks=True), describe(asks=False)
        assert {(m.from_member_id, m.to_member_id, m.state) for m in asked.movements} == {
            ("a", "b", "revoking")
        }
        assert plain.movements == []
        assert [member.member_id for member in plain.members] == ["a", "b"]
        epoch_a, owned_a = beat("a", epoch_a, owned_a)
        epoch_b, owned_b = beat("b", epoch_b, [])
        assert sorted(owned_a + owned_b) == list(range(count))
        assert epoch_a == epoch_b
        assert describe(asks=True).group_state == "Stable"
        for member_id in ("a", "b"):
            assert beat(member_id, -1) == (-1, [])
        assert describe(asks=True).group_state == "Empty"
