"""Stories of records after their last attempt: diverted keys, and what somebody decides."""

from typing import Any

from cooperative_story import (
    HIGH,
    LOW,
    OK,
    PLACE,
    START_MS,
    TOPIC_ID,
    WHOLE,
    Desk,
    ack,
    committed,
    done,
    written,
)

from anabranch.coordinator.cooperative.commands import Action, Decision, DecisionsAnswer, Failure
from anabranch.coordinator.cooperative.progress import Attempt, Interval
from anabranch.coordinator.cooperative.records import AckedRange, DivertedKey, ProgressDelta
from anabranch.coordinator.cooperative.retries import NEVER_MS, exhausted_offsets
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange

SLOT = 7
# Two keys of one slot.
KEY, OTHER = (SLOT << 47) + 1, (SLOT << 47) + 2
NOT_FOUND = ErrorCode.RESOURCE_NOT_FOUND
INVALID = ErrorCode.INVALID_REQUEST


def failure(offset: int = 12, key_hash: int = KEY, retry_after_ms: int = -1) -> Failure:
    return Failure(offset, key_hash, retry_after_ms, "no")


def waiting(*offsets: int, key_hash: int = KEY) -> Desk:
    """A member has everything below 10 done, and some records have had their last attempt."""
    desk = Desk()
    desk.holds("a", 6, WHOLE)
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 10))
    desk.fail("a", 6, *(failure(offset, key_hash) for offset in offsets))
    return desk


def diverted(*more: int) -> Desk:
    """The record 12 is in the dead-letter topic, and its key follows it."""
    desk = waiting(12, *more)
    desk.decide(Decision(Action.DLQ, 12, diverts=True))
    return desk


def codes(step: Any) -> list[ErrorCode]:
    answer = step.answer
    assert isinstance(answer, DecisionsAnswer)
    return [one.error_code for one in answer.outcomes]


def delta(**values: Any) -> ProgressDelta:
    return ProgressDelta(leader_epoch=3, **values)


# Records ----------------------------------------------------------------------------------------


def test_a_record_is_released():
    """Its attempts are forgotten: the next failure is the first."""
    desk = waiting(12)
    step = desk.decide(Decision(Action.RELEASE, 12))
    assert codes(step) == [OK]
    assert step.records == [written(2, delta(forgiven=(12,)))]
    assert desk.intervals() == (Interval(ALL_SLOTS, 10),)
    step = desk.fail("a", 6, failure(retry_after_ms=0))
    assert step.partition.failures[0].attempt == Attempt(KEY, 1, START_MS + 1_000, "no")


def test_a_record_is_skipped():
    """It is done, and the stable offset goes on when nothing else holds it."""
    desk = waiting(10, 12)
    step = desk.decide(Decision(Action.SKIP, 12, KEY))
    assert step.answer == DecisionsAnswer(stable_offset=10, outcomes=step.answer.outcomes)
    assert step.records == [written(2, delta(acked=(AckedRange(ALL_SLOTS, -1, done((12, 12))),)))]
    assert exhausted_offsets(desk.progress()) == [10]
    desk.ack("a", 6, ack(SlotRange(0, SLOT), 5, 20), ack(SlotRange(SLOT + 1, SLOT_COUNT), 5, 20))
    desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (11, 11), (13, 19)))
    step = desk.decide(Decision(Action.SKIP, 10))
    assert codes(step) == [OK]
    assert step.answer.stable_offset == 20
    assert step.records[1:] == [committed(20)]
    assert desk.progress().attempts == {}


def test_a_record_that_is_in_the_dead_letter_topic():
    """Is done; its key goes on."""
    desk = waiting(12)
    step = desk.decide(Decision(Action.DLQ, 12, KEY))
    assert step.records == [written(2, delta(acked=(AckedRange(ALL_SLOTS, -1, done((12, 12))),)))]
    assert desk.progress().diverted == {}
    assert (
        desk.fail("a", 6, failure(13, retry_after_ms=0)).partition.failures[0].attempt is not None
    )
    assert exhausted_offsets(desk.progress()) == []


def test_only_what_waits_is_decided_about():
    """Not what is done, has not failed, rests, or is of another key; each has its answer."""
    desk = waiting(12)
    desk.fail("a", 6, failure(13, retry_after_ms=0))
    step = desk.decide(
        Decision(Action.SKIP, 5),
        Decision(Action.SKIP, 14),
        Decision(Action.RELEASE, 13),
        Decision(Action.SKIP, 12, OTHER),
        Decision(Action.SKIP, 12),
        Decision(Action.DLQ, 12),
    )
    assert codes(step) == [NOT_FOUND, NOT_FOUND, INVALID, INVALID, OK, NOT_FOUND]
    messages = [one.message for one in step.answer.outcomes]
    assert "is done, or has not failed" in messages[0]
    assert "by itself after its rest" in messages[2]
    assert "another key" in messages[3]
    assert messages[4] is None
    assert exhausted_offsets(desk.progress()) == []
    assert list(desk.progress().attempts) == [13]


def test_nothing_is_known():
    """Of the group, or of the partition."""
    desk = Desk()
    for decision in (Decision(Action.SKIP, 12), Decision(Action.RELEASE, key_hash=KEY)):
        step = desk.decide(decision)
        assert (codes(step), step.records) == ([NOT_FOUND], [])
        assert step.answer.stable_offset == -1


def test_what_is_refused_is_not_written():
    """Nothing has changed."""
    desk = waiting(12)
    step = desk.decide(Decision(Action.SKIP, 14))
    assert step.records == []


def test_what_the_log_has_no_more():
    """Nobody has to decide about it."""
    desk = waiting(12, 14)
    desk.logs[PLACE].start = 13
    step = desk.decide(Decision(Action.SKIP, 12), Decision(Action.RELEASE, 14))
    assert codes(step) == [NOT_FOUND, OK]
    assert step.records == [
        written(2, delta(acked=(AckedRange(ALL_SLOTS, 13),), forgiven=(14,))),
        committed(13),
    ]


def test_slots_nobody_has_spoken_of_stay_so():
    """A record is skipped in them, and there is no stable offset."""
    desk = Desk()
    desk.holds("a", 6, {LOW: 5})
    desk.holds("b", 6, {HIGH: 5})
    desk.fail("a", 6, failure())
    step = desk.decide(Decision(Action.SKIP, 12))
    assert (codes(step), step.answer.stable_offset) == ([OK], -1)
    assert desk.committed() == -1


# Keys -------------------------------------------------------------------------------------------


def test_a_key_is_diverted():
    """With the record that it is diverted for, in one decision; it is so after a restart."""
    desk = waiting(12)
    step = desk.decide(Decision(Action.DLQ, 12, diverts=True))
    assert step.records == [
        written(
            2,
            delta(
                acked=(AckedRange(ALL_SLOTS, -1, done((12, 12))),), diverted=(DivertedKey(KEY, 12),)
            ),
        )
    ]
    for _ in range(2):
        assert desk.progress().diverted == {KEY: 12}
        desk.restart()


def test_later_records_of_a_diverted_key_are_not_tried():
    """They have had their last attempt at once; records from before, and other keys, have not."""
    desk = diverted()
    step = desk.fail(
        "a",
        6,
        failure(13, retry_after_ms=-2),
        failure(14, retry_after_ms=0),
        failure(11, retry_after_ms=0),
        failure(15, OTHER, retry_after_ms=0),
    )
    reason = "its key is diverted since offset 12"
    assert [one.attempt for one in step.partition.failures] == [
        Attempt(KEY, 0, NEVER_MS, reason),
        Attempt(KEY, 0, NEVER_MS, reason),
        Attempt(KEY, 1, START_MS + 1_000, "no"),
        Attempt(OTHER, 1, START_MS + 1_000, "no"),
    ]
    assert exhausted_offsets(desk.progress()) == [13, 14]


def test_attempts_before_a_key_was_diverted_are_kept():
    """They are told with the copy."""
    desk = waiting(12)
    desk.fail("a", 6, failure(14, retry_after_ms=0))
    desk.decide(Decision(Action.DLQ, 12, diverts=True))
    step = desk.fail("a", 6, failure(14, retry_after_ms=-2))
    attempt = step.partition.failures[0].attempt
    assert attempt is not None
    assert (attempt.count, attempt.not_before_ms) == (1, NEVER_MS)


def test_a_key_that_was_released_meanwhile():
    """Who did not try a record because of it has said nothing: it will be tried."""
    desk = waiting(12)
    step = desk.fail("a", 6, failure(14, retry_after_ms=-2))
    assert step.partition.failures[0].attempt is None
    assert (step.failure_codes, step.records) == ([OK], [])


def test_a_key_is_diverted_from_its_first_record_on():
    """Also when a later one comes first, or again."""
    desk = waiting(12, 14)
    for offset in (14, 12):
        desk.decide(Decision(Action.DLQ, offset, diverts=True))
    assert desk.progress().diverted == {KEY: 12}
    desk.fail("a", 6, failure(16))
    desk.decide(Decision(Action.DLQ, 16, diverts=True))
    assert desk.progress().diverted == {KEY: 12}


def test_a_key_is_released():
    """It is not diverted any more, and what waits of it is tried again; others stay as they are."""
    desk = diverted()
    desk.fail("a", 6, failure(13), failure(14, OTHER))
    step = desk.decide(Decision(Action.RELEASE, key_hash=KEY))
    assert codes(step) == [OK]
    assert step.records == [written(4, delta(forgiven=(13,), released=(KEY,)))]
    assert desk.progress().diverted == {}
    assert exhausted_offsets(desk.progress()) == [14]
    desk.restart()
    assert desk.progress().diverted == {}
    assert codes(desk.decide(Decision(Action.RELEASE, key_hash=KEY))) == [NOT_FOUND]


def test_a_key_that_is_blocked_is_released():
    """With all its records that wait."""
    desk = waiting(12, 13)
    assert codes(desk.decide(Decision(Action.RELEASE, key_hash=KEY))) == [OK]
    assert desk.progress().attempts == {}


def test_records_of_a_key_are_skipped():
    """All that wait. Of a key that is only diverted there are none."""
    desk = waiting(12, 13)
    desk.fail("a", 6, failure(14, OTHER))
    assert codes(desk.decide(Decision(Action.SKIP, key_hash=KEY))) == [OK]
    assert exhausted_offsets(desk.progress()) == [14]
    desk = diverted()
    step = desk.decide(Decision(Action.SKIP, key_hash=KEY))
    assert codes(step) == [NOT_FOUND]
    assert desk.progress().diverted == {KEY: 12}


def test_a_record_of_a_diverted_key_is_not_released_alone():
    """It would come back at once; with its key it is."""
    desk = diverted(13)
    step = desk.decide(Decision(Action.RELEASE, 13))
    assert (codes(step), step.records) == ([INVALID], [])
    assert exhausted_offsets(desk.progress()) == [13]
    step = desk.decide(Decision(Action.RELEASE, key_hash=KEY), Decision(Action.RELEASE, 13))
    assert codes(step) == [OK, NOT_FOUND]


def test_a_record_from_before_a_key_was_diverted_is_released():
    """It is not diverted itself."""
    desk = waiting(11, 12)
    desk.decide(Decision(Action.DLQ, 12, diverts=True))
    assert codes(desk.decide(Decision(Action.RELEASE, 11))) == [OK]


# What else happens to them ----------------------------------------------------------------------


def test_a_snapshot_has_diverted_keys():
    """As all that is known."""
    desk = diverted()
    for offset in range(20, 90):
        desk.ack("a", 6, ack(ALL_SLOTS, 5, -1, (2 * offset, 2 * offset)))
    desk.restart()
    assert desk.progress().diverted == {KEY: 12}


def test_a_reset_forgets_diverted_keys():
    """Everything starts over."""
    desk = diverted()
    desk.leaves("a")
    desk.commit(3)
    assert desk.progress().diverted == {}


def test_a_log_that_was_cut_below_a_diverted_key():
    """The record that it was diverted for is gone, and another one may come in its place."""
    desk = diverted()
    desk.logs[PLACE].cut(13, 4)
    desk.restart()
    assert desk.progress().diverted == {KEY: 12}
    desk.logs[PLACE].cut(12, 5)
    desk.restart()
    assert desk.progress().diverted == {}


def test_another_partition():
    """Has keys of its own."""
    desk = diverted()
    desk.holds("a", 6, WHOLE, place=(TOPIC_ID, 1))
    desk.ack("a", 6, ack(ALL_SLOTS, 5, 10), partition=1)
    step = desk.fail("a", 6, failure(13, retry_after_ms=0), partition=1)
    attempt = step.partition.failures[0].attempt
    assert attempt is not None
    assert attempt.count == 1
