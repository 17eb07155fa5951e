"""What a member tells a broker in a transaction, and what it makes of the answer."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from workload_kit import HALVES, PLACE, Log, active, deliver, key_in

from anabranch.client.core import Core
from anabranch.client.errors import (
    BrokerError,
    CooperationNotSupportedError,
    FencedError,
    IndividualCommitLimitError,
    IndividualCommitNotAllowedError,
    RetriableBrokerError,
    TransactionAbortedError,
)
from anabranch.client.hand_over import HandOver
from anabranch.client.membership import Membership
from anabranch.client.records import ConsumerRecord
from anabranch.client.settings import ConsumerSettings
from anabranch.client.transaction_acks import AckTeller, HeldAcks
from anabranch.client.transaction_session import TransactionSession
from anabranch.client.work_queues import KeyQueue
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import hashes_of
from anabranch.wire.messages.cooperation import IndividualCommitAnswer, RangeOutcome
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from anabranch.wire.offset_set import decode

LOW, HIGH = (key_in(half) for half in HALVES)


class Member:
    """What a member knows of itself."""

    def __init__(self) -> None:
        self.member_id = "me"
        self.epoch = 7
        self.beats = 0

    def beat_soon(self) -> None:
        self.beats += 1


class Reloads:
    def __init__(self) -> None:
        self.works: list[Any] = []

    def reload(self, works: list[Any]) -> None:
        self.works += works


class Session:
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self, *answers: TxnOffsetCommitResponse) -> None:
        self.answers = list(answers)
        self.requests: list[TxnOffsetCommitRequest] = []

    async def commit_offsets(
        self,
        make_request: Callable[[], TxnOffsetCommitRequest],
        judge: Callable[[TxnOffsetCommitResponse], None],
    ) -> None:
        self.requests.append(make_request())
        judge(self.answers.pop(0))


class Stage:
    """A member that holds records 0 and 2 of two halves, of which 1 and 3 are open."""

    def __init__(self) -> None:
        self.core = Core(ConsumerSettings(group_id="workers"))
        workload = self.core.workload
        workload.queue = KeyQueue()
        workload.lease.renew_for_ever()
        workload.is_transactional, workload.held_max = True, 100
        self.low = active(workload, HALVES[0], epoch=3)
        self.high = active(workload, HALVES[1], epoch=5)
        log = Log([LOW, key_in(HALVES[0], 1), HIGH, key_in(HALVES[1], 1)])
        for half in HALVES:
            deliver(workload, log, half)
        taken = {}
        while (record := workload.take(0.0)) is not None:
            taken[record.offset] = record
        for offset in (0, 2):
            workload.done(taken[offset])
        self.held = workload.held
        self.member = Member()
        self.reloads = Reloads()
        self.aborted: list[ConsumerRecord] = []
        self.teller = AckTeller(
            self.core, cast(Membership, self.member), cast(HandOver, self.reloads)
        )

    def tell(self, *answers: TxnOffsetCommitResponse) -> Session:
        session = Session(*answers)
        acks = HeldAcks(self.core, lambda: self.teller, self.held, self.aborted.extend)
        asyncio.run(acks.prepare(cast(TransactionSession, session)))
        acks.committed()
        return session


def answer(
    outcome: int = 0, sub_code: int = 0, *, error: int = 0, half: int = 1, has_tag: bool = True
) -> TxnOffsetCommitResponse:
    """One outcome for each half, one of them as said."""
    outcomes = []
    for number, slots in enumerate(HALVES):
        first_hash, last_hash = hashes_of(slots)
        outcomes.append(
            RangeOutcome(
                first_hash=first_hash,
                last_hash=last_hash,
                error_code=outcome if number == half else 0,
                sub_code=sub_code if number == half else 0,
            )
        )
    individual = IndividualCommitAnswer(stable_offset=0, outcomes=outcomes, sub_code=sub_code)
    partition = TxnOffsetCommitResponsePartition(
        partition_index=0, error_code=error, individual=individual if has_tag else None
    )
    topic = TxnOffsetCommitResponseTopic(name=PLACE.topic, partitions=[partition])
    return TxnOffsetCommitResponse(topics=[topic])


def test_what_is_told() -> None:
    """A range is told with its epoch, up to where it is done, and the member with its own."""
    stage = Stage()
    (request,) = stage.tell(answer()).requests
    assert (request.group_id, request.member_id, request.generation_id) == ("workers", "me", 7)
    ((topic,),) = [request.topics]
    assert topic.name == PLACE.topic
    (partition,) = topic.partitions
    assert partition.committed_offset == -1
    assert partition.individual is not None
    assert partition.individual.failures == []
    told = {
        (one.first_hash, one.epoch): (one.watermark, list(decode(one.done)))
        for one in partition.individual.acks
    }
    low, high = (hashes_of(slots)[0] for slots in HALVES)
    assert told == {(low, 3): (1, []), (high, 5): (3, [])}


def test_what_is_taken() -> None:
    """What the broker has taken is done when the transaction is committed."""
    stage = Stage()
    stage.tell(answer())
    assert (sorted(stage.low.open), sorted(stage.high.open)) == ([1], [3])
    assert (stage.low.committed, stage.high.committed) == (1, 3)


@pytest.mark.parametrize(
    ("code", "sub_code", "error"),
    [
        (ErrorCode.FENCED_MEMBER_EPOCH, 0, FencedError),
        (ErrorCode.UNKNOWN_MEMBER_ID, 0, FencedError),
        (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            SubCode.PENDING_IN_OTHER_TRANSACTION,
            RetriableBrokerError,
        ),
        (
            ErrorCode.INVALID_REQUEST,
            SubCode.MAX_INDIVIDUAL_COMMIT_REACHED,
            IndividualCommitLimitError,
        ),
        (ErrorCode.STALE_MEMBER_EPOCH, 0, RetriableBrokerError),
        (ErrorCode.FENCED_LEADER_EPOCH, 0, TransactionAbortedError),
        (ErrorCode.INVALID_REQUEST, 0, BrokerError),
    ],
)
@pytest.mark.parametrize("half", [0, 1])
def test_a_range_that_is_refused(
    code: ErrorCode, sub_code: int, error: type[Exception], half: int
) -> None:
    """If one range is refused, the transaction does not go on as if all were taken."""
    stage = Stage()
    with pytest.raises(error):
        stage.tell(answer(code, sub_code, half=half))
    assert stage.low.in_flight + stage.high.in_flight == 4


def test_what_is_done_about_it() -> None:
    """A member that is behind asks for news; a log that was cut is looked at again."""
    stage = Stage()
    for code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH):
        with pytest.raises(BrokerError):
            stage.tell(answer(code))
    assert (stage.member.beats, stage.reloads.works) == (2, [])
    with pytest.raises(TransactionAbortedError):
        stage.tell(answer(ErrorCode.FENCED_LEADER_EPOCH))
    assert stage.reloads.works == [stage.high]


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH])
def test_a_request_with_an_old_epoch(code: ErrorCode) -> None:
    """It is sent again with the epoch that the next heartbeat brings."""
    stage = Stage()
    with pytest.raises(RetriableBrokerError):
        stage.tell(answer(error=code))
    assert stage.member.beats == 1


def test_a_broker_without_the_tag() -> None:
    """A broker that does not know the tag is not believed."""
    stage = Stage()
    with pytest.raises(CooperationNotSupportedError, match="acks_in"):
        stage.tell(answer(has_tag=False))


def test_a_partition_that_is_not_answered() -> None:
    """What the answer leaves out was not taken."""
    with pytest.raises(BrokerError, match="no answer"):
        Stage().tell(TxnOffsetCommitResponse())


def test_a_switch_that_was_turned_off() -> None:
    """It ends the consumer, as with other commits."""
    stage = Stage()
    refused = answer(
        error=ErrorCode.INVALID_REQUEST, sub_code=SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED
    )
    with pytest.raises(IndividualCommitNotAllowedError):
        stage.tell(refused)
    assert isinstance(stage.core.error, IndividualCommitNotAllowedError)


def test_a_range_that_is_lost() -> None:
    """Nothing is told when one of the ranges is not ours any more."""
    stage = Stage()
    stage.core.workload.end(stage.low)
    with pytest.raises(TransactionAbortedError, match="not ours any more"):
        stage.tell(answer())


def test_many_ranges_of_offsets() -> None:
    """What does not fit in one request goes in several, and all of them have to be taken."""
    stage = Stage()
    stage.core.settings = ConsumerSettings(group_id="workers", commit_max_bytes=70)
    session = stage.tell(answer(), answer())
    assert len(session.requests) == 2
    stage = Stage()
    stage.core.settings = ConsumerSettings(group_id="workers", commit_max_bytes=70)
    with pytest.raises(FencedError):
        stage.tell(answer(), answer(ErrorCode.UNKNOWN_MEMBER_ID))
