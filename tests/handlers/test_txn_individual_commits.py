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

from anabranch.broker import shard_driver
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import ALL_SLOTS, SlotRange
from anabranch.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.wire.messages.cooperation import FailedRecord, IndividualCommit
from anabranch.wire.messages.delete_groups import DeleteGroupsRequest
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
        # Loads are not looked at here: that takes a loop with tasks.
        quiet = ("transaction.state.log.num.partitions=1", "coop.resplit.interval.ms=2000000000")
        made = OneNode(tmp_path / "data", loop, *quiet, *overrides)
        nodes.append(made)
        for driver in made.broker.groups._drivers:
            driver.arm()
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


# What is refused --------------------------------------------------------------------------------


def test_it_is_judged_like_any_other_commit(node: SharedNode) -> None:
    """By who holds the slots, what it was shown, and the switches."""
    low, _ = two_members(node)
    one = Transaction(node, "one")
    assert codes(one.ack(low, 20, slots=HIGH)) == [(ErrorCode.FENCED_MEMBER_EPOCH, 0)]
    assert codes(one.ack(low, RECORDS + 1)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, 0)]
    answered = one.ack(low, 20, member_id="x")
    assert refusal(answered) == (ErrorCode.UNKNOWN_MEMBER_ID, 0)
    assert refusal(one.ack(low, 20, generation_id=99))[0] == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(one.ack(low, 20, committed_offset=20))[0] == ErrorCode.INVALID_REQUEST
    assert refusal(one.ack(low, 20, topic="nowhere"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(one.ack(low, 20, topic="t")) == (
        ErrorCode.INVALID_REQUEST,
        SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED,
    )
    assert one.end(is_commit=False) == OK
    assert watermarks(node) == [(LOW, -1, []), (HIGH, -1, [])]


def test_failures_have_no_part_in_it(node: SharedNode) -> None:
    """Nothing of the partition is taken; by themselves they go as ever."""
    low, _ = two_members(node)
    one = Transaction(node, "one")
    failed = FailedRecord(offset=12, key_hash=0)
    assert refusal(one.ack(low, 10, failures=[failed])) == (ErrorCode.INVALID_REQUEST, 0)
    assert codes(one.ack(low, 10)) == [(OK, 0)]
    assert low.fail(failed).error_code == OK
    assert one.end() == OK
    assert watermarks(node)[0] == (LOW, 10, [])


def test_the_producer_has_to_be_of_today(node: SharedNode) -> None:
    """It is asked of the transaction coordinator, and seen in what was written since."""
    low, _ = two_members(node)
    one = Transaction(node, "one")
    assert codes(one.ack(low, 10)) == [(OK, 0)]
    before = one.producer
    assert one.end() == OK
    late = one.ack(low, 20, producer_id=before[0], producer_epoch=before[1])
    assert refusal(late)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(one.ack(low, 20, producer_id=999))[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refusal(one.ack(low, 20, group_id=""))[0] == ErrorCode.INVALID_GROUP_ID
    assert one.state == "CompleteCommit"
    assert watermarks(node)[0] == (LOW, 10, [])


def test_an_older_client_has_to_add_the_group_itself(node: SharedNode) -> None:
    """Version 3 and 4 only ask whether it is in the transaction."""
    low, _ = two_members(node)
    one = Transaction(node, "one")
    assert refusal(one.ack(low, 20, version=4))[0] == ErrorCode.TRANSACTION_ABORTABLE
    request = AddOffsetsToTxnRequest(
        transactional_id="one",
        producer_id=one.producer[0],
        producer_epoch=one.producer[1],
        group_id=GROUP,
    )
    assert node.call(request, 4).error_code == OK
    for version in (3, 4):
        assert codes(one.ack(low, 20, version=version)) == [(OK, 0)]
    assert one.end() == OK
    assert watermarks(node)[0] == (LOW, 20, [])


def test_offsets_and_acknowledgements_of_one_request(node: SharedNode) -> None:
    """Each is answered for itself, and all end together."""
    low, high = two_members(node)
    low.leave()
    settle(high)
    assert codes(Transaction(node, "x").ack(high, 5, slots=HIGH)) == [(OK, 0)]
    one = Transaction(node, "one")
    said = ack(HIGH, high.ranges[0, HIGH], -1, (20, 29))
    request = TxnOffsetCommitRequest(
        transactional_id="one",
        group_id=GROUP,
        producer_id=one.producer[0],
        producer_epoch=one.producer[1],
        generation_id=high.epoch,
        member_id=high.member_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=33, committed_metadata=None
                    )
                ],
            ),
            TxnOffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=0,
                        committed_offset=-1,
                        committed_metadata=None,
                        individual=IndividualCommit(acks=[said]),
                    )
                ],
            ),
        ],
    )
    plain, individual = node.call(request, 5).topics
    assert plain.partitions[0].error_code == OK
    assert plain.partitions[0].individual is None
    assert codes(individual.partitions[0]) == [(OK, 0)]
    assert one.end() == OK
    offsets = node.broker.groups.offsets(GROUP)
    assert offsets["t", 0].offset == 33
    assert watermarks(node)[-1] == (HIGH, -1, [(20, 29)])


def test_records_that_another_transaction_has(node: SharedNode) -> None:
    """And offsets of the partition while acknowledgements are pending, and the other way round."""
    low, high = two_members(node)
    one, other = Transaction(node, "one"), Transaction(node, "other")
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    assert codes(other.ack(low, 15)) == [ELSEWHERE]
    answered = low.ack(15)
    assert answered.individual is not None
    assert [(o.error_code, o.sub_code) for o in answered.individual.outcomes] == [ELSEWHERE]
    assert one.end() == OK
    high.leave()
    settle(low)
    assert codes(one.ack(low, 30, slots=LOW)) == [(OK, 0)]
    assert other.commit_offset(low, 40) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert one.end() == OK
    assert other.commit_offset(low, 40) == OK
    assert codes(one.ack(low, 50, slots=LOW)) == [ELSEWHERE]
    assert other.end() == OK
    assert committed(node, is_stable=True) == (OK, 40)


# Members that go, and members that wait -----------------------------------------------------------


def test_a_range_is_not_handed_over_before_its_transaction_has_ended(node: SharedNode) -> None:
    """Its next owner gets it with the next heartbeat after the end, and finds what is done."""
    first = Sharer(node, "a")
    settle(first)
    assert first.fetch() == RECORDS
    one = Transaction(node, "one")
    assert codes(one.ack(first, 20)) == [(OK, 0)]
    second = Sharer(node, "b")
    for _ in range(5):
        first.beat()
        second.beat()
    assert len(first.ranges) == 1
    assert second.ranges == {}
    assert one.end() == OK
    second.beat()
    assert len(second.ranges) == 1
    assert {watermark for _, watermark, _ in watermarks(node)} == {20}


@pytest.mark.parametrize("how", ["leaves", "is silent"])
def test_who_goes_has_its_transaction_aborted(node: SharedNode, how: str) -> None:
    """At once, long before its time is up: the range is free, and the producer fenced."""
    low, high = two_members(node)
    one = Transaction(node, "one", timeout_ms=600_000)
    other = Transaction(node, "other", timeout_ms=600_000)
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    assert codes(other.ack(high, 20)) == [(OK, 0)]
    if how == "leaves":
        low.leave()
    else:
        for _ in range(SESSION_MS // 5_000 + 1):
            high.beat()
            node.pass_ms(5_000)
    assert (one.state, other.state) == ("CompleteAbort", "Ongoing")
    settle(high)
    assert len(high.ranges) == 2
    assert one.end() == ErrorCode.INVALID_TXN_STATE
    assert refusal(one.ack(high, 30, slots=HIGH))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert other.end() == OK
    assert watermarks(node) == [(LOW, -1, []), (HIGH, 20, [])]


def test_the_time_of_a_transaction_is_up(node: SharedNode) -> None:
    """It is aborted, and the range that was given up goes on its way."""
    first = Sharer(node, "a")
    settle(first)
    one = Transaction(node, "one", timeout_ms=10_000)
    assert codes(one.ack(first, 20)) == [(OK, 0)]
    second = Sharer(node, "b")
    for _ in range(5):
        first.beat()
        second.beat()
    assert second.ranges == {}
    node.pass_ms(10_000)
    assert one.state == "CompleteAbort"
    second.beat()
    assert len(second.ranges) == 1


def test_what_is_acknowledged_is_not_stuck(make: MakeNode) -> None:
    """Its owner is through with it, however long the transaction takes."""
    node = make("coop.stuck.ms=1000")
    stuck = node.broker.groups.stuck_ranges
    low, high = two_members(node)
    low.ack(0)
    high.ack(RECORDS)
    one = Transaction(node, "one")
    assert codes(one.ack(low, RECORDS)) == [(OK, 0)]
    stuck.start()

    def wait(delay_ms: int) -> None:
        for _ in range(delay_ms // 10):
            node.pass_ms(10)
            while node.loop.finish_jobs():
                pass

    wait(5_000)
    assert stuck.revocations == 0
    assert one.end(is_commit=False) == OK
    wait(5_000)
    assert stuck.revocations == 1


def test_a_group_that_is_pending_is_not_deleted(node: SharedNode) -> None:
    """Not before its transaction has ended, be it without members."""
    low, high = two_members(node)
    one = Transaction(node, "one")
    # Nobody in particular, in a group without members.
    low.leave()
    high.leave()
    low.member_id, low.epoch = "", -1
    assert codes(one.ack(low, 20, slots=ALL_SLOTS)) == [(OK, 0)]
    request = DeleteGroupsRequest(groups_names=[GROUP])
    assert node.call(request, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert one.end() == OK
    assert node.call(request, 2).results[0].error_code == OK


# Crashes ----------------------------------------------------------------------------------------


def test_what_is_pending_outlives_the_broker(make: MakeNode) -> None:
    """And ends with its transaction after the start."""
    node = make()
    low, high = two_members(node)
    one, other = Transaction(node, "one"), Transaction(node, "other")
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    assert codes(other.ack(high, 20)) == [(OK, 0)]
    close(node)
    node = make()
    assert committed(node, is_stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    one.node = other.node = node
    assert one.end() == OK
    assert other.end(is_commit=False) == OK
    assert watermarks(node) == [(LOW, 20, []), (HIGH, -1, [])]


@pytest.mark.parametrize("writes", range(3))
def test_a_crash_while_a_transaction_ends(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """After each of the writes that a commit takes, the start gets to the same end."""
    node = make()
    low, high = two_members(node)
    low.ack(10)
    high.ack(10)
    one = Transaction(node, "one")
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    assert codes(one.ack(high, 20)) == [(OK, 0)]
    left = writes

    def counted(append: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **how: Any) -> Any:
            nonlocal left
            if not left:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the power is gone")
            left -= 1
            return append(*args, **how)

        return write

    for name in ("append_records", "append_marker"):
        whole = getattr(shard_driver, name)
        monkeypatch.setattr(shard_driver, name, counted(whole))
    assert one.end() == OK, "it is decided, and the rest follows"
    monkeypatch.undo()
    close(node)
    node = make()
    assert watermarks(node) == [(LOW, 20, []), (HIGH, 20, [])]
    node.pass_ms(1)
    assert committed(node, is_stable=True) == (OK, 20)
    one.node = node
    assert one.state == "CompleteCommit"


def test_a_member_that_went_before_the_crash(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is aborted after the start, if it was not before."""
    node = make()
    low, _ = two_members(node)
    one = Transaction(node, "one", timeout_ms=600_000)
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    monkeypatch.setattr(node.broker.transactions, "abort", lambda producers: None)
    low.leave()
    assert one.state == "Ongoing"
    close(node)
    node = make()
    one.node = node
    node.pass_ms(1)
    assert one.state == "CompleteAbort"
    assert node.broker.groups.pending_offsets(GROUP) == {}


# The disk ---------------------------------------------------------------------------------------

JOURNALS = ("__transaction_state", "__individual_commit_offsets", "__consumer_offsets")


def synced_node(make: MakeNode) -> tuple[SharedNode, Transaction]:
    """A broker with something pending, whose journals have to be on disk from now on."""
    node = make()
    low, high = two_members(node)
    high.ack(10)
    one = Transaction(node, "one")
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    for name in JOURNALS:
        topic = node.broker.topics.get(name)
        assert topic is not None
        node.broker.topics.set_configs(topic, {**topic.configs, "flush.on.acks.all": "true"})
    return node, one


def test_both_journals_are_on_disk_before_the_end_is_answered(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `flush.on.acks.all` progress is as safe as the marker."""
    node, one = synced_node(make)
    waiting: dict[str, Callable[[bool], None]] = {}
    monkeypatch.setattr(
        node.broker.flusher, "sync", lambda log, then: waiting.update({log.topic: then})
    )
    ending = one.begin_end()
    for names in (JOURNALS[:1], JOURNALS[1:]):
        assert sorted(waiting) == sorted(names)
        for name in names:
            assert not ending.is_answered
            waiting.pop(name)(True)
    assert ending.answer.error_code == OK
    assert one.state == "CompleteCommit"


def test_progress_that_does_not_reach_the_disk(
    make: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts for a marker that does not: the transaction is not complete."""
    node, one = synced_node(make)
    monkeypatch.setattr(
        node.broker.flusher, "sync", lambda log, then: then(log.topic != JOURNALS[1])
    )
    one.begin_end()
    assert one.state == "PrepareCommit"


# In the order of the stable offset --------------------------------------------------------------


@pytest.fixture
def ordered(make: MakeNode) -> SharedNode:
    return make("coop.txn.order=stable")


def waiting(node: SharedNode, timeout_ms: int = TIMEOUT_MS) -> tuple[Any, ...]:
    """A member that is one transaction ahead of the other, and waits with the next."""
    low, high = two_members(node)
    low.ack(10)
    high.ack(10)
    one, other = Transaction(node, "one"), Transaction(node, "other", timeout_ms)
    assert codes(other.ack(high, 20)) == [(OK, 0)]
    assert other.end() == OK
    parked = other.begin_ack(high, 30)
    assert not parked.is_answered
    return low, high, one, other, parked


def test_a_commit_waits_for_the_stable_offset(ordered: SharedNode) -> None:
    """Until the transaction of the member is committed that holds it back."""
    low, _, one, other, parked = waiting(ordered)
    assert codes(one.ack(low, 20)) == [(OK, 0)]
    assert not parked.is_answered
    assert one.end() == OK
    assert codes(parked.answer.topics[0].partitions[0]) == [(OK, 0)]
    assert other.end() == OK
    assert watermarks(ordered) == [(LOW, 20, []), (HIGH, 30, [])]


def test_a_commit_that_waits_for_a_member_that_goes(ordered: SharedNode) -> None:
    """It is told at once, and nothing of it is pending."""
    low, _, _, other, parked = waiting(ordered)
    low.leave()
    assert refusal(parked.answer.topics[0].partitions[0]) == (ErrorCode.REBALANCE_IN_PROGRESS, 0)
    assert other.end(is_commit=False) == OK


def test_a_commit_that_waits_for_too_long(ordered: SharedNode) -> None:
    """It is told before its transaction is aborted."""
    _, _, _, other, parked = waiting(ordered, timeout_ms=10_000)
    ordered.pass_ms(8_999)
    assert not parked.is_answered
    ordered.pass_ms(1)
    assert refusal(parked.answer.topics[0].partitions[0]) == (ErrorCode.TRANSACTION_ABORTABLE, 0)
    assert other.state == "Ongoing"


def test_a_group_has_an_order_of_its_own(make: MakeNode) -> None:
    """The broker's is for those that set none."""
    node = make("coop.txn.order=stable")
    node.broker.group_configs.set(GROUP, {"coop.txn.order": "any"})
    low, high = two_members(node)
    low.ack(10)
    one = Transaction(node, "one")
    assert codes(one.ack(high, -1, (30, 39))) == [(OK, 0)]
