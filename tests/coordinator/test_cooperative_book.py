"""Stories of individual commits: what is written, what is refused, and what a restart finds."""

import pytest
from cooperative_story import (
    GROUP,
    HIGH,
    LOW,
    MIDDLE,
    OK,
    PLACE,
    START_MS,
    TOPIC,
    TOPIC_ID,
    WHOLE,
    Desk,
    ack,
    committed,
    done,
    forgotten,
    written,
)

from anabranch.coordinator.cooperative.acks import AckOutcome
from anabranch.coordinator.cooperative.book import ProgressBook, Tracked
from anabranch.coordinator.cooperative.commands import Failure, FailureOutcome
from anabranch.coordinator.cooperative.progress import Attempt, Interval, PartitionProgress
from anabranch.coordinator.cooperative.records import (
    AckedRange,
    FailedAttempt,
    ProgressDelta,
)
from anabranch.coordinator.cooperative.retries import NEVER_MS, rest_ms
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.records import GroupWritten
from anabranch.model.cluster_image import TopicImage
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import ALL_SLOTS, SlotRange

HOUR_MS = 3_600_000
FENCED = ErrorCode.FENCED_MEMBER_EPOCH
STALE = ErrorCode.STALE_MEMBER_EPOCH
LIMITED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
UNKNOWN = -1


def delta(
    *acked: AckedRange, failed: tuple[FailedAttempt, ...] = (), epoch: int = 3
) -> ProgressDelta:
    return ProgressDelta(leader_epoch=epoch, acked=acked, failed=failed)


def progress(*intervals: Interval, epoch: int = 3, **attempts: Attempt) -> PartitionProgress:
    failed = {int(offset[1:]): attempt for offset, attempt in attempts.items()}
    return PartitionProgress(intervals, failed, epoch)


def sharing() -> Desk:
    """Two members have half of the slots each, since epoch 5; they are at epoch 6."""
    desk = Desk()
    desk.holds("a", 6, {LOW: 5})
    desk.holds("b", 6, {HIGH: 5})
    return desk


def owned(**settings: int) -> Desk:
    """One member has it all since epoch 5, and is at epoch 6."""
    desk = Desk(**settings)
    desk.holds("a", 6, WHOLE)
    return desk


def begun(*acks: object, **settings: int) -> Desk:
    """As `owned`, with everything below 10 done."""
    desk = owned(**settings)
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 10), *acks)  # type: ignore[arg-type]
    return desk


# What is written ------------------------------------------------------------------------------


def test_the_first_commit_begins_with_a_snapshot():
    """All that is known, and then the stable offset as the committed one."""
    desk = owned()
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 5, (7, 8)))
    assert step.records == [
        written(0, progress(Interval(ALL_SLOTS, 5, done((7, 8))))),
        committed(5),
    ]
    assert step.partition.stable_offset == 5
    assert step.partition.outcomes == (AckOutcome(ALL_SLOTS),)


def test_more_is_written_as_what_came():
    """A delta; the committed offset is written again only when the stable one moves."""
    desk = begun()
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (12, 13)))
    assert step.records == [written(1, delta(AckedRange(ALL_SLOTS, -1, done((12, 13)))))]
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (10, 11)))
    assert step.records == [
        written(2, delta(AckedRange(ALL_SLOTS, -1, done((10, 11))))),
        committed(14),
    ]
    assert step.partition.stable_offset == 14


def test_slots_nobody_has_spoken_of():
    """They begin where their first owner does; until then there is no stable offset."""
    desk = sharing()
    step = desk.ack("a", 6, ack(LOW, 5, 500, (502, 503)))
    assert step.records == [
        written(0, progress(Interval(LOW, 500, done((502, 503))), Interval(HIGH, UNKNOWN))),
        committed(UNKNOWN),
    ]
    assert step.partition.stable_offset == UNKNOWN
    step = desk.ack("b", 6, ack(HIGH, 5, 400))
    assert step.records == [written(1, delta(AckedRange(HIGH, 400))), committed(400)]
    assert step.partition.stable_offset == 400


def test_a_group_goes_on_from_what_it_committed():
    """Its committed offset is where all slots are."""
    desk = Desk()
    desk.commit(40)
    desk.holds("a", 6, {LOW: 5})
    step = desk.ack("a", 6, ack(LOW, 5, 45))
    assert step.records == [written(0, progress(Interval(LOW, 45), Interval(HIGH, 40)))]
    assert step.partition.stable_offset == 40


def test_a_committed_offset_beyond_the_end_is_the_end():
    """What comes there later was done by nobody."""
    desk = Desk()
    end = desk.logs[PLACE].end
    desk.commit(end + 1000)
    desk.holds("a", 6, {LOW: 5})
    assert desk.ack("a", 6, ack(LOW, 5, 45)).partition.stable_offset == end


def test_a_commit_of_a_former_topic_is_none():
    """What was committed for another topic of that name says nothing about this one."""
    desk = Desk()
    desk.commit(40)
    again = TopicImage(TOPIC, b"again".ljust(16, b"."), 2)
    desk.replace_topics(again)
    place = (again.topic_id, 0)
    desk.logs[place] = desk.logs[PLACE]
    desk.holds("a", 6, {LOW: 5}, place=place)
    part = desk.part(ack(LOW, 5, 45))
    object.__setattr__(part, "topic_id", again.topic_id)
    assert desk.take("a", 6, part).partition.stable_offset == UNKNOWN


def test_to_have_done_nothing_is_something():
    """The first commit counts whatever it says: the next owner begins there too."""
    desk = Desk()
    desk.commit(40)
    desk.holds("a", 6, WHOLE)
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 40))
    assert step.records == [written(0, progress(Interval(ALL_SLOTS, 40)))]


def test_what_is_refused_begins_nothing():
    """A partition of which nothing was taken has no progress, and no committed offset."""
    desk = owned()
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 1001))
    assert (step.codes, step.records) == ([ErrorCode.OFFSET_OUT_OF_RANGE], [])
    assert step.partition.stable_offset == UNKNOWN
    assert desk.progress() is None
    desk.commit(4, "a", 6)
    desk.logs[PLACE].start = 8
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 1001))
    assert (step.records, desk.progress()) == ([], None)


def test_the_same_again_is_not_written():
    """Repetitions, and what lies below, are answered as taken."""
    desk = begun()
    for again in (ack(ALL_SLOTS, 5, 10), ack(ALL_SLOTS, 5, 3, (2, 9))):
        step = desk.ack("a", 6, again)
        assert (step.codes, step.records) == ([OK], [])
        assert step.partition.stable_offset == 10


def test_only_what_is_new_is_written():
    """Of many acknowledgements in one commit those that change nothing leave nothing."""
    desk = begun()
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 10), ack(ALL_SLOTS, 5, 12), ack(ALL_SLOTS, 5, 11))
    assert step.codes == [OK, OK, OK]
    assert step.records == [written(1, delta(AckedRange(ALL_SLOTS, 12))), committed(12)]


def test_every_64th_is_a_snapshot():
    """So that a journal of deltas does not grow without end."""
    desk = owned()
    values = []
    for offset in range(130):
        (record, *_) = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (2 * offset, 2 * offset))).records
        values.append((record.sequence, isinstance(record.value, PartitionProgress)))
    assert values == [(n, n in (0, 64, 128)) for n in range(130)]
    assert len(desk.individual) == 64


def test_two_partitions_in_one_decision():
    """Each has its own records and its own answer; the journal gets all before what follows."""
    desk = owned()
    desk.holds("a", 6, WHOLE, place=(TOPIC_ID, 1))
    desk.holds("b", 6, WHOLE)
    desk.ack("b", 6, ack(ALL_SLOTS, 5, 3))
    step = desk.take(
        "b",
        6,
        desk.part(ack(ALL_SLOTS, 5, 10), partition=1),
        desk.part(ack(ALL_SLOTS, 5, 10)),
    )
    assert [one.error_code for answer in step.answer.partitions for one in answer.outcomes] == [
        FENCED,
        OK,
    ]
    assert step.records == [written(1, delta(AckedRange(ALL_SLOTS, 10))), committed(10)]


def test_one_partition_twice_in_a_decision():
    """The second sees what the first did."""
    desk = begun()
    step = desk.take(
        "a", 6, desk.part(ack(ALL_SLOTS, 5, 20)), desk.part(ack(ALL_SLOTS, 5, -1, (20, 24)))
    )
    assert step.records == [
        written(1, delta(AckedRange(ALL_SLOTS, 20))),
        written(2, delta(AckedRange(ALL_SLOTS, -1, done((20, 24))))),
        committed(25),
    ]


def test_a_committed_offset_that_stands_still_does_not_grow_old():
    """Somebody works on what follows it, so it is written again, but not for a repetition."""
    desk = begun()
    desk.now_ms += HOUR_MS - 1
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (12, 12))).records == [
        written(1, delta(AckedRange(ALL_SLOTS, -1, done((12, 12)))))
    ]
    desk.now_ms += 1
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (12, 12))).records == []
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (14, 14)))
    assert step.records == [
        written(2, delta(AckedRange(ALL_SLOTS, -1, done((14, 14))))),
        committed(10, at_ms=desk.now_ms),
    ]


def test_retention_takes_its_part():
    """What the log has no more is nobody's work; slots nobody has spoken of stay as they are."""
    desk = sharing()
    desk.ack("a", 6, ack(LOW, 5, 10, (20, 29)))
    desk.logs[PLACE].start = 25
    step = desk.ack("a", 6, ack(LOW, 5, -1, (40, 41)))
    assert step.records == [
        written(1, delta(AckedRange(LOW, 25), AckedRange(LOW, -1, done((40, 41)))))
    ]
    assert desk.intervals() == (Interval(LOW, 30, done((40, 41))), Interval(HIGH, UNKNOWN))


def test_the_leader_epoch_is_the_logs():
    """An acknowledgement of older records does not take it back."""
    desk = begun()
    desk.logs[PLACE].epochs.append((7, 500))
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 20), leader_epoch=3)
    assert step.records[0].value.leader_epoch == 7
    assert step.records[1].value.leader_epoch == 7


# Who may ---------------------------------------------------------------------------------------


def test_parts_are_answered_for_themselves():
    """What it holds is taken; what others have, and what it got later than it says, is not."""
    desk = Desk()
    desk.holds("a", 6, {SlotRange(0, 100): 3, SlotRange(200, 300): 6}, {SlotRange(100, 200): 4})
    step = desk.ack("a", 5, ack(SlotRange(0, 400), 5, 10))
    assert step.partition.outcomes == (
        AckOutcome(SlotRange(0, 100)),
        AckOutcome(SlotRange(100, 200)),
        AckOutcome(SlotRange(200, 300), STALE),
        AckOutcome(SlotRange(300, 400), FENCED),
    )
    assert desk.intervals() == (
        Interval(SlotRange(0, 200), 10),
        Interval(SlotRange(200, 65_536), UNKNOWN),
    )


def test_nothing_is_taken_beyond_what_was_shown():
    """Nor beyond the log, nor of a leader epoch that ended before."""
    desk = owned()
    out_of_range = [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, 11), delivered=10).codes == out_of_range
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, 1001)).codes == out_of_range
    desk.logs[PLACE].epochs.append((4, 500))
    fenced = desk.ack("a", 6, ack(ALL_SLOTS, 5, 501), leader_epoch=3)
    assert fenced.codes == [ErrorCode.FENCED_LEADER_EPOCH]
    assert desk.progress() is None
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, 500), leader_epoch=3).codes == [OK]


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("b", 6, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 7, STALE),
        ("a", -1, STALE),
        ("a", 5, OK),
        ("a", 6, OK),
    ],
)
def test_members_of_a_consumer_group(member_id, epoch, error):
    """Only they, at an epoch that they have reached."""
    desk = owned()
    step = desk.ack(member_id, epoch, ack(ALL_SLOTS, 5, 10))
    if error is OK:
        assert step.codes == [OK]
    else:
        step.fails(error)


def classic(state: ClassicState, *members: str) -> GroupWritten:
    group = ClassicGroup(
        group_id=GROUP,
        state=state,
        generation_id=2,
        protocol_type="consumer",
        protocol_name="range" if members else None,
        members={
            member_id: ClassicMember(
                member_id=member_id,
                group_instance_id=None,
                client_id="",
                client_host="",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                protocols=(("range", b""),),
            )
            for member_id in members
        },
    )
    return GroupWritten(group_id=GROUP, group=group)


def test_members_of_a_classic_group():
    """What they own is not known here, so that nothing of theirs could be fenced."""
    desk = Desk()
    desk.shard.replay(classic(ClassicState.STABLE, "a"))
    desk.checks_replay = False
    desk.ack("a", 2, ack(ALL_SLOTS, 2, 10)).fails(ErrorCode.INVALID_REQUEST)
    desk.ack("b", 2, ack(ALL_SLOTS, 2, 10)).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    desk.ack("", -1, ack(ALL_SLOTS, -1, 10)).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    desk.shard.replay(classic(ClassicState.EMPTY))
    desk.ack("a", 2, ack(ALL_SLOTS, 2, 10)).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    assert desk.ack("", -1, ack(ALL_SLOTS, -1, 10)).codes == [OK]


def test_nobody_in_particular():
    """May acknowledge anything in a group without members, or that is none yet."""
    desk = Desk()
    desk.ack("a", 5, ack(ALL_SLOTS, 5, 10)).fails(ErrorCode.GROUP_ID_NOT_FOUND)
    assert desk.ack("", -1, ack(LOW, -1, 10)).codes == [OK]
    desk.holds("a", 6, WHOLE)
    desk.ack("", -1, ack(HIGH, -1, 10)).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    desk.leaves("a")
    desk.ack("a", 6, ack(HIGH, 5, 10)).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    assert desk.ack("", -1, ack(HIGH, 5, 10)).codes == [STALE]
    step = desk.ack("", -1, ack(HIGH, -1, 10))
    assert (step.codes, step.partition.stable_offset) == ([OK], 10)


# How much -------------------------------------------------------------------------------------


def test_too_many_ranges():
    """One more is refused; watermarks and what closes gaps are taken, and make room."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 20), (30, 30)), max_ranges=2)
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (40, 40)))
    assert step.partition.outcomes == (
        AckOutcome(ALL_SLOTS, LIMITED, SubCode.MAX_INDIVIDUAL_COMMIT_REACHED),
    )
    assert step.records == []
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (21, 29))).codes == [OK]
    assert desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (40, 40))).codes == [OK]
    assert desk.intervals() == (Interval(ALL_SLOTS, 10, done((20, 30), (40, 40))),)


def test_of_what_is_too_much_the_watermark_is_taken():
    """Answered as refused all the same, since not all of it was."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 20), (30, 30)), max_ranges=2)
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 12, (40, 40), (50, 50)))
    assert step.codes == [LIMITED]
    assert step.records == [written(1, delta(AckedRange(ALL_SLOTS, 12))), committed(12)]


def test_what_is_too_much_and_not_its_own():
    """The parts that others hold are theirs, whatever there is too much of."""
    desk = Desk(max_ranges=1)
    desk.holds("a", 6, {LOW: 5})
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (20, 20), (30, 30)))
    assert step.partition.outcomes == (
        AckOutcome(LOW, LIMITED, SubCode.MAX_INDIVIDUAL_COMMIT_REACHED),
        AckOutcome(HIGH, FENCED),
    )


def test_too_far_ahead():
    """Ranges beyond the window are refused, a watermark is not; slots without a word hold none."""
    desk = sharing()
    desk.settings = CooperativeSettings(max_window_offsets=100)
    assert desk.ack("a", 6, ack(LOW, 5, 500, (599, 599))).codes == [OK]
    assert desk.ack("b", 6, ack(HIGH, 5, 450, (549, 549))).codes == [LIMITED]
    assert desk.intervals() == (Interval(LOW, 500, done((599, 599))), Interval(HIGH, 450))
    assert desk.ack("b", 6, ack(HIGH, 5, 500, (549, 549))).codes == [OK]
    assert desk.ack("b", 6, ack(HIGH, 5, 900)).codes == [OK]
    assert desk.ack("b", 6, ack(HIGH, 5, -1, (902, 902))).codes == [LIMITED]
    assert desk.ack("a", 6, ack(LOW, 5, 900)).codes == [OK]
    assert desk.ack("b", 6, ack(HIGH, 5, -1, (902, 902))).codes == [OK]


# What fails -----------------------------------------------------------------------------------

SLOT = 7
# A key of it.
HASH = (SLOT << 47) + 1


def failure(
    offset: int = 12, retry_after_ms: int = 0, reason: str = "no", slot: int = SLOT
) -> Failure:
    return Failure(offset, (slot << 47) + 1, retry_after_ms, reason)


def test_a_failure_is_counted_and_rests():
    """One attempt, and a second of rest; the record stays open."""
    desk = begun()
    step = desk.fail("a", 6, failure())
    attempt = Attempt(HASH, 1, START_MS + 1_000, "no")
    assert step.partition.failures == (FailureOutcome(failure=failure(), attempt=attempt),)
    assert step.records == [written(1, delta(failed=(FailedAttempt(12, attempt),)))]
    assert desk.progress() == progress(Interval(ALL_SLOTS, 10), _12=attempt)


def test_a_failure_can_be_the_first_word():
    """Then nothing else is known."""
    desk = owned()
    step = desk.fail("a", 6, failure())
    attempt = Attempt(HASH, 1, START_MS + 1_000, "no")
    assert step.records == [
        written(0, progress(Interval(ALL_SLOTS, UNKNOWN), _12=attempt)),
        committed(UNKNOWN),
    ]


def test_rests_grow():
    """Twice as long each time; as long as is asked for if that is longer; within the limit."""
    settings = CooperativeSettings(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    assert [rest_ms(count, 0, settings) for count in range(1, 6)] == [100, 200, 400, 800, 1_000]
    assert rest_ms(1, 350, settings) == 350
    assert rest_ms(3, 350, settings) == 400
    assert rest_ms(1, 5_000, settings) == 1_000
    assert rest_ms(2**31, 0, settings) == 1_000


def test_a_record_is_delivered_so_often():
    """After the last failure it rests for ever, and is answered as what it is."""
    desk = begun(delivery_limit=3)
    for count in (1, 2):
        step = desk.fail("a", 6, failure())
        assert step.partition.failures[0].attempt.count == count
        desk.now_ms += 5_000
    step = desk.fail("a", 6, failure())
    attempt = Attempt(HASH, 3, NEVER_MS, "no")
    assert step.partition.failures == (FailureOutcome(failure=failure(), attempt=attempt),)
    assert step.partition.stable_offset == 10
    desk.now_ms += 10**9
    assert desk.fail("a", 6, failure()).records == []


def test_no_more_tries():
    """A member that wants none gets none, also when the record rests."""
    desk = begun()
    step = desk.fail("a", 6, failure(retry_after_ms=-1))
    assert step.partition.failures[0].attempt == Attempt(HASH, 1, NEVER_MS, "no")
    desk.fail("a", 6, failure(13))
    step = desk.fail("a", 6, failure(13, retry_after_ms=-1))
    assert step.partition.failures[0].attempt == Attempt(HASH, 1, NEVER_MS, "no")


def test_a_failure_told_twice_counts_once():
    """Nobody tries a record that rests; its rest is not renewed either."""
    desk = begun()
    first = desk.fail("a", 6, failure(retry_after_ms=2_000)).partition.failures[0]
    desk.now_ms += 1_999
    again = desk.fail("a", 6, failure(retry_after_ms=2_000, reason="still no"))
    assert again.partition.failures[0].attempt == first.attempt
    assert again.records == []
    desk.now_ms += 1
    step = desk.fail("a", 6, failure())
    assert step.partition.failures[0].attempt == Attempt(HASH, 2, desk.now_ms + 2_000, "no")


def test_done_after_all():
    """A record that is done has no attempts any more, and cannot fail."""
    desk = begun()
    desk.fail("a", 6, failure())
    step = desk.take("a", 6, desk.part(ack(ALL_SLOTS, 5, 20), failures=(failure(),)))
    assert step.partition.failures == (FailureOutcome(failure=failure()),)
    assert step.records == [written(2, delta(AckedRange(ALL_SLOTS, 20))), committed(20)]
    assert desk.progress() == progress(Interval(ALL_SLOTS, 20))


def test_failures_are_fenced_like_acknowledgements():
    """By owner, epoch, what was shown, and leader epoch."""
    desk = Desk()
    desk.holds("a", 6, {LOW: 5})
    codes = desk.fail("a", 6, failure(slot=MIDDLE)).failure_codes
    assert codes == [FENCED]
    assert desk.fail("a", 4, failure()).failure_codes == [STALE]
    shown = desk.fail("a", 6, failure(), delivered=12)
    assert shown.failure_codes == [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert desk.fail("a", 6, failure(-1)).failure_codes == [ErrorCode.INVALID_REQUEST]
    desk.logs[PLACE].epochs.append((4, 12))
    cut = desk.fail("a", 6, failure(), leader_epoch=3)
    assert cut.failure_codes == [ErrorCode.FENCED_LEADER_EPOCH]
    assert desk.progress() is None


def test_a_record_has_one_key():
    """Whoever owns another slot cannot speak of it."""
    desk = begun()
    desk.fail("a", 6, failure())
    step = desk.fail("a", 6, failure(slot=SLOT + 1))
    assert (step.failure_codes, step.records) == ([ErrorCode.INVALID_REQUEST], [])


def test_too_many_failures():
    """No more are counted than ranges are kept; those that are go on."""
    desk = begun(max_ranges=2)
    step = desk.fail("a", 6, failure(12), failure(13), failure(14))
    assert step.failure_codes == [OK, OK, LIMITED]
    assert step.partition.failures[2].sub_code is SubCode.MAX_INDIVIDUAL_COMMIT_REACHED
    desk.now_ms += 5_000
    assert desk.fail("a", 6, failure(13)).failure_codes == [OK]


def test_a_long_reason_is_cut():
    """It is there to be read, not to fill the journal."""
    desk = begun()
    (outcome,) = desk.fail("a", 6, failure(reason="x" * 1000)).partition.failures
    assert outcome.attempt is not None
    assert outcome.attempt.reason == "x" * 256


# Plain commits ----------------------------------------------------------------------------------


def plain(offset: int, partition: int = 0, at_ms: int = START_MS) -> object:
    return committed(offset, partition, leader_epoch=-1, at_ms=at_ms)


def test_the_owner_of_it_all_commits():
    """A watermark of all slots; what is done above stays done."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24), (30, 30)))
    step = desk.commit(20, "a", 6)
    assert step.answer == c.CommitAnswer(errors=(OK,))
    assert step.records == [written(1, delta(AckedRange(ALL_SLOTS, 20))), plain(20)]
    assert desk.intervals() == (Interval(ALL_SLOTS, 25, done((30, 30))),)


def test_a_commit_that_says_nothing_new():
    """Is a committed offset and nothing else."""
    desk = begun()
    assert desk.commit(10, "a", 6).records == [plain(10)]


def test_a_commit_also_raises_slots_nobody_has_spoken_of():
    """The owner speaks for them."""
    desk = sharing()
    desk.ack("a", 6, ack(LOW, 5, 10))
    desk.leaves("b")
    desk.holds("a", 7, {ALL_SLOTS: 7})
    desk.commit(4, "a", 7)
    assert desk.intervals() == (Interval(LOW, 10), Interval(HIGH, 4))


def test_the_owner_goes_back():
    """Who commits less than is done wants everything from there on again."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    desk.fail("a", 6, failure(12))
    step = desk.commit(4, "a", 6)
    assert step.records == [written(2, progress(Interval(ALL_SLOTS, 4))), plain(4)]


def test_an_owner_in_pieces():
    """Units may be cut; who has all of them, given up or not, has it all."""
    desk = sharing()
    desk.ack("a", 6, ack(LOW, 5, 10))
    desk.leaves("b")
    desk.holds("a", 7, {LOW: 5}, {HIGH: 7})
    assert desk.commit(20, "a", 7).answer.errors == (OK,)
    assert desk.intervals() == (Interval(ALL_SLOTS, 20),)


def test_the_owner_of_a_part_cannot_commit_for_the_others():
    """With or without progress; the other partitions of the commit are not its fault."""
    desk = sharing()
    desk.holds("a", 6, {LOW: 5})
    for _ in range(2):
        step = desk.commit(20, "a", 6, partitions=(0, 1))
        assert step.answer.errors == (ErrorCode.INVALID_REQUEST, OK)
        assert step.records == [plain(20, 1)]
        desk.ack("a", 6, ack(LOW, 5, 10))


def test_who_has_no_part_cannot_commit_either():
    """Where others share it, or the group has progress; elsewhere Kafka lets it."""
    desk = sharing()
    desk.holds("c", 6, {})
    assert desk.commit(20, "c", 6, partitions=(0, 1)).answer.errors == (STALE, OK)
    desk = begun()
    desk.holds("c", 6, {})
    assert desk.commit(20, "c", 6, partitions=(0, 1)).answer.errors == (STALE, OK)
    desk = owned()
    desk.holds("c", 6, {})
    assert desk.commit(20, "c", 6).answer.errors == (OK,)


def test_an_administrator_starts_over():
    """In a group without members: ranges and failures are gone, all slots are there."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    desk.fail("a", 6, failure(12))
    desk.commit(15).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    desk.leaves("a")
    step = desk.commit(15)
    assert step.records == [written(2, progress(Interval(ALL_SLOTS, 15))), plain(15)]
    step = desk.commit(-1)
    assert step.records == [written(3, progress(Interval(ALL_SLOTS, 0))), plain(-1)]


def test_a_partition_twice_in_a_plain_commit():
    """The second is judged by what the first did."""
    desk = begun()
    step = desk.commit(20, "a", 6, partitions=(0, 0))
    assert step.records == [
        written(1, delta(AckedRange(ALL_SLOTS, 20))),
        plain(20),
        plain(20),
    ]


def test_without_progress_there_is_only_the_offset():
    """Plain groups stay what they are."""
    desk = owned()
    assert desk.commit(20, "a", 6).records == [plain(20)]
    assert desk.progress() is None


def test_nothing_is_projected_over_progress():
    """What follows from a branch topic is older news than what the group says itself."""
    desk = begun()
    projected = tuple(
        c.ProjectedOffset(
            topic=TOPIC,
            topic_id=TOPIC_ID,
            partition=partition,
            offset=5,
            newest_commit_ms=START_MS + 1,
            read_ms=START_MS + 1,
        )
        for partition in (0, 1)
    )
    step = desk.submit(c.ProjectOffsets(group_id=GROUP, offsets=projected))
    assert [record.partition for record in step.records] == [1]


# What is forgotten ----------------------------------------------------------------------------


def test_offsets_that_are_deleted():
    """Progress goes with them, and only theirs."""
    desk = Desk()
    desk.take(
        "", -1, desk.part(ack(ALL_SLOTS, -1, 10)), desk.part(ack(ALL_SLOTS, -1, 10), partition=1)
    )
    step = desk.submit(c.DeleteOffsets(group_id=GROUP, partitions=((TOPIC, 1),)))
    assert step.records == [forgotten(1), committed(None, 1)]
    assert desk.shard.progress(GROUP).keys() == {PLACE}


def test_a_group_that_is_deleted():
    """Nothing of it is left, and nobody else loses anything."""
    desk = Desk()
    for group_id in (GROUP, "other"):
        part = desk.part(ack(ALL_SLOTS, -1, 10, (12, 12)))
        desk.take("", -1, part, group_id=group_id)
    step = desk.submit(c.DeleteGroup(group_id=GROUP))
    assert step.records[:2] == [forgotten(), committed(None)]
    assert desk.shard.progress(GROUP) == {}
    assert desk.progress(group_id="other") is not None
    desk.compact()
    assert len(desk.individual) == 1


def test_a_topic_that_is_deleted():
    """In every group, by the id that it had."""
    desk = Desk()
    for group_id in (GROUP, "other"):
        desk.take("", -1, desk.part(ack(ALL_SLOTS, -1, 10)), group_id=group_id)
    desk.replace_topics()
    step = desk.submit(c.DeleteTopicOffsets(topic=TOPIC))
    assert step.records == [
        forgotten(),
        forgotten(group_id="other"),
        committed(None),
        committed(None, group_id="other"),
    ]
    assert not desk.shard.progress(GROUP)


def test_offsets_that_expire():
    """A week after the last commit of a group without members."""
    desk = Desk()
    desk.ack("", -1, ack(ALL_SLOTS, -1, 10))
    desk.now_ms += 7 * 24 * HOUR_MS - 1
    assert desk.submit(c.ExpireOffsets()).records == []
    desk.now_ms += 1
    step = desk.submit(c.ExpireOffsets())
    assert step.records[:2] == [forgotten(), committed(None)]


def test_a_commit_without_a_topic_id():
    """Old clients with a retention of their own leave none; the topic has it."""
    desk = Desk()
    desk.ack("", -1, ack(ALL_SLOTS, -1, 10))
    desk.commit(12, retention_ms=1_000)
    desk.now_ms += 1_000
    assert forgotten() in desk.submit(c.ExpireOffsets()).records


def test_every_key_of_what_is_forgotten_goes():
    """The journal keeps no delta that nobody will ever read."""
    desk = Desk()
    for offset in range(70):
        desk.ack("", -1, ack(ALL_SLOTS, -1, -1, (2 * offset, 2 * offset)))
    assert len(desk.individual) == 64
    desk.submit(c.DeleteGroup(group_id=GROUP))
    desk.compact()
    assert desk.individual == {}


# After a start --------------------------------------------------------------------------------


def test_everything_is_there_again():
    """Watermarks, gaps, failures, sequences; and nothing has to be written."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    desk.fail("a", 6, failure(12))
    before = dict(desk.shard.progress(GROUP))
    desk.logs[PLACE].cut(1000, 4)
    desk.restart()
    assert desk.shard.progress(GROUP) == before
    assert desk.ring() == []
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 12))
    assert step.records == [
        written(2, delta(AckedRange(ALL_SLOTS, 12), epoch=4)),
        committed(12, leader_epoch=4),
    ]


def test_the_committed_offset_was_not_written_any_more():
    """A crash between the journals: it is made up for."""
    desk = begun()
    primary = dict(desk.primary)
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 20))
    desk.primary = primary
    desk.restart()
    assert (desk.committed(), desk.intervals()) == (10, (Interval(ALL_SLOTS, 20),))
    (step,) = desk.ring()
    assert step.records == [committed(20)]


def test_the_next_commit_may_come_first():
    """Then it makes up for it, and the timer finds nothing to do."""
    desk = begun()
    primary = dict(desk.primary)
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 20))
    desk.primary = primary
    desk.restart()
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 15))
    assert (step.records, step.partition.stable_offset) == ([committed(20)], 20)
    assert [step.records for step in desk.ring()] == [[]]


def test_the_higher_of_both_counts():
    """The journal of progress lost its end, or all: what was committed is done."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24), (30, 30)))
    individual = dict(desk.individual)
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 20))
    desk.individual = individual
    desk.restart()
    assert desk.committed() == 25
    assert desk.intervals() == (Interval(ALL_SLOTS, 25, done((30, 30))),)
    (step,) = desk.ring()
    assert step.records == [written(1, progress(Interval(ALL_SLOTS, 25, done((30, 30)))))]


def test_a_lost_journal():
    """The group goes on from its committed offset: what was done above is done again."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    desk.individual = {}
    desk.restart()
    assert (desk.progress(), desk.committed()) == (None, 10)
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (12, 12)))
    assert step.records == [written(0, progress(Interval(ALL_SLOTS, 10, done((12, 12)))))]


def test_a_log_that_lost_its_end():
    """What was done there was done to other records than there will be; both offsets go back."""
    desk = begun(ack(ALL_SLOTS, 5, 500, (600, 610)))
    desk.fail("a", 6, failure(550))
    desk.logs[PLACE].cut(480, 4)
    desk.restart()
    kept = progress(Interval(ALL_SLOTS, 480), epoch=4)
    assert desk.progress() == kept
    desk.logs[PLACE].end = 1000
    (step,) = desk.ring()
    assert step.records == [written(2, kept), committed(480, leader_epoch=4)]


def test_failures_of_records_that_are_lost():
    """Other records at their offsets have not failed, even where nothing was done."""
    desk = begun()
    desk.fail("a", 6, failure(550))
    desk.logs[PLACE].cut(480, 4)
    desk.restart()
    assert desk.progress() == progress(Interval(ALL_SLOTS, 10), epoch=4)


def test_what_was_lost_does_not_come_back_with_a_delta():
    """The first record after a cut is a snapshot, whoever writes it."""
    desk = begun(ack(ALL_SLOTS, 5, 500, (600, 610)))
    desk.logs[PLACE].cut(480, 4)
    desk.restart()
    desk.logs[PLACE].end = 1000
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (485, 486)))
    after = progress(Interval(ALL_SLOTS, 480, done((485, 486))), epoch=4)
    assert step.records == [written(1, after), committed(480, leader_epoch=4)]
    desk.logs[PLACE].cut(1000, 5)
    desk.restart()
    assert desk.progress() == after


def test_a_cut_is_found_again_by_the_next_start():
    """Nobody wrote anything in between, and the log has grown."""
    desk = begun(ack(ALL_SLOTS, 5, 500))
    desk.logs[PLACE].cut(480, 4)
    desk.restart()
    desk.logs[PLACE].end = 1000
    desk.logs[PLACE].cut(1000, 5)
    desk.restart()
    assert desk.intervals() == (Interval(ALL_SLOTS, 480),)


def test_a_committed_offset_beyond_the_log_skips_nothing():
    """Without a leader epoch its end is all that is known of it."""
    desk = begun()
    desk.commit(500, "a", 6)
    desk.logs[PLACE].cut(480, 4)
    desk.restart()
    assert desk.intervals() == (Interval(ALL_SLOTS, 480),)


def test_an_epoch_that_ended_below_the_committed_offset():
    """The projection was written with the epoch of a log that was cut since, and grew again."""
    desk = begun()
    individual = dict(desk.individual)
    desk.logs[PLACE].epochs.append((4, 400))
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 500))
    desk.individual = individual
    desk.logs[PLACE].cut(480, 5)
    desk.logs[PLACE].end = 1000
    desk.restart()
    assert desk.intervals() == (Interval(ALL_SLOTS, 480),)


def test_retention_while_nobody_looked():
    """What is gone is nobody's work, but for slots that nobody has spoken of."""
    desk = sharing()
    desk.ack("a", 6, ack(LOW, 5, 10))
    desk.logs[PLACE].start = 50
    desk.restart()
    assert desk.intervals() == (Interval(LOW, 50), Interval(HIGH, UNKNOWN))


def test_retention_of_what_was_committed_meanwhile():
    """The committed offset speaks for slots nobody had spoken of, and then retention counts."""
    desk = sharing()
    desk.ack("a", 6, ack(LOW, 5, 10))
    individual = dict(desk.individual)
    desk.ack("b", 6, ack(HIGH, 5, 8))
    desk.individual = individual
    desk.logs[PLACE].start = 50
    desk.restart()
    assert desk.intervals() == (Interval(ALL_SLOTS, 50),)


def test_progress_without_a_committed_offset():
    """Belongs to a group that was deleted, or was never answered: nobody goes on with it."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    desk.primary = {}
    desk.restart()
    assert desk.progress() is None
    desk.holds("a", 6, WHOLE)
    step = desk.ack("a", 6, ack(ALL_SLOTS, 5, 3))
    assert step.records == [written(0, progress(Interval(ALL_SLOTS, 3))), committed(3)]
    desk.restart()
    assert desk.intervals() == (Interval(ALL_SLOTS, 3),)


def test_progress_without_a_committed_offset_does_not_come_back():
    """It is forgotten before a later commit could be taken for the one that it hung on."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    individual = dict(desk.individual)
    desk.leaves("a")
    desk.submit(c.DeleteOffsets(group_id=GROUP, partitions=((TOPIC, 0),)))
    desk.individual = individual
    desk.restart()
    (step,) = desk.ring()
    assert step.records == [forgotten()]
    desk.commit(2)
    desk.restart()
    assert (desk.progress(), desk.committed()) == (None, 2)


def test_a_plain_commit_may_come_before_it_is_forgotten():
    """Then it is forgotten with that, be it the owner's or one that follows from a branch."""
    for partition in (0, 1):
        desk = Desk()
        place = (TOPIC_ID, partition)
        desk.take("", -1, desk.part(ack(ALL_SLOTS, -1, 3, (20, 24)), partition=partition))
        desk.primary = {}
        desk.restart()
        desk.commit(7, partitions=(1 - partition,))
        if partition:
            projected = c.ProjectedOffset(
                topic=TOPIC,
                topic_id=TOPIC_ID,
                partition=1,
                offset=2,
                newest_commit_ms=START_MS,
                read_ms=START_MS,
            )
            step = desk.submit(c.ProjectOffsets(group_id=GROUP, offsets=(projected,)))
        else:
            step = desk.commit(2)
        assert step.records[0] == forgotten(partition)
        assert [step.records for step in desk.ring()] == [[]]
        desk.restart()
        assert (desk.progress(place), desk.committed(partition)) == (None, 2)


def test_a_new_life_may_begin_before_the_old_one_is_forgotten():
    """Then there is nothing to forget."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    desk.primary = {}
    desk.restart()
    desk.ack("", -1, ack(ALL_SLOTS, -1, 3))
    assert [step.records for step in desk.ring()] == [[]]
    desk.restart()
    assert desk.intervals() == (Interval(ALL_SLOTS, 3),)


def test_a_delta_that_does_not_follow():
    """Says nothing: what it would add to is not known."""
    book = ProgressBook()
    snapshot = progress(Interval(ALL_SLOTS, 10))
    for sequence, value in (
        (4, delta(AckedRange(ALL_SLOTS, 90))),
        (5, snapshot),
        (5, delta(AckedRange(ALL_SLOTS, 90))),
        (7, delta(AckedRange(ALL_SLOTS, 90))),
    ):
        book.replay(written(sequence, value))
    assert book.of_group(GROUP) == ({PLACE: Tracked(snapshot, 5)})
    book.replay(written(6, delta(AckedRange(ALL_SLOTS, 11))))
    assert book.of_group(GROUP)[PLACE].progress.stable_offset == 11


def test_a_group_whose_progress_is_forgotten():
    """Is not among those that have some."""
    book = ProgressBook()
    book.replay(written(0, progress(Interval(ALL_SLOTS, 10))))
    assert (bool(book), list(book)) == (True, [GROUP])
    book.replay(forgotten())
    assert (bool(book), list(book)) == (False, [])


def test_deltas_of_an_earlier_life():
    """Left in a journal without their snapshot, they say nothing about the new one."""
    desk = begun()
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 700))
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 800))
    primary = {k: v for k, v in desk.primary.items() if not k.startswith(b"\x00\x01")}
    desk.primary = primary
    desk.restart()
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 3))
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 4))
    desk.restart()
    assert desk.intervals() == (Interval(ALL_SLOTS, 4),)


def test_a_log_that_is_not_there():
    """Of a topic that is: nothing can be said, and what is known stays as it is."""
    desk = begun(ack(ALL_SLOTS, 5, -1, (20, 24)))
    desk.restart(missing=PLACE)
    assert [step.records for step in desk.ring()] == [[]]
    assert desk.intervals() == (Interval(ALL_SLOTS, 10, done((20, 24))),)


def test_a_topic_that_went_meanwhile():
    """Its progress is forgotten when there is time."""
    desk = Desk()
    desk.ack("", -1, ack(ALL_SLOTS, -1, 10))
    desk.topics = {}
    desk.restart()
    (step,) = desk.ring()
    assert step.records == [forgotten()]
    assert not desk.shard.progress(GROUP)


def test_a_topic_that_was_created_again_meanwhile():
    """The new one has nothing of the old one's progress."""
    desk = Desk()
    desk.ack("", -1, ack(ALL_SLOTS, -1, 10))
    again = b"again".ljust(16, b".")
    desk.topics = {TOPIC: TopicImage(TOPIC, again, 2)}
    desk.restart()
    assert [step.records for step in desk.ring()] == [[forgotten()]]
