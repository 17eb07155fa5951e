"""Stories of transactions in the order of the stable offset: KIP-X's purgatory, and its ends."""

from typing import Any

import pytest
from cooperative_story import GROUP, HIGH, LOW, OK, TOPIC, TOPIC_ID, ack, committed, written
from txn_acks_story import ONE, OTHER, AcksDesk, TxnStep, ended, gone, pending, said

from anabranch.coordinator.cooperative.acks import AckOutcome
from anabranch.coordinator.cooperative.commands import AcksAnswer, PartitionAnswer, ResumeAcks
from anabranch.coordinator.cooperative.progress import Interval
from anabranch.coordinator.cooperative.records import ProgressDelta
from anabranch.coordinator.cooperative.settings import STABLE_ORDER
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.consumer_state import STATIC_LEAVING_EPOCH
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS

WAIT_MS = 54_000
TAKEN = AcksAnswer(
    partitions=(PartitionAnswer(stable_offset=45, outcomes=(AckOutcome(ALL_SLOTS),)),)
)


def ordered(**settings: Any) -> AcksDesk:
    return AcksDesk(txn_order=STABLE_ORDER, **settings)


def two(low: int = 10, high: int = 10) -> AcksDesk:
    """Two members with half of the slots each, of which everything below some offset is done."""
    desk = ordered()
    desk.holds("a", 6, {LOW: 5})
    desk.holds("b", 6, {HIGH: 5})
    desk.ack("a", 6, ack(LOW, 5, low))
    desk.ack("b", 6, ack(HIGH, 5, high))
    return desk


def waits(step: TxnStep) -> bool:
    return step.answer is None and not step.records


def answer_of(step: TxnStep, waiter: int) -> Any:
    """What a request that waited was told because of a step, if it was."""
    for one in (step, *step.resumed):
        if waiter in one.wakes:
            return one.wakes[waiter]
    return None


# KIP-X ------------------------------------------------------------------------------------------


def test_the_seven_steps_of_kip_x() -> None:
    """[40-49] with everything below done, and two threads with a transaction each.

    Its stable offset 39, the last that is done, is 40 here, the next to do. What it calls a commit
    is the acknowledgement and the end of the transaction.
    """
    desk = ordered()
    desk.logs[TOPIC_ID, 0].end = 50
    desk.commit(40)
    a, b = ONE, OTHER
    # 1. and 2. A fetches [40, 44] and B fetches [45, 49]: nobody is told.
    # 3. B has finished, and commits [45, 49].
    third = desk.say("", -1, ack(ALL_SLOTS, -1, -1, (45, 49)), producer=b, wait_ms=WAIT_MS)
    # 4. Somebody else has [40, 44]: it waits for the stable offset.
    assert waits(third)
    assert (desk.pending, desk.committed()) == ({}, 40)
    # 5. A has finished, and commits [40, 44].
    fifth = desk.say("", -1, ack(ALL_SLOTS, -1, -1, (40, 44)), producer=a, wait_ms=WAIT_MS)
    assert fifth.partition.outcomes == (AckOutcome(ALL_SLOTS),)
    assert desk.pending == {(a[0], ""): (said(ALL_SLOTS, -1, (40, 44)),)}
    # 6. The stable offset moves, and A is told so;
    sixth = desk.end(a)
    assert sixth.records == [
        written(1, ProgressDelta(leader_epoch=3, acked=(said(ALL_SLOTS, -1, (40, 44)),))),
        gone("", a),
        ended(a),
        committed(45),
    ]
    # 7. then those who wait are looked at, and B goes on.
    [seventh] = sixth.resumed
    assert seventh.records == [pending("", said(ALL_SLOTS, -1, (45, 49)), producer=b)]
    assert seventh.wakes == {1: TAKEN}
    assert desk.end(b).records[-1] == committed(50)
    assert desk.intervals() == (Interval(ALL_SLOTS, 50),)


def test_nobody_waits_otherwise() -> None:
    """By default transactions are committed in any order."""
    desk = AcksDesk()
    desk.commit(40)
    step = desk.say("", -1, ack(ALL_SLOTS, -1, -1, (45, 49)), wait_ms=WAIT_MS)
    assert step.codes == [OK]


# Who waits --------------------------------------------------------------------------------------


def test_members_are_one_transaction_ahead_at_most() -> None:
    """An acknowledgement by watermark begins where its slots are."""
    desk = two()
    assert desk.say("b", 6, ack(HIGH, 5, 20), wait_ms=WAIT_MS).codes == [OK]
    desk.end()
    assert desk.stable == 10
    step = desk.say("b", 6, ack(HIGH, 5, 30), wait_ms=WAIT_MS)
    assert waits(step)
    # Half of what is missing is not enough; it waits on.
    step = desk.ack("a", 6, ack(LOW, 5, 19))
    assert isinstance(step, TxnStep)
    assert [one.wakes for one in step.resumed] == [{}]
    step = desk.ack("a", 6, ack(LOW, 5, 20))
    assert isinstance(step, TxnStep)
    assert answer_of(step, 2).partitions[0].outcomes == (AckOutcome(HIGH),)
    assert desk.pending == {(7, "b"): (said(HIGH, 30),)}


def test_its_own_transaction_counts() -> None:
    """What was said before, by any member, and what comes first in the same request."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20), wait_ms=WAIT_MS)
    assert desk.say("b", 6, ack(HIGH, 5, 20), wait_ms=WAIT_MS).codes == [OK]
    step = desk.say("b", 6, ack(HIGH, 5, -1, (20, 24)), wait_ms=WAIT_MS)
    assert step.codes == [OK]
    step = desk.say("b", 6, ack(HIGH, 5, -1, (26, 29)), ack(HIGH, 5, -1, (25, 25)), wait_ms=WAIT_MS)
    assert waits(step), "the other half is at 20"
    desk.say("a", 6, ack(LOW, 5, 40), wait_ms=WAIT_MS)
    step = desk.say("b", 6, ack(HIGH, 5, -1, (26, 29)), ack(HIGH, 5, -1, (25, 25)), wait_ms=WAIT_MS)
    assert step.codes == [OK, OK]


def test_a_transaction_of_somebody_else_does_not_count() -> None:
    """It may be aborted."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20), producer=OTHER, wait_ms=WAIT_MS)
    assert waits(desk.say("b", 6, ack(HIGH, 5, -1, (15, 19)), wait_ms=WAIT_MS))
    step = desk.end(OTHER, is_commit=False)
    assert step.resumed == []


def test_slots_that_nobody_has_spoken_of_hold_nobody_back() -> None:
    """Nor is there anything to wait for before anybody has."""
    desk = ordered()
    desk.holds("a", 6, {LOW: 5})
    desk.holds("b", 6, {HIGH: 5})
    assert desk.say("b", 6, ack(HIGH, 5, -1, (15, 19)), wait_ms=WAIT_MS).codes == [OK]
    desk.end(is_commit=False)
    desk.ack("a", 6, ack(LOW, 5, 10))
    assert desk.say("b", 6, ack(HIGH, 5, 12), wait_ms=WAIT_MS).codes == [OK]
    assert waits(desk.say("b", 6, ack(HIGH, 5, -1, (16, 19)), wait_ms=WAIT_MS))


def test_what_is_refused_waits_for_nothing() -> None:
    """It is said at once, and so is what is done already."""
    desk = two()
    assert desk.say("b", 6, ack(LOW, 5, -1, (15, 19)), wait_ms=WAIT_MS).codes == [
        ErrorCode.FENCED_MEMBER_EPOCH
    ]
    assert desk.say("b", 6, ack(HIGH, 5, 7, (2, 4)), wait_ms=WAIT_MS).codes == [OK]


def test_it_is_judged_again_when_it_need_not_wait() -> None:
    """Who has lost its range by then is fenced."""
    desk = two()
    desk.say("b", 6, ack(HIGH, 5, -1, (15, 19)), wait_ms=WAIT_MS)
    desk.holds("b", 7, {HIGH: 7})
    step = desk.ack("a", 6, ack(LOW, 5, 15))
    assert isinstance(step, TxnStep)
    assert answer_of(step, 1).partitions[0].outcomes == (
        AckOutcome(HIGH, ErrorCode.STALE_MEMBER_EPOCH),
    )
    assert desk.submit(ResumeAcks(waiter=1)).wakes == {}, "it was answered"


# How it ends ------------------------------------------------------------------------------------


def waiting() -> AcksDesk:
    """A member that waits for the other one's half."""
    desk = two(low=10, high=15)
    assert waits(desk.say("b", 6, ack(HIGH, 5, -1, (15, 19)), wait_ms=WAIT_MS))
    return desk


def leave(member_id: str, epoch: int = -1, instance_id: str | None = None) -> Any:
    return cc.ConsumerHeartbeat(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=epoch,
        unique="u",
        client_id="c",
        client_host="h",
        instance_id=instance_id,
    )


def test_the_member_that_it_waits_for_leaves() -> None:
    """Nothing was taken, and somebody else has to do what is missing first."""
    desk = waiting()
    step = desk.submit(leave("a"))
    assert answer_of(step, 1) == AcksAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)
    assert desk.pending == {}
    assert desk.submit(ResumeAcks(waiter=1)).wakes == {}


def test_the_member_that_it_waits_for_is_not_heard_from() -> None:
    """The end of its session says so, without anybody asking."""
    desk = waiting()
    step = desk.submit(c.TimerFired(key=("session", GROUP, "a")))
    assert answer_of(step, 1) == AcksAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)


def test_the_member_that_it_waits_for_leaves_for_a_while() -> None:
    """It comes back perhaps, and perhaps not in time."""
    desk = waiting()
    group = desk.shard.groups[GROUP]
    member = group.members["a"].with_(instance_id="i")  # type: ignore[union-attr]
    desk.shard.replay(cr.MemberWritten(group_id=GROUP, member_id="a", member=member))
    desk.appends.append([cr.MemberWritten(group_id=GROUP, member_id="a", member=member)])
    step = desk.submit(leave("a", STATIC_LEAVING_EPOCH, "i"))
    assert answer_of(step, 1) == AcksAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)


def test_other_members_may_go() -> None:
    """Those that are far enough, and those of other partitions, hold nobody back."""
    desk = waiting()
    desk.holds("c", 6, {})
    desk.holds("d", 6, {ALL_SLOTS: 6}, place=(TOPIC_ID, 1))
    for member_id in ("c", "d"):
        step = desk.submit(leave(member_id))
        assert (step.wakes, step.resumed) == ({}, [])


def test_the_member_that_waits_goes() -> None:
    """It is fenced as it would be if it asked now."""
    desk = waiting()
    step = desk.submit(leave("b"))
    assert answer_of(step, 1) == AcksAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("is_commit", [True, False])
def test_its_transaction_ends(is_commit: bool) -> None:
    """By its time or by somebody else: it belongs to no transaction any more."""
    desk = waiting()
    step = desk.end(is_commit=is_commit)
    assert answer_of(step, 1) == AcksAnswer(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    desk.ack("a", 6, ack(LOW, 5, 15))
    assert desk.pending == {}


def test_the_transaction_of_somebody_else_ends() -> None:
    """That changes nothing."""
    desk = waiting()
    assert desk.end((9, 0)).wakes == {}


def test_its_time_is_up() -> None:
    """It is told before its transaction is aborted, so that it can do so itself."""
    desk = waiting()
    desk.now_ms += WAIT_MS - 1
    assert desk.ring() == []
    desk.now_ms += 1
    [step] = desk.ring()
    assert isinstance(step, TxnStep)
    assert step.wakes == {1: AcksAnswer(error=ErrorCode.TRANSACTION_ABORTABLE)}
    assert desk.submit(c.TimerFired(key=("txn-order", GROUP, 1))).wakes == {}


def test_who_has_no_time_does_not_wait() -> None:
    """Its transaction is nearly over, or nobody knows of it."""
    desk = two(low=10, high=15)
    step = desk.say("b", 6, ack(HIGH, 5, -1, (15, 19)))
    assert step.answer == AcksAnswer(error=ErrorCode.TRANSACTION_ABORTABLE)
    assert step.timers == ()


def test_a_timer_of_who_was_answered_is_stopped() -> None:
    """So that nothing is left of it."""
    desk = waiting()
    desk.ack("a", 6, ack(LOW, 5, 15))
    assert desk.timers.next_deadline_ms() is None
    assert desk.shard.offsets(GROUP)[TOPIC, 0].offset == 15
