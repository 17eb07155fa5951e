"""TxnOffsetCommit with our tag: acknowledgements that count when their transaction is committed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_calls import GROUP
from handler_calls import Call
from individual_commit_calls import (
    HIGH,
    LOW,
    RECORDS,
    TOPIC,
    SharedNode,
    Sharer,
    ack,
    settle,
)

from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import SlotRange
from anabranch.wire.messages.cooperation import FailedRecord, IndividualCommit
from anabranch.wire.messages.end_txn import EndTxnRequest
from anabranch.wire.messages.init_producer_id import InitProducerIdRequest
from anabranch.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponsePartition,
)
from support.fake_loop import FakeLoop

OK = ErrorCode.NONE
ELSEWHERE = (ErrorCode.CONCURRENT_TRANSACTIONS, SubCode.PENDING_IN_OTHER_TRANSACTION)
TIMEOUT_MS = 60_000
SESSION_MS = 45_000
MakeNode = Callable[..., SharedNode]


class OneNode(SharedNode):
    """A topic of one partition."""

    partitions = 1


@pytest.fixture
def make(tmp_path: Path, loop: FakeLoop) -> Iterator[MakeNode]:
    nodes: list[SharedNode] = []

    def start(*overrides: str) -> SharedNode:
        made = OneNode(
            tmp_path / "data", loop, "transaction.state.log.num.partitions=1", *overrides
        )
        nodes.append(made)
        made.broker.groups.start()
        made.broker.transactions.start()
        return made

    yield start
    for one in nodes:
        close(one)


def close(node: SharedNode) -> None:
    node.broker.transactions.stop()
    node.close()


@pytest.fixture
def node(make: MakeNode) -> SharedNode:
    return make()


class Transaction:
    """A producer with a transactional id of its own, and the transaction that it has open."""

    def __init__(self, node: SharedNode, name: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.node = node
        self.name = name
        answer = node.call(
            InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms), 5
        )
        assert answer.error_code == OK
        self.producer = (answer.producer_id, answer.producer_epoch)

    def begin_ack(
        self,
        member: Sharer,
        watermark: int = -1,
        *pairs: tuple[int, int],
        slots: SlotRange | None = None,
        version: int = 5,
        committed_offset: int = -1,
        topic: str = TOPIC,
        failures: list[FailedRecord] | None = None,
        **changes: Any,
    ) -> Call:
        """Acknowledge records of the range that a member has, or of another one."""
        slots = slots if slots is not None else member.slots()
        said = ack(slots, member.ranges.get((0, slots), member.epoch), watermark, *pairs)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=committed_offset,
            committed_metadata=None,
            individual=IndividualCommit(acks=[said], failures=failures or []),
        )
        values: dict[str, Any] = {
            "transactional_id": self.name,
            "group_id": GROUP,
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
            "generation_id": member.epoch,
            "member_id": member.member_id,
            "topics": [TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        }
        return self.node.begin(TxnOffsetCommitRequest(**values | changes), version)

    def ack(self, *args: Any, **how: Any) -> TxnOffsetCommitResponsePartition:
        answered: TxnOffsetCommitResponsePartition = (
            self.begin_ack(*args, **how).answer.topics[0].partitions[0]
        )
        return answered

    def commit_offset(self, member: Sharer, offset: int) -> int:
        """Commit an offset for the whole partition."""
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=GROUP,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            generation_id=member.epoch,
            member_id=member.member_id,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )
        code: int = self.node.call(request, 5).topics[0].partitions[0].error_code
        return code

    def begin_end(self, *, is_commit: bool = True) -> Call:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=is_commit,
        )
        return self.node.begin(request, 5)

    def end(self, *, is_commit: bool = True) -> int:
        answer = self.begin_end(is_commit=is_commit).answer
        if answer.error_code == OK:
            self.producer = (answer.producer_id, answer.producer_epoch)
        code: int = answer.error_code
        return code

    @property
    def state(self) -> str:
        return self.node.broker.transactions.describe(self.name).state


def codes(answered: TxnOffsetCommitResponsePartition) -> list[tuple[int, int]]:
    """The codes of the parts of an acknowledgement that was taken as a whole."""
    assert answered.error_code == OK
    assert answered.individual is not None
    return [(one.error_code, one.sub_code) for one in answered.individual.outcomes]


def refusal(answered: TxnOffsetCommitResponsePartition) -> tuple[int, int]:
    assert answered.individual is not None
    return answered.error_code, answered.individual.sub_code


def two_members(node: SharedNode) -> tuple[Sharer, Sharer]:
    """A group of two, each with half of the slots, who have been shown everything."""
    first, second = Sharer(node, "a"), Sharer(node, "b")
    settle(first, second)
    low, high = sorted((first, second), key=lambda one: one.slots())
    assert (low.slots(), high.slots()) == (LOW, HIGH)
    for member in (low, high):
        assert member.fetch() == RECORDS
    return low, high


def committed(node: SharedNode, *, is_stable: bool) -> tuple[int, int]:
    """The error and the committed offset, as others than members are told."""
    asked = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])
    request = OffsetFetchRequest(groups=[group], require_stable=is_stable)
    [one] = node.call(request, 9).groups[0].topics[0].partitions
    return one.error_code, one.committed_offset


def watermarks(node: SharedNode) -> list[tuple[Any, ...]]:
    return [(slots, watermark, done) for slots, watermark, done, *_ in node.ranges()]


# Commit and abort -------------------------------------------------------------------------------


def test_what_is_committed_counts(node: SharedNode) -> None:
    """Until then nothing of it is seen but that it is not certain."""
    low, high = two_members(node)
    low.ack(10)
    high.ack(10)
    one, other = Transaction(node, "one"), Transaction(node, "other")

    answered = one.ack(low, 20, (25, 29))
    assert codes(answered) == [(OK, 0)]
    assert answered.individual is not None
    assert answered.individual.stable_offset == 10
    assert codes(other.ack(high, 40)) == [(OK, 0)]
    assert watermarks(node) == [(LOW, 10, []), (HIGH, 10, [])]
    assert committed(node, is_stable=False) == (OK, 10)
    assert committed(node, is_stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)

    assert other.end() == OK
    assert watermarks(node) == [(LOW, 10, []), (HIGH, 40, [])]
    assert committed(node, is_stable=False) == (OK, 10)
    assert one.end() == OK
    assert watermarks(node) == [(LOW, 20, [(25, 29)]), (HIGH, 40, [])]
    assert committed(node, is_stable=True) == (OK, 20)


def test_what_is_aborted_was_never_done(node: SharedNode) -> None:
    """And can be acknowledged again, in the next transaction or in none."""
    low, high = two_members(node)
    one = Transaction(node, "one")
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    assert codes(one.ack(high, 20)) == [(OK, 0)]
    assert one.end(is_commit=False) == OK
    assert watermarks(node) == [(LOW, -1, []), (HIGH, -1, [])]
    assert committed(node, is_stable=True) == (OK, -1)
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    assert one.end() == OK
    assert high.ack(15).error_code == OK
    assert committed(node, is_stable=True) == (OK, 15)
