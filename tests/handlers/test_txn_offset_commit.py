"""TxnOffsetCommit: offsets that count when their transaction is committed."""

from collections.abc import Callable
from typing import Any

import pytest
from transaction_calls import ID, TIMEOUT_MS, TransactionNode

from anabranch.coordinator.transaction.commands import AbortTransaction
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.delete_groups import DeleteGroupsRequest
from anabranch.wire.messages.delete_topics import DeleteTopicsRequest
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

OFFSETS = "__consumer_offsets"
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
ABORT, COMMIT = 0, 1
MakeNode = Callable[..., TransactionNode]


def begin_commit(
    node: TransactionNode,
    producer: tuple[int, int],
    offset: int,
    *places: tuple[str, int],
    version: int = 5,
    **changes: Any,
) -> Any:
    topics = [
        TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata="m"
                )
            ],
        )
        for name, index in places or (("t", 0),)
    ]
    values: dict[str, Any] = {
        "transactional_id": ID,
        "group_id": "g",
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "topics": topics,
    }
    return node.begin(TxnOffsetCommitRequest(**values | changes), version)


def commit(node: TransactionNode, producer: tuple[int, int], *args: Any, **how: Any) -> list[int]:
    """The error of each partition that offsets were committed for in a transaction."""
    answer = begin_commit(node, producer, *args, **how).answer
    return [one.error_code for topic in answer.topics for one in topic.partitions]


def fetch(
    node: TransactionNode, *, is_stable: bool = True, version: int = 9, partition: int = 0
) -> tuple[int, int]:
    """The error and the committed offset of a partition."""
    if version < 8:
        request = OffsetFetchRequest(
            group_id="g",
            topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[partition])],
            require_stable=is_stable,
        )
        [topic] = node.call(request, version).topics
    else:
        asked = OffsetFetchRequestTopics(name="t", partition_indexes=[partition])
        group = OffsetFetchRequestGroup(group_id="g", topics=[asked])
        request = OffsetFetchRequest(groups=[group], require_stable=is_stable)
        [topic] = node.call(request, version).groups[0].topics
    [one] = topic.partitions
    return one.error_code, one.committed_offset


def commit_plainly(node: TransactionNode, offset: int) -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    code: int = node.call(request, 9).topics[0].partitions[0].error_code
    return code


# Commit and abort -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_client_of_version_2(transaction_node: TransactionNode, is_commit: bool) -> None:
    """The broker adds the group to the transaction; its offsets count if that is committed."""
    node = transaction_node
    producer_id, epoch = producer = node.start_producer()
    assert commit_plainly(node, 1) == 0
    assert commit(node, producer, 5, ("t", 0), ("t", 1)) == [0, 0]
    assert node.state == "Ongoing"
    assert fetch(node) == (UNSTABLE, -1)
    assert fetch(node, is_stable=False) == (0, 1)
    assert node.end(producer, is_commit=is_commit)[0] == 0
    assert fetch(node) == (0, 5 if is_commit else 1)
    assert fetch(node, partition=1) == (0, 5 if is_commit else -1)
    assert node.markers(OFFSETS) == [(COMMIT if is_commit else ABORT, producer_id, epoch + 1)]
    assert node.log(OFFSETS).last_stable_offset == node.log(OFFSETS).log_end_offset


@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_an_older_client_adds_the_group_itself(
    transaction_node: TransactionNode, version: int
) -> None:
    """Without that the offsets are not taken: nobody would end the transaction."""
    node = transaction_node
    producer = node.start_producer(version=3)
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert commit(node, producer, 5, version=version) == [expected]
    assert node.log(OFFSETS).log_end_offset == 0
    assert node.add_offsets(producer) == 0
    assert commit(node, producer, 5, version=version) == [0]
    assert commit(node, producer, 6, version=version) == [0]
    assert node.end(producer, version=3)[0] == 0
    assert fetch(node) == (0, 6)


def test_verification_can_be_turned_off(make_transaction_node: MakeNode) -> None:
    """Then an older client is believed, as before KIP-890."""
    node = make_transaction_node("transaction.partition.verification.enable=false")
    producer = node.start_producer(version=3)
    assert commit(node, producer, 5, version=3) == [0]


@pytest.mark.parametrize("version", [7, 8, 9])
def test_require_stable(transaction_node: TransactionNode, version: int) -> None:
    """From version 7 on, and only for partitions that a transaction may still change."""
    node = transaction_node
    producer = node.start_producer()
    commit_plainly(node, 1)
    assert commit(node, producer, 5, ("t", 1)) == [0]
    assert fetch(node, version=version) == (0, 1)
    assert fetch(node, version=version, partition=1) == (UNSTABLE, -1)
    assert fetch(node, version=version, is_stable=False, partition=1) == (0, -1)
    assert fetch(node, version=6, is_stable=False, partition=1) == (0, -1)


def test_a_plain_commit_meanwhile_wins(transaction_node: TransactionNode) -> None:
    """It is the later one, whatever becomes of the transaction."""
    node = transaction_node
    producer = node.start_producer()
    commit(node, producer, 5)
    commit_plainly(node, 3)
    assert node.end(producer)[0] == 0
    assert fetch(node) == (0, 3)


def test_a_transaction_whose_time_is_up_takes_its_offsets_with_it(
    transaction_node: TransactionNode,
) -> None:
    """And the producer cannot commit any more."""
    node = transaction_node
    producer = node.start_producer()
    commit(node, producer, 5)
    node.pass_ms(TIMEOUT_MS + 1)
    assert fetch(node) == (0, -1)
    assert commit(node, producer, 6) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_records_and_offsets_end_together(transaction_node: TransactionNode) -> None:
    """Consume, transform, produce: one marker in each partition."""
    node = transaction_node
    producer = node.start_producer()
    assert node.produce(producer) == [0]
    assert commit(node, producer, 5) == [0]
    assert node.end(producer)[0] == 0
    assert (len(node.markers()), len(node.markers(OFFSETS))) == (1, 1)
    assert fetch(node) == (0, 5)


def test_a_restart_in_the_middle(make_transaction_node: MakeNode) -> None:
    """What is pending stays so; the end comes when the producer goes on."""
    node = make_transaction_node()
    producer = node.start_producer()
    commit(node, producer, 5)
    node.close()
    node = make_transaction_node()
    assert fetch(node) == (UNSTABLE, -1)
    assert node.end(producer)[0] == 0
    assert fetch(node) == (0, 5)
    node.close()
    assert fetch(make_transaction_node()) == (0, 5)


def test_a_decision_before_a_crash_is_carried_out_by_the_start(
    make_transaction_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of the offsets is written before anybody can ask."""
    node = make_transaction_node()
    producer = node.start_producer()
    commit(node, producer, 5)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

    monkeypatch.setattr(node.broker.groups, "end_transaction", refuse)
    assert node.end(producer)[0] == 0  # it is decided
    assert fetch(node) == (UNSTABLE, -1)
    node.close()
    assert fetch(make_transaction_node()) == (0, 5)


# Refusals ---------------------------------------------------------------------------------------


def test_what_does_not_exist_is_refused_for_itself(transaction_node: TransactionNode) -> None:
    """The rest is committed; with nothing left nobody is asked."""
    node = transaction_node
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(node, (99, 0), 5, ("t", 9), ("no", 0)) == [unknown, unknown]
    producer = node.start_producer()
    assert commit(node, producer, 5, ("t", 9), ("t", 0)) == [unknown, 0]


def test_a_zombie_commits_nothing(transaction_node: TransactionNode) -> None:
    """It is told as a producer of records is."""
    node = transaction_node
    zombie = node.start_producer()
    node.start_producer()
    assert commit(node, zombie, 5) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert commit(node, zombie, 5, version=3) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_a_zombie_is_known_by_the_journal_too(make_transaction_node: MakeNode) -> None:
    """Where the coordinator is not asked."""
    node = make_transaction_node("transaction.partition.verification.enable=false")
    producer_id, epoch = producer = node.start_producer()
    commit(node, producer, 5)
    node.end(producer)
    assert commit(node, producer, 6, version=3) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert commit(node, (producer_id, epoch + 1), 6, version=3) == [0]


def test_an_unknown_transactional_id(transaction_node: TransactionNode) -> None:
    """Nobody has initialized it."""
    node = transaction_node
    expected = [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert commit(node, (7, 0), 5) == expected
    assert commit(node, (7, 0), 5, version=3) == expected


def test_a_group_needs_a_name(transaction_node: TransactionNode) -> None:
    """And nothing is added to the transaction for one without."""
    node = transaction_node
    producer = node.start_producer()
    assert commit(node, producer, 5, group_id="") == [ErrorCode.INVALID_GROUP_ID]
    assert node.state == "Empty"


def test_a_member_that_is_not_of_today(transaction_node: TransactionNode) -> None:
    """From version 3 on the consumer is named, and fenced with its group."""
    node = transaction_node
    producer = node.start_producer()
    who = {"member_id": "m", "generation_id": 3}
    assert commit(node, producer, 5, **who) == [ErrorCode.ILLEGAL_GENERATION]


def test_metadata_that_is_too_long(make_transaction_node: MakeNode) -> None:
    """Is refused for its partition."""
    node = make_transaction_node("offset.metadata.max.bytes=0")
    producer = node.start_producer()
    assert commit(node, producer, 5) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.parametrize(
    ("version", "code", "told"),
    [
        (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (1, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (4, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (5, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (5, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_errors_are_told_as_a_version_knows_them(
    transaction_node: TransactionNode,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    code: ErrorCode,
    told: ErrorCode,
) -> None:
    """Every client tries again where that helps."""
    node = transaction_node
    producer = node.start_producer()

    def refuse(*args: Any) -> None:
        raise KafkaError(code, "for the test")

    monkeypatch.setattr(node.broker.transactions, "submit", refuse)
    assert commit(node, producer, 5, version=version) == [told]


# What else knows of them ------------------------------------------------------------------------


def test_a_group_with_pending_offsets_is_not_deleted(transaction_node: TransactionNode) -> None:
    """When the transaction has ended it is."""
    node = transaction_node
    producer = node.start_producer()
    commit(node, producer, 5)
    request = DeleteGroupsRequest(groups_names=["g"])
    assert node.call(request, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    node.end(producer)
    assert node.call(request, 2).results[0].error_code == 0


def test_a_deleted_topic_takes_what_is_pending_with_it(transaction_node: TransactionNode) -> None:
    """The transaction ends as if it had not been."""
    node = transaction_node
    producer = node.start_producer()
    node.create_topic("u", 1)
    assert commit(node, producer, 5, ("t", 0), ("u", 0)) == [0, 0]
    node.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    assert node.end(producer)[0] == 0
    assert set(node.broker.groups.offsets("g")) == {("u", 0)}


def test_a_journal_that_must_be_on_disk_first(make_transaction_node: MakeNode) -> None:
    """The commit waits for the coordinator's record and for its own, and is answered then."""
    node = make_transaction_node("flush.on.acks.all=true")
    starting = node.begin_init()
    node.loop.finish_jobs()
    producer = (starting.answer.producer_id, starting.answer.producer_epoch)
    call = begin_commit(node, producer, 5)
    assert not call.is_answered
    assert node.log(OFFSETS).log_end_offset == 0  # the transaction may yet not have it
    node.loop.finish_jobs()
    assert node.log(OFFSETS).log_end_offset == 1
    node.loop.finish_jobs()
    assert call.answer.topics[0].partitions[0].error_code == 0
    assert fetch(node) == (UNSTABLE, -1)


def test_a_transaction_that_ends_while_the_disk_is_waited_for(
    make_transaction_node: MakeNode,
) -> None:
    """Its offsets come too late, and open nothing."""
    node = make_transaction_node("flush.on.acks.all=true")
    starting = node.begin_init()
    node.loop.finish_jobs()
    producer = (starting.answer.producer_id, starting.answer.producer_epoch)
    call = begin_commit(node, producer, 5)
    abort = AbortTransaction(transactional_id=ID)
    node.broker.transactions.submit(ID, abort)
    while node.loop.finish_jobs():
        pass
    assert call.answer.topics[0].partitions[0].error_code != 0
    assert node.log(OFFSETS).last_stable_offset == node.log(OFFSETS).log_end_offset
    assert fetch(node) == (0, -1)
