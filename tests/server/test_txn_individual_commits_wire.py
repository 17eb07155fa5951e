"""Individual commits in transactions over sockets: two clients, KIP-X's steps, kill -9."""

from typing import Any

import pytest

from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, hashes_of
from anabranch.wire import offset_set
from anabranch.wire.messages.cooperation import IndividualCommit, RangeAck
from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest
from anabranch.wire.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.wire.messages.txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from support.broker_process import BrokerProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic

_GROUP_RESOURCE = 32


class Worker:
    """A client without a group's membership: it acknowledges records of all keys."""

    def __init__(self, broker: BrokerProcess, topic: str, name: str) -> None:
        self.topic = topic
        self.name = f"{topic}-{name}"
        self.client = RawClient(broker.bootstrap)
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        answer = self.client.send(INIT_PRODUCER_ID, 5, request)
        assert answer.error_code == ErrorCode.NONE
        self.producer = (answer.producer_id, answer.producer_epoch)

    def post_ack(self, first: int, last: int) -> int:
        """Acknowledge [first-last] in the transaction, without waiting for the answer."""
        first_hash, last_hash = hashes_of(ALL_SLOTS)
        done = offset_set.encode(OffsetRanges([(first, last)]))
        said = RangeAck(first_hash=first_hash, last_hash=last_hash, epoch=-1, done=done)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=-1,
            committed_metadata=None,
            individual=IndividualCommit(acks=[said]),
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.topic,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=[TxnOffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )
        return self.client.post(TXN_OFFSET_COMMIT, 5, request)

    def heard(self, posted: int) -> tuple[Any, ...]:
        """The error, the stable offset and the codes of the parts."""
        answer = self.client.receive(TXN_OFFSET_COMMIT, 5, posted)
        [partition] = answer.topics[0].partitions
        told = partition.individual
        codes = [one.error_code for one in told.outcomes]
        return partition.error_code, told.stable_offset, codes

    def end(self, *, is_commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=is_commit,
        )
        answer = self.client.send(END_TXN, 5, request)
        assert answer.error_code == ErrorCode.NONE
        self.producer = (answer.producer_id, answer.producer_epoch)

    def close(self) -> None:
        self.client.close()


def begin(broker: BrokerProcess, topic: str, order: str) -> None:
    """Fifty records, of which the group named as the topic has done those below 40."""
    create_topic(broker.bootstrap, topic, 1, {"range.fetch.enable": "true"})
    with RawClient(broker.bootstrap) as client:
        assert client.produce(topic, 0, batch_of([b"v"] * 50)).error_code == ErrorCode.NONE
        config = IncrementalAlterableConfig(name="coop.txn.order", value=order)
        resource = IncrementalAlterConfigsResource(
            resource_type=_GROUP_RESOURCE, resource_name=topic, configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        [answer] = client.send(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=40)
        plain = OffsetCommitRequest(
            group_id=topic,
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        answered = client.send(OFFSET_COMMIT, 9, plain).topics[0].partitions[0]
        assert answered.error_code == ErrorCode.NONE


def committed(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    """What readers are told who want stable offsets."""
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=topic, topics=[asked])
    request = OffsetFetchRequest(groups=[group], require_stable=True)
    with RawClient(broker.bootstrap) as client:
        [one] = client.send(OFFSET_FETCH, 9, request).groups[0].topics[0].partitions
    return one.error_code, one.committed_offset


@pytest.mark.parametrize("order", ["any", "stable"])
def test_the_seven_steps_of_kip_x(shared_broker: BrokerProcess, order: str) -> None:
    """With `stable` B hears nothing before A has committed; with `any` it does not matter."""
    topic = f"steps-{order}"
    begin(shared_broker, topic, order)
    a, b = Worker(shared_broker, topic, "a"), Worker(shared_broker, topic, "b")
    asked = b.post_ack(45, 49)
    if order == "any":
        assert b.heard(asked) == (ErrorCode.NONE, 40, [ErrorCode.NONE])
        b.end(is_commit=True)
    assert a.heard(a.post_ack(40, 44)) == (ErrorCode.NONE, 40, [ErrorCode.NONE])
    assert committed(shared_broker, topic)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    a.end(is_commit=True)
    if order == "stable":
        assert b.heard(asked) == (ErrorCode.NONE, 45, [ErrorCode.NONE])
        b.end(is_commit=True)
    assert committed(shared_broker, topic) == (ErrorCode.NONE, 50)
    a.close()
    b.close()


@pytest.mark.parametrize("is_commit", [True, False])
def test_what_is_pending_survives_kill_9(shared_broker: BrokerProcess, is_commit: bool) -> None:
    """The transaction goes on after the start, and ends as its producer says."""
    topic = f"killed-{is_commit}"
    begin(shared_broker, topic, "any")
    worker = Worker(shared_broker, topic, "w")
    assert worker.heard(worker.post_ack(40, 44))[0] == ErrorCode.NONE
    worker.close()
    shared_broker.kill()
    shared_broker.start()
    assert committed(shared_broker, topic)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    worker.client = RawClient(shared_broker.bootstrap)
    worker.end(is_commit=is_commit)
    assert committed(shared_broker, topic) == (ErrorCode.NONE, 45 if is_commit else 40)
    worker.close()
