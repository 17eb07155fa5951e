"""Stories of individual commits in transactions: pending, then progress or nothing."""

import dataclasses
from typing import Any

import pytest
from cooperative_story import (
    GROUP,
    HIGH,
    LOW,
    OK,
    PLACE,
    TOPIC,
    TOPIC_ID,
    Desk,
    ack,
    committed,
    done,
    forgotten,
    written,
)
from txn_acks_story import (
    ONE,
    OTHER,
    AcksDesk,
    end_command,
    ended,
    gone,
    in_appends,
    pending,
    said,
)

from anabranch.coordinator.cooperative.acks import AckOutcome
from anabranch.coordinator.cooperative.commands import (
    AbortTransactions,
    Action,
    CountStuck,
    Decision,
    Failure,
    PartitionAnswer,
    TakeAcks,
)
from anabranch.coordinator.cooperative.progress import Interval, new_progress
from anabranch.coordinator.cooperative.records import (
    AcksForgotten,
    AcksPending,
    ProgressDelta,
    ProgressForgotten,
    ProgressWritten,
)
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.records import OffsetCommitted, TransactionEnded
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import ALL_SLOTS, SlotRange, hashes_of

ELSEWHERE = ErrorCode.CONCURRENT_TRANSACTIONS
BUSY = AckOutcome(LOW, ELSEWHERE, SubCode.PENDING_IN_OTHER_TRANSACTION)


def two(**settings: Any) -> AcksDesk:
    """Two members with half of the slots each, of which everything below 10 is done."""
    desk = AcksDesk(**settings)
    desk.holds("a", 6, {LOW: 5})
    desk.holds("b", 6, {HIGH: 5})
    desk.ack("a", 6, ack(LOW, 5, 10))
    desk.ack("b", 6, ack(HIGH, 5, 10))
    return desk


def delta(*acked: Any, leader_epoch: int = 3) -> ProgressDelta:
    return ProgressDelta(leader_epoch=leader_epoch, acked=acked)


# Commit and abort -------------------------------------------------------------------------------


def test_what_is_acknowledged_is_pending() -> None:
    """One record in the other journal; progress, stable and committed offset stay as they are."""
    desk = two()
    step = desk.say("a", 6, ack(LOW, 5, 20, (25, 29)))
    assert step.partition == PartitionAnswer(stable_offset=10, outcomes=(AckOutcome(LOW),))
    assert step.records == [pending("a", said(LOW, 20, (25, 29)))]
    assert (desk.stable, desk.committed()) == (10, 10)
    assert desk.intervals() == (Interval(ALL_SLOTS, 10),)
    assert desk.shard.pending(GROUP) == {(TOPIC, 0)}


def test_a_commit_makes_it_progress() -> None:
    """In one decision: progress, what was pending forgotten, the marker, the stable offset."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.say("b", 6, ack(HIGH, 5, 18), producer=OTHER)

    step = desk.end(OTHER)
    assert step.records == [written(2, delta(said(HIGH, 18))), gone("b", OTHER), ended(OTHER)]
    assert (desk.stable, desk.committed()) == (10, 10)
    step = desk.end()
    assert step.records == [
        written(3, delta(said(LOW, 20))),
        gone("a"),
        ended(),
        committed(18),
    ]
    assert (desk.stable, desk.committed()) == (18, 18)
    assert desk.pending == {}
    assert desk.shard.pending(GROUP) == {}


def test_an_abort_forgets_it() -> None:
    """Nothing else changes, and it can be said again in the next transaction."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    assert desk.end(is_commit=False).records == [gone("a"), ended(is_commit=False)]
    assert (desk.stable, desk.committed(), desk.pending) == (10, 10, {})
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.end()
    assert desk.intervals() == (Interval(LOW, 20), Interval(HIGH, 10))


def test_a_transaction_grows_request_by_request() -> None:
    """Each time all of it is written; the same again is no news, nor is what is done anyway."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, -1, (12, 14)))
    step = desk.say("a", 6, ack(LOW, 5, 11, (15, 16)))
    assert step.records == [pending("a", said(LOW, 11, (12, 16)))]
    for again in (ack(LOW, 5, 11), ack(LOW, 5, -1, (13, 15)), ack(LOW, 5, 9, (2, 3))):
        step = desk.say("a", 6, again)
        assert (step.codes, step.records) == ([OK], [])
    desk.end()
    assert desk.intervals() == (Interval(LOW, 11, done((12, 16))), Interval(HIGH, 10))


def test_the_same_partition_twice_in_a_request() -> None:
    """Nothing of it is lost."""
    desk = two()
    parts = (desk.part(ack(LOW, 5, 12)), desk.part(ack(LOW, 5, -1, (15, 16))))
    command = dataclasses.replace(_take(desk), partitions=parts)
    step = desk.submit(command)
    assert step.records[-1] == pending("a", said(LOW, 12, (15, 16)))
    assert desk.pending == {(7, "a"): (said(LOW, 12, (15, 16)),)}


def _take(desk: AcksDesk, producer: tuple[int, int] = ONE) -> Any:
    return TakeAcks(
        group_id=GROUP, member_id="a", member_epoch=6, partitions=(), producer=producer, waiter=99
    )


def test_several_members_and_partitions_of_one_transaction() -> None:
    """They end together, in every group of the shard; those of other producers do not."""
    desk = two()
    desk.holds("a", 6, {ALL_SLOTS: 6}, place=(TOPIC_ID, 1))
    desk.say("a", 6, ack(ALL_SLOTS, 6, 4), partition=1)
    desk.holds("a", 6, {LOW: 5})
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.say("b", 6, ack(HIGH, 5, 20))
    desk.say("", -1, ack(ALL_SLOTS, -1, 3), group_id="other")
    step = desk.end()
    assert [type(record) for record in step.records] == [
        *[ProgressWritten] * 4,
        *[AcksForgotten] * 4,
        TransactionEnded,
        *[OffsetCommitted] * 3,
    ]
    assert (desk.committed(), desk.committed(1), desk.committed(0, "other")) == (20, 4, 3)


def test_the_first_word_of_a_partition_is_said_in_a_transaction() -> None:
    """Progress begins with nothing in it, so that what is pending has something to hang on."""
    desk = AcksDesk()
    desk.holds("a", 6, {LOW: 5})
    step = desk.say("a", 6, ack(LOW, 5, 20))
    begun = dataclasses.replace(new_progress(-1), leader_epoch=3)
    assert step.records == [
        written(0, begun),
        pending("a", said(LOW, 20)),
        committed(-1),
    ]
    desk.end(is_commit=False)
    assert desk.progress() == begun
    desk.say("a", 6, ack(LOW, 5, 20))
    assert desk.end().records == [written(1, delta(said(LOW, 20))), gone("a"), ended()]
    assert desk.intervals() == (Interval(LOW, 20), Interval(HIGH, -1))


def test_progress_begins_at_the_committed_offset() -> None:
    """Which is not projected again: it is what it was."""
    desk = AcksDesk()
    desk.commit(7)
    desk.holds("a", 6, {LOW: 5})
    step = desk.say("a", 6, ack(LOW, 5, 20))
    begun = dataclasses.replace(new_progress(7), leader_epoch=3)
    assert step.records == [written(0, begun), pending("a", said(LOW, 20))]


def test_a_stable_offset_that_does_not_move_is_written_again_after_an_hour() -> None:
    """It must not expire while somebody works on what follows it."""
    desk = two()
    for watermark, wait_ms, records in ((20, 3_600_000 - 1, 0), (21, 1, 1)):
        desk.now_ms += wait_ms
        desk.say("a", 6, ack(LOW, 5, watermark))
        projected = [r for r in desk.end().records if isinstance(r, OffsetCommitted)]
        assert len(projected) == records
    desk.say("a", 6, ack(LOW, 5, 30))
    desk.now_ms += 3_600_000
    assert desk.end(is_commit=False).records == [gone("a"), ended(is_commit=False)]


# Who may ----------------------------------------------------------------------------------------


def test_everybody_is_fenced_as_without_a_transaction() -> None:
    """By member, epoch, owner, what was shown, and the leader epoch."""
    desk = two()
    desk.say("x", 6, ack(LOW, 5, 20)).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    desk.say("a", 7, ack(LOW, 5, 20)).fails(ErrorCode.STALE_MEMBER_EPOCH)
    desk.say("", -1, ack(LOW, 5, 20)).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    desk.logs[PLACE].cut(50, 4)
    for asked, facts, code in (
        (ack(HIGH, 5, 20), {}, ErrorCode.FENCED_MEMBER_EPOCH),
        (ack(LOW, 4, 20), {}, ErrorCode.STALE_MEMBER_EPOCH),
        (ack(LOW, 5, 20), {"delivered": 19}, ErrorCode.OFFSET_OUT_OF_RANGE),
        (ack(LOW, 5, 51), {}, ErrorCode.OFFSET_OUT_OF_RANGE),
        (ack(LOW, 5, 51), {"leader_epoch": 3, "delivered": 60}, ErrorCode.OFFSET_OUT_OF_RANGE),
    ):
        step = desk.say("a", 6, asked, **facts)
        assert (step.codes, step.records) == ([code], [])


def test_parts_are_taken_for_themselves() -> None:
    """What is refused of an acknowledgement keeps nothing of the rest from being pending."""
    desk = two()
    step = desk.say("a", 6, ack(ALL_SLOTS, 5, 20))
    assert step.codes == [OK, ErrorCode.FENCED_MEMBER_EPOCH]
    assert step.records == [pending("a", said(LOW, 20))]


def test_a_later_epoch_has_lost_the_earlier_transaction() -> None:
    """All that the producer has pending goes, in every group; an earlier epoch is fenced."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.say("b", 6, ack(HIGH, 5, 20))
    step = desk.say("a", 6, ack(LOW, 5, 15), producer=(7, 1))
    assert step.records == [
        gone("a"),
        gone("b"),
        pending("a", said(LOW, 15), producer=(7, 1)),
    ]
    desk.say("a", 6, ack(LOW, 5, 20)).fails(ErrorCode.INVALID_PRODUCER_EPOCH)
    desk.end((7, 2))
    assert desk.intervals() == (Interval(LOW, 15), Interval(HIGH, 10))


# Other transactions, and none -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "is_in_transaction"),
    [
        (second, is_in_transaction)
        for second in (
            ack(LOW, 5, 13),
            ack(LOW, 5, -1, (12, 12)),
            ack(LOW, 5, -1, (15, 30)),
            ack(LOW, 5, 30),
        )
        for is_in_transaction in (True, False)
    ],
)
def test_what_is_pending_in_another_transaction_is_refused(
    second: Any, is_in_transaction: bool
) -> None:
    """Whether it is done is decided there; also where no transaction says it."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, -1, (12, 15)), producer=OTHER)
    step = desk.say("a", 6, second) if is_in_transaction else desk.ack("a", 6, second)
    assert (step.partition.outcomes, step.records) == ((BUSY,), [])
    desk.end(OTHER, is_commit=False)
    step = desk.say("a", 6, second) if is_in_transaction else desk.ack("a", 6, second)
    assert step.codes == [OK]


def test_a_watermark_that_is_pending() -> None:
    """It is all that its slots have below it, and was not done before."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 15), producer=OTHER)
    assert desk.say("a", 6, ack(LOW, 5, -1, (14, 20))).partition.outcomes == (BUSY,)
    assert desk.say("a", 6, ack(LOW, 5, 9)).codes == [OK]
    step = desk.say("a", 6, ack(LOW, 5, -1, (15, 20)))
    assert (step.codes, step.records) == ([OK], [pending("a", said(LOW, -1, (15, 20)))])


def test_what_is_pending_beside_is_nobodys_business() -> None:
    """Other offsets, and the same ones of other slots."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, -1, (12, 15)), producer=OTHER)
    assert desk.say("a", 6, ack(LOW, 5, 12, (16, 18))).codes == [OK]
    assert desk.say("b", 6, ack(HIGH, 5, 20)).codes == [OK]
    assert desk.ack("a", 6, ack(LOW, 5, -1, (20, 21))).codes == [OK]


def test_a_record_that_is_pending_has_not_failed() -> None:
    """Who says both is refused; it is not stuck either."""
    desk = two()
    key_hash, _ = hashes_of(LOW)
    desk.say("a", 6, ack(LOW, 5, -1, (12, 12)))
    step = desk.fail("a", 6, Failure(12, key_hash))
    assert (step.failure_codes, step.records) == ([ELSEWHERE], [])
    assert step.partition.failures[0].sub_code is SubCode.PENDING_IN_OTHER_TRANSACTION
    stuck = CountStuck(
        group_id=GROUP, topic_id=TOPIC_ID, partition=0, offset=12, key_hash=key_hash, reason="slow"
    )
    assert desk.submit(stuck).records == []
    desk.end(is_commit=False)
    assert desk.submit(stuck).records != []
    desk.say("a", 6, ack(LOW, 5, 13))
    assert desk.submit(dataclasses.replace(stuck, offset=11)).records == []
    assert desk.submit(dataclasses.replace(stuck, offset=13)).records != []


# Offsets of the same partition ------------------------------------------------------------------


def test_acknowledgements_wait_for_a_pending_offset() -> None:
    """The stable offset would be a later commit, and have it forgotten."""
    desk = AcksDesk()
    desk.holds("a", 6, {ALL_SLOTS: 5})
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 10))
    assert desk.commit_offset(50, "a", 6, OTHER).answer.errors == (OK,)
    busy = AckOutcome(ALL_SLOTS, ELSEWHERE, SubCode.PENDING_IN_OTHER_TRANSACTION)
    for step in (
        desk.say("a", 6, ack(ALL_SLOTS, 5, 20)),
        desk.ack("a", 6, ack(ALL_SLOTS, 5, 20)),
    ):
        assert (step.partition.outcomes, step.records) == ((busy,), [])
        assert step.partition.stable_offset == 10
    step = desk.ack("a", 6, ack(LOW, 7, 20))
    assert step.codes == [ErrorCode.STALE_MEMBER_EPOCH]
    step = desk.fail("a", 6, Failure(12, 0))
    assert (step.failure_codes, step.records) == ([ELSEWHERE], [])
    desk.end(OTHER)
    assert (desk.stable, desk.committed()) == (50, 50)
    assert desk.say("a", 6, ack(ALL_SLOTS, 5, 60)).codes == [OK]


def test_the_first_acknowledgement_waits_for_a_pending_offset_too() -> None:
    """There is no stable offset to be told yet."""
    desk = AcksDesk()
    desk.holds("a", 6, {ALL_SLOTS: 5})
    desk.commit_offset(50, "a", 6, OTHER)
    for step in (
        desk.say("a", 6, ack(ALL_SLOTS, 5, 20)),
        desk.ack("a", 6, ack(ALL_SLOTS, 5, 20)),
    ):
        assert (step.codes, step.partition.stable_offset, step.records) == ([ELSEWHERE], -1, [])


def test_an_offset_waits_for_pending_acknowledgements() -> None:
    """They would not be part of what it says."""
    desk = AcksDesk()
    desk.holds("a", 6, {ALL_SLOTS: 5})
    desk.say("a", 6, ack(ALL_SLOTS, 5, 20))
    for producer in (ONE, OTHER):
        step = desk.commit_offset(50, "a", 6, producer)
        assert (step.answer.errors, step.records) == ((ELSEWHERE,), [])
    desk.end()
    assert desk.commit_offset(50, "a", 6, OTHER).answer.errors == (OK,)


def test_nothing_is_projected_over_a_pending_offset() -> None:
    """Decisions about records move the stable offset; the end of the transaction shows it."""
    desk = AcksDesk()
    desk.holds("a", 6, {ALL_SLOTS: 5})
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 10, (11, 19)))
    desk.fail("a", 6, Failure(10, 0, -1))
    desk.commit_offset(50, "a", 6, OTHER)
    step = desk.decide(Decision(Action.SKIP, 10))
    assert [type(record) for record in step.records] == [ProgressWritten]
    assert (desk.stable, desk.committed()) == (20, 10)
    desk.restart()
    assert [record for step in desk.ring() for record in step.records] == []
    assert desk.shard.pending(GROUP)
    step = desk.end(OTHER, is_commit=False)
    assert step.records == [ended(OTHER, is_commit=False), committed(20)]


def test_a_committed_offset_is_followed_by_what_is_done_behind_it() -> None:
    """The stable offset is beyond it at once; not while another offset is pending."""
    desk = AcksDesk()
    desk.holds("a", 6, {ALL_SLOTS: 5})
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 10, (15, 19)))
    desk.commit_offset(15, "a", 6, OTHER)
    assert desk.end(OTHER).records[-2:] == [ended(OTHER), committed(20)]
    desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (30, 39)))
    desk.commit_offset(30, "a", 6, OTHER)
    desk.commit_offset(32, "a", 6, ONE)
    assert desk.end(OTHER).records[-1] == ended(OTHER)
    assert (desk.stable, desk.committed()) == (40, 30)


# Resets, deletions ------------------------------------------------------------------------------


def test_who_starts_over_forgets_what_is_pending() -> None:
    """A reset, and a member that goes back: everything from there on is done again."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.leaves("a")
    desk.leaves("b")
    step = desk.commit(5)
    assert step.records[1] == gone("a")
    desk.end()
    assert (desk.stable, desk.intervals()) == (5, (Interval(ALL_SLOTS, 5),))

    desk.holds("c", 8, {ALL_SLOTS: 8})
    desk.ack("c", 8, ack(ALL_SLOTS, 8, 30))
    desk.say("c", 8, ack(ALL_SLOTS, 8, 40))
    step = desk.commit(20, "c", 8)
    assert step.records[1] == gone("c")
    desk.end()
    assert desk.stable == 20


def test_who_goes_on_forgets_nothing() -> None:
    """What is done is done in any order."""
    desk = AcksDesk()
    desk.holds("c", 8, {ALL_SLOTS: 8})
    desk.ack("c", 8, ack(ALL_SLOTS, 8, 10))
    desk.say("c", 8, ack(ALL_SLOTS, 8, -1, (20, 29)))
    desk.commit(20, "c", 8)
    assert desk.stable == 20
    assert desk.end().records[-1] == committed(30)


def test_a_group_with_pending_acknowledgements_is_kept() -> None:
    """Neither time nor an administrator takes it away before the transaction has ended."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.leaves("a")
    desk.leaves("b")
    step = desk.submit(c.DeleteGroup(group_id=GROUP))
    assert step.answer.error is ErrorCode.NON_EMPTY_GROUP
    desk.now_ms += 8 * 24 * 3_600_000
    assert desk.submit(c.ExpireOffsets()).records == []
    desk.end(is_commit=False)
    assert desk.submit(c.DeleteGroup(group_id=GROUP)).answer.error is OK
    assert desk.progress() is None


def test_offsets_and_topics_take_what_is_pending_with_them() -> None:
    """And their transaction ends without it."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    step = desk.submit(c.DeleteTopicOffsets(topic=TOPIC))
    assert [type(record) for record in step.records] == [
        AcksForgotten,
        ProgressForgotten,
        OffsetCommitted,
    ]
    assert desk.end().records == [ended()]
    desk.compact()
    assert desk.read().progress(GROUP) == {}


# Crashes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_crash_between_any_two_writes(is_commit: bool) -> None:
    """Whatever of the end is written, the same comes out when it is asked for again."""
    outcomes = []
    for count in range(4):
        desk = two()
        desk.say("a", 6, ack(LOW, 5, 20, (25, 29)))
        desk.say("b", 6, ack(HIGH, 5, 20))
        result = desk.shard.decide(end_command(is_commit=is_commit), desk.now_ms)
        appends = in_appends(result)
        assert len(appends) == (3 if is_commit else 2)
        desk.restart_from([*desk.appends, *appends[:count]])
        desk.end(is_commit=is_commit)
        outcomes.append((desk.intervals(), desk.committed(), desk.pending))
    expected = (Interval(LOW, 20, done((25, 29))), Interval(HIGH, 20))
    if not is_commit:
        expected = (Interval(ALL_SLOTS, 10),)
    assert outcomes == [(expected, 20 if is_commit else 10, {})] * 4


def test_every_prefix_of_the_journals_gives_something_that_can_go_on() -> None:
    """Of a whole life with two transactions: what was pending can end, either way."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.say("b", 6, ack(HIGH, 5, 18), producer=OTHER)
    desk.end()
    desk.say("a", 6, ack(LOW, 5, 30), producer=(7, 1))
    desk.end(OTHER, is_commit=False)
    desk.end((7, 2))
    history = list(desk.appends)
    assert (desk.stable, desk.committed()) == (10, 10)
    for count in range(len(history) + 1):
        desk = two()
        desk.restart_from(history[:count])
        known = desk.progress()
        for producer in ((7, 9), (8, 9)):
            desk.end(producer, is_commit=False)
        assert desk.pending == {}
        after = desk.progress()
        assert known is None or after == known
        assert desk.committed() == (after.stable_offset if after is not None else None)


def test_what_was_never_answered() -> None:
    """Pending, and progress that it hangs on, but not the offset that this hangs on."""
    desk = AcksDesk()
    desk.holds("a", 6, {LOW: 5})
    members = list(desk.appends)
    result = desk.shard.decide(
        dataclasses.replace(_take(desk), partitions=(desk.part(ack(LOW, 5, 20)),)), desk.now_ms
    )
    first, _ = in_appends(result)
    desk.appends = [*members, first]
    desk.restart()
    assert desk.progress() is None
    assert [record for step in desk.ring() for record in step.records] == [gone("a"), forgotten()]
    assert desk.end().records == [ended()]
    desk.appends = [*members, first]
    desk.restart()
    assert desk.end().records == [gone("a"), ended()]
    assert desk.progress() is None


def test_a_log_that_lost_its_end() -> None:
    """Other records may have the offsets now: what was acknowledged of them is not."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 40, (60, 69)))
    desk.say("b", 6, ack(HIGH, 5, -1, (70, 79)))
    desk.logs[PLACE].cut(65, 4)
    desk.has_settled = True
    desk.restart()
    assert desk.pending == {(7, "a"): (said(LOW, 40, (60, 64)),), (7, "b"): ()}
    desk.logs[PLACE].end = 90
    desk.say("b", 6, ack(HIGH, 5, -1, (80, 89)))
    desk.restart()
    assert desk.end().records[2:4] == [gone("a"), gone("b")]
    assert desk.intervals() == (
        Interval(LOW, 40, done((60, 64))),
        Interval(HIGH, 10, done((80, 89))),
    )
    progress = desk.progress()
    assert progress is not None
    assert progress.leader_epoch == 4


def test_a_topic_that_is_missing_at_the_start() -> None:
    """Nothing can be said about its log; what is pending stays as it is."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 40))
    desk.restart(missing=PLACE)
    assert desk.pending == {(7, "a"): (said(LOW, 40),)}


# Limits -----------------------------------------------------------------------------------------


def test_ranges_of_transactions_count() -> None:
    """Those of all transactions together, and of none; watermarks and closed gaps are taken."""
    desk = two(max_ranges=4)
    desk.ack("a", 6, ack(LOW, 5, -1, (12, 12)))
    desk.say("b", 6, ack(HIGH, 5, -1, (12, 12), (14, 14)), producer=OTHER)
    assert desk.say("a", 6, ack(LOW, 5, -1, (14, 14))).codes == [OK]
    step = desk.say("a", 6, ack(LOW, 5, 11, (16, 16)))
    assert step.codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert step.partition.outcomes[0].sub_code is SubCode.MAX_INDIVIDUAL_COMMIT_REACHED
    assert desk.pending[7, "a"] == (said(LOW, 11, (14, 14)),)
    step = desk.ack("a", 6, ack(LOW, 5, -1, (18, 18)))
    assert step.codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    step = desk.say("a", 6, ack(HIGH, 5, -1, (18, 18)))
    assert step.codes == [ErrorCode.FENCED_MEMBER_EPOCH]


def test_a_gap_that_a_transaction_closes_is_no_range_more() -> None:
    """It is taken where there is no room for another one, or nothing would ever get better."""
    desk = two(max_ranges=2)
    desk.ack("a", 6, ack(LOW, 5, -1, (12, 12), (14, 14)))
    step = desk.say("a", 6, ack(LOW, 5, -1, (16, 16)))
    assert step.codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert desk.say("a", 6, ack(LOW, 5, -1, (13, 13))).codes == [OK]
    desk.end()
    assert desk.intervals() == (Interval(LOW, 10, done((12, 14))), Interval(HIGH, 10))


def test_the_window_is_measured_from_what_counts() -> None:
    """However much is pending below."""
    desk = two(max_window_offsets=20)
    assert desk.say("a", 6, ack(LOW, 5, 25, (29, 29))).codes == [OK]
    desk.say("b", 6, ack(HIGH, 5, 25), producer=OTHER)
    step = desk.say("a", 6, ack(LOW, 5, -1, (31, 31)))
    assert step.codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    desk.end(OTHER)
    desk.end()
    assert desk.say("a", 6, ack(LOW, 5, -1, (31, 31)), producer=(7, 1)).codes == [OK]


def test_memory_of_transactions_counts() -> None:
    """What all groups have pending is limited with all that they have done."""
    desk = two()
    known = desk.shard.progress_bytes
    desk.say("a", 6, ack(LOW, 5, -1, (12, 12)))
    assert desk.shard.progress_bytes == known + 600 + 400 + 80
    desk.settings = dataclasses.replace(desk.settings, max_state_bytes=known + 600 + 400 + 2 * 80)
    assert desk.say("a", 6, ack(LOW, 5, -1, (14, 14))).codes == [OK]
    step = desk.say("a", 6, ack(LOW, 5, -1, (16, 16)))
    assert step.codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    desk.end(is_commit=False)
    assert desk.shard.progress_bytes == known
    desk.say("a", 6, ack(LOW, 5, -1, (12, 12)))
    desk.say("a", 6, ack(LOW, 5, -1, (30, 30)), producer=(7, 1))
    desk.submit(c.DeleteTopicOffsets(topic=TOPIC))
    assert desk.shard.progress_bytes == 0


# Members that go --------------------------------------------------------------------------------


def test_whoever_is_gone_when_the_broker_starts_has_its_transactions_aborted() -> None:
    """It may have gone and not been aborted before the crash; those who are there go on."""
    desk = two()
    desk.say("a", 6, ack(LOW, 5, 20))
    desk.say("b", 6, ack(HIGH, 5, 20), producer=OTHER)
    desk.say("", -1, ack(ALL_SLOTS, -1, 3), producer=(9, 0), group_id="other")
    desk.leaves("a")
    desk.restart()
    loaded = desk.submit(c.Loaded())
    assert loaded.aborted == []
    aborted = [task for step in desk.ring() for task in step.aborted]  # type: ignore[attr-defined]
    assert aborted == [AbortTransactions(group_id=GROUP, member_id="a", producers=(ONE,))]


def test_desks_with_transactions_are_desks() -> None:
    """So that the checks of every step are made here too."""
    assert issubclass(AcksDesk, Desk)
    assert AcksPending.is_durable
    assert SlotRange(0, 1) == (0, 1)
