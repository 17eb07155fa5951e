"""Records after their last attempt, at their owner: released, done with, or diverted by key."""

import pytest
from workload_kit import (
    HALVES,
    PLACE,
    TOPIC_ID,
    Log,
    active,
    deliver,
    key_in,
    new_workload,
    take_all,
)

from anabranch.client.acks import gather
from anabranch.client.ordering import hash_of
from anabranch.client.range_work import DoneBefore, Failure, RangeWork, Rest
from anabranch.client.records import UNORDERED, ConsumerRecord
from anabranch.client.work_queues import BatchQueue, KeyQueue, WorkQueue
from anabranch.client.workload import Workload
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS

LOW = key_in(HALVES[0])
HIGH = key_in(HALVES[1])
LOW_HASH = hash_of(LOW, 0)
NEVER = Rest(attempts=1, until=1e9, is_exhausted=True)

both_queues = pytest.mark.parametrize("queue", [KeyQueue, BatchQueue])


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


def done(*single: int) -> list[DoneBefore]:
    return [DoneBefore(ALL_SLOTS, 0, OffsetRanges([(one, one) for one in single]))]


def begun(queue: type[WorkQueue], *keys: bytes) -> tuple[Workload, RangeWork, Log]:
    workload = new_workload(queue())
    work = active(workload)
    log = Log(list(keys))
    deliver(workload, log)
    return workload, work, log


def exhausted(queue: type[WorkQueue], *keys: bytes) -> tuple[Workload, RangeWork, Log]:
    """The first record has failed for the last time, and the broker has said so."""
    workload, work, log = begun(queue, *keys)
    failing = workload.take(0.0)
    assert failing is not None
    workload.failed(failing, retry_after_s=-60.0, reason="no", now=0.0)
    workload.counted((TOPIC_ID, PLACE.partition), [0])
    workload.update_rests(work, [], {0: NEVER}, {}, 0.0)
    return workload, work, log


@both_queues
def test_released(queue: type[WorkQueue]) -> None:
    """It comes again at once as if for the first time, and its key behind it."""
    workload, work, _ = exhausted(queue, LOW, LOW)
    assert take_all(workload, 1.0) == []
    workload.update_rests(work, [], {}, {}, 5.0)
    workload.wake(5.0)
    again = workload.take(5.0)
    assert again is not None
    assert (again.offset, again.attempt) == (0, 1)
    workload.done(again)
    assert offsets(take_all(workload, 5.0)) == [1]


@both_queues
def test_a_failure_that_the_broker_has_not_heard_of(queue: type[WorkQueue]) -> None:
    """An answer from before it rests the record no shorter."""
    workload, work, _ = begun(queue, LOW)
    (failing,) = take_all(workload)
    workload.failed(failing, retry_after_s=-60.0, reason="no", now=0.0)
    workload.update_rests(work, [], {}, {}, 5.0)
    workload.wake(59.0)
    assert take_all(workload, 59.0) == []


@both_queues
def test_an_answer_from_before_the_last_failure(queue: type[WorkQueue]) -> None:
    """A record that fails again before the broker has told what it makes of the first time rests
    as long as was asked for, and its next attempt is the third."""
    workload, work, _ = begun(queue, LOW)
    for now in (0.0, 1.0):
        workload.wake(now)
        (failing,) = take_all(workload, now)
        workload.failed(failing, retry_after_s=1.0, reason="no", now=now)
    workload.update_rests(work, [], {0: Rest(1, until=0.5)}, {}, 1.5)
    workload.wake(1.9)
    assert take_all(workload, 1.9) == []
    workload.wake(2.0)
    (again,) = take_all(workload, 2.0)
    assert again.attempt == 3
    # What it makes of all of them counts.
    workload.failed(again, retry_after_s=1.0, reason="no", now=2.0)
    workload.update_rests(work, [], {0: Rest(3, until=9.0)}, {}, 2.5)
    workload.wake(8.9)
    assert take_all(workload, 8.9) == []
    workload.wake(9.0)
    (again,) = take_all(workload, 9.0)
    assert again.attempt == 4


@both_queues
def test_released_before_its_owner_asked(queue: type[WorkQueue]) -> None:
    """The broker has counted the failure and knows nothing of it: somebody has decided already."""
    workload, work, _ = begun(queue, LOW, LOW)
    failing = workload.take(0.0)
    assert failing is not None
    workload.failed(failing, retry_after_s=-60.0, reason="no", now=0.0)
    workload.counted((TOPIC_ID, PLACE.partition), [0, 17])
    assert work.counted == {0}
    workload.update_rests(work, [], {}, {}, 1.0)
    workload.wake(1.0)
    again = workload.take(1.0)
    assert again is not None
    assert again.offset == 0
    # It fails once more, which the broker has not heard of.
    workload.failed(again, retry_after_s=-60.0, reason="no", now=1.0)
    workload.update_rests(work, [], {}, {}, 2.0)
    workload.wake(2.0)
    assert take_all(workload, 2.0) == []


@both_queues
def test_released_before_it_was_fetched(queue: type[WorkQueue]) -> None:
    """What was known of it at the start counts no more; and nobody asks about it any longer."""
    workload = new_workload(queue())
    work = active(workload)
    work.rests, work.exhausted = {0: NEVER, 1: NEVER}, {0, 1}
    assert workload.undecided_places == {(TOPIC_ID, PLACE.partition)}
    workload.update_rests(work, [], {1: NEVER}, {}, 5.0)
    assert (work.exhausted, work.rests) == ({1}, {1: NEVER})
    deliver(workload, Log([LOW, HIGH]))
    assert offsets(take_all(workload, 5.0)) == [0]
    workload.update_rests(work, done(1), {}, {}, 6.0)
    assert workload.undecided_places == set()


@both_queues
def test_a_diverted_key(queue: type[WorkQueue]) -> None:
    """Its records are told as not tried, in order, and stay open; those of other keys come."""
    workload, work, _ = exhausted(queue, LOW, HIGH, LOW, LOW)
    work.failures.clear()
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert offsets(take_all(workload, 1.0)) == [1]
    assert work.failures == [Failure(offset, LOW_HASH, -2, "diverted") for offset in (2, 3)]
    assert workload.has_diverted
    assert sorted(work.open) == [1, 2, 3]
    assert (work.in_flight, work.parked, work.buffered) == (1, 2, 0)
    assert workload.undecided_places == {(TOPIC_ID, PLACE.partition)}


@both_queues
def test_diverted_records_are_done_when_the_broker_says_so(queue: type[WorkQueue]) -> None:
    """Each for itself; no commit passes one before."""
    workload, work, _ = exhausted(queue, LOW, LOW, LOW)
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert take_all(workload, 1.0) == []
    told = gather(work)
    assert told is not None
    assert told.watermark == 1
    workload.update_rests(work, done(0, 1), {}, {LOW_HASH: 0}, 1.0)
    assert sorted(work.open) == [2]
    told = gather(work)
    assert told is not None
    assert told.watermark == 2
    workload.update_rests(work, done(0, 1, 2), {}, {LOW_HASH: 0}, 1.0)
    assert (work.open, work.parked, workload.undecided_places) == ({}, 0, set())


@both_queues
def test_diverted_records_that_the_broker_did_not_take(queue: type[WorkQueue]) -> None:
    """They are told again, until it knows of them."""
    workload, work, _ = exhausted(queue, LOW, LOW, LOW)
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert take_all(workload, 1.0) == []
    work.failures.clear()
    workload.update_rests(work, done(0), {1: NEVER}, {LOW_HASH: 0}, 2.0)
    assert work.failures == [Failure(2, LOW_HASH, -2, "diverted")]
    work.failures.clear()
    workload.update_rests(work, done(0), {1: NEVER, 2: NEVER}, {LOW_HASH: 0}, 3.0)
    assert work.failures == []


@both_queues
def test_records_from_before_a_key_was_diverted(queue: type[WorkQueue]) -> None:
    """Are processed: it is diverted from an offset on."""
    workload, work, log = begun(queue, LOW, LOW, LOW)
    workload.update_rests(work, [], {}, {LOW_HASH: 2}, 0.0)
    found = []
    while (record := workload.take(0.0)) is not None:
        found.append(record.offset)
        workload.done(record)
    assert found == [0, 1]
    assert sorted(work.open) == [2]
    del log


@both_queues
def test_a_key_that_was_diverted_before_the_range_came(queue: type[WorkQueue]) -> None:
    """The new owner diverts it too, and what waited there already is the broker's."""
    workload = new_workload(queue())
    work = active(workload)
    work.diverted, work.rests, work.exhausted = {LOW_HASH: 0}, {0: NEVER}, {0}
    deliver(workload, Log([LOW, LOW]))
    assert take_all(workload) == []
    assert work.failures == []
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert take_all(workload, 1.0) == []
    assert [one.offset for one in work.failures] == [1]


@both_queues
def test_a_released_key(queue: type[WorkQueue]) -> None:
    """What was diverted and is not in the dead-letter topic yet is fetched again, and processed in
    order."""
    workload, work, log = exhausted(queue, LOW, LOW, LOW, HIGH)
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert offsets(take_all(workload, 1.0)) == [3]
    log.keys.append(LOW)
    deliver(workload, log, first=4)
    workload.update_rests(work, done(0, 1), {}, {}, 2.0)
    # One that came meanwhile stays behind.
    assert take_all(workload, 2.0) == []
    assert offsets(workload.queue.empty) == [2]
    place = (TOPIC_ID, PLACE.partition)
    assert workload.refill(place, [ALL_SLOTS], log.fetch([ALL_SLOTS], 2, 5), 2, 5) == 1
    assert work.parked == 0
    found = []
    while (record := workload.take(2.0)) is not None:
        found.append((record.offset, record.key))
        workload.done(record)
    assert found == [(2, LOW), (4, LOW)]


@both_queues
def test_a_released_key_of_which_one_rests(queue: type[WorkQueue]) -> None:
    """The others wait behind it."""
    workload, work, log = exhausted(queue, LOW, LOW, LOW)
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert take_all(workload, 1.0) == []
    workload.update_rests(work, done(0), {}, {}, 2.0)
    place = (TOPIC_ID, PLACE.partition)
    workload.refill(place, [ALL_SLOTS], log.fetch([ALL_SLOTS], 0, 3), 0, 3)
    first = workload.take(2.0)
    assert first is not None
    assert first.offset == 1
    workload.failed(first, retry_after_s=3.0, reason="again", now=2.0)
    assert take_all(workload, 2.0) == []
    workload.wake(5.0)
    found = []
    while (record := workload.take(5.0)) is not None:
        found.append(record.offset)
        workload.done(record)
    assert found == [1, 2]


def test_records_without_an_order() -> None:
    """Have no key that could be diverted, whatever their hash is."""
    workload = new_workload()
    work = active(workload)
    work.diverted = {hash_of(UNORDERED, 0): 0}
    rows = [(0, 0, None, b"", (), UNORDERED, hash_of(UNORDERED, 0) >> 47)]
    workload.deliver((TOPIC_ID, 0), [ALL_SLOTS], rows, 0, 1)
    assert offsets(take_all(workload)) == [0]


def test_a_range_that_is_cut() -> None:
    """Diverted records go with their slots."""
    workload, work, _ = exhausted(KeyQueue, LOW, LOW, HIGH)
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert offsets(take_all(workload, 1.0)) == [2]
    part = workload.cut(work, HALVES[0])
    assert (sorted(part.open), part.parked, part.buffered) == ([1], 1, 0)
    assert (sorted(work.open), work.parked, work.in_flight) == ([2], 0, 1)
    workload.update_rests(part, done(1), {}, {LOW_HASH: 0}, 1.0)
    assert (part.open, part.parked) == ({}, 0)


@both_queues
def test_a_range_that_is_given_back(queue: type[WorkQueue]) -> None:
    """Diverted records are the next owner's."""
    workload, work, _ = exhausted(queue, LOW, LOW)
    workload.update_rests(work, done(0), {}, {LOW_HASH: 0}, 1.0)
    assert take_all(workload, 1.0) == []
    workload.drain(work)
    assert work.is_drained
    told = gather(work)
    assert told is not None
    assert told.watermark == 1
    workload.end(work)
    assert workload.undecided_places == set()
