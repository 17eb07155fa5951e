"""What transactions hold: it counts when they are committed, and comes again when they are not."""

import pytest
from workload_kit import (
    HALVES,
    Coordinator,
    Log,
    active,
    deliver,
    key_in,
    new_workload,
    take_all,
)

from anabranch.client.acks import gather, gather_held
from anabranch.client.range_work import RangeState
from anabranch.client.records import BUFFERED, FINISHED, PENDING, RECALLED, ConsumerRecord
from anabranch.client.work_queues import BatchQueue
from anabranch.client.workload import Workload
from anabranch.model.offset_ranges import OffsetRanges

LOW, HIGH = (key_in(half) for half in HALVES)
OTHER = key_in(HALVES[0], 1)


def transactional() -> Workload:
    workload = new_workload()
    workload.is_transactional = True
    workload.held_max = 100
    return workload


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


def process(workload: Workload, count: int) -> list[ConsumerRecord]:
    """Start and finish so many records, one after the other."""
    done = []
    for _ in range(count):
        record = workload.take(0.0)
        assert record is not None
        assert workload.done(record)
        done.append(record)
    return done


def test_held_records() -> None:
    """A record that is held is open and in flight, and the next one of its key may start."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, LOW, HIGH]))
    (first,) = process(workload, 1)
    assert (first._state, workload.held, work.in_flight) == (PENDING, [first], 1)
    assert not work.is_drained
    told = gather(work)
    assert told is not None
    assert (told.watermark, told.done) == (0, OffsetRanges([])), "no commit passes it"
    assert sorted(offsets(take_all(workload))) == [1, 2]


def test_committed() -> None:
    """What a transaction told is done with its commit, and is not told again."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, HIGH, OTHER, HIGH]))
    held = process(workload, 2)
    (told,) = gather_held(held)
    assert (told.watermark, told.done) == (2, OffsetRanges([]))
    Coordinator().take(told)
    workload.settle(held)
    assert (work.in_flight, sorted(work.open), work.records_done) == (0, [2, 3], 2)
    assert gather(work) is None


def test_gaps() -> None:
    """Whatever lies between two records that are left is told as a whole, and nothing else."""
    workload = transactional()
    work = active(workload)
    keys = [key_in(HALVES[number % 2], number) for number in range(6)]
    deliver(workload, Log(keys))
    records = {record.offset: record for record in take_all(workload)}
    for offset in (2, 4):
        workload.done(records[offset])
    (told,) = gather_held(workload.held)
    assert (told.watermark, told.done) == (0, OffsetRanges([(2, 2), (4, 4)]))
    workload.done(records[5])
    (told,) = gather_held(workload.held)
    assert (told.watermark, told.done) == (0, OffsetRanges([(2, 2), (4, 5)]))
    assert work.acked == []


def test_aborted() -> None:
    """The records of a transaction that was aborted come again, before all of their key."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, LOW, HIGH, LOW]))
    held = process(workload, 3)  # 0 and 1 of a key, and 2
    workload.recall(held)
    assert work.in_flight == 0
    again = [workload.take(0.0), workload.take(0.0), workload.take(0.0)]
    assert sorted(one.offset for one in again if one is not None) == [0, 2]
    assert again[2] is None
    for record in again[:2]:
        assert record is not None
        workload.done(record)
    assert [one.offset for one in take_all(workload)] == [1]


def test_what_runs_when_its_key_comes_again() -> None:
    """It does not count, however it ends, and comes again after the others of its key."""
    for ends in ("done", "failed", "given up"):
        workload = transactional()
        work = active(workload)
        deliver(workload, Log([LOW, LOW, LOW]))
        held = process(workload, 1)
        running = workload.take(0.0)
        assert running is not None
        workload.recall(held)
        assert running._state == RECALLED
        assert not workload.may_start(running, 0.0)
        assert workload.take(0.0) is None, "the key is taken"
        if ends == "done":
            assert workload.done(running) is False
        elif ends == "failed":
            assert not workload.failed(running, retry_after_s=9.0, reason="no", now=0.0)
            assert work.failures == []
        else:
            workload.give_up(running)
        assert work.in_flight == 0
        assert offsets(process(workload, 3)) == [0, 1, 2]


def test_what_rests_when_its_key_comes_again() -> None:
    """A record that failed comes after what was taken back, and still rests its time."""
    workload = transactional()
    active(workload)
    deliver(workload, Log([LOW, LOW, LOW]))
    held = process(workload, 1)
    failing = workload.take(0.0)
    assert failing is not None
    workload.failed(failing, retry_after_s=50.0, reason="no", now=0.0)
    workload.recall(held)
    assert offsets(process(workload, 1)) == [0]
    assert workload.take(0.0) is None
    assert not workload.wake(49.0)
    assert workload.wake(50.0)
    assert offsets(process(workload, 2)) == [1, 2]


def test_dropping_what_rests() -> None:
    """A range that goes takes with it what it knew of rests."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, LOW]))
    held = process(workload, 1)
    failing = workload.take(0.0)
    assert failing is not None
    workload.failed(failing, retry_after_s=50.0, reason="no", now=0.0)
    workload.recall(held)
    workload.end(work)
    assert workload.queue._unrested == {}  # type: ignore[attr-defined]
    assert work.keys == {}


def test_a_range_that_is_given_back() -> None:
    """Records of a range that drains are the next owner's after an abort, and nobody goes on."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, LOW, LOW]))
    held = process(workload, 1)
    running = workload.take(0.0)
    assert running is not None
    workload.drain(work)
    assert not work.is_drained
    workload.recall(held)
    assert held[0]._state == BUFFERED
    assert workload.done(running) is False, "its key would be out of order"
    assert work.is_drained
    assert workload.take(0.0) is None
    assert sorted(work.open) == [0, 1, 2]


def test_a_range_that_is_lost() -> None:
    """What was held of a lost range cannot count, and does not come again."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, HIGH]))
    held = process(workload, 2)
    assert all(map(workload.is_held, held))
    workload.end(work)
    assert not any(map(workload.is_held, held))
    workload.recall(held)
    assert [one._state for one in held] == [FINISHED, FINISHED]
    assert workload.take(0.0) is None


def test_a_range_that_is_cut() -> None:
    """What is held, and what was recalled, goes with the part that has its slot."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, LOW, HIGH, HIGH]))
    held, workload.held = process(workload, 1), []
    running = take_all(workload)
    assert offsets(running) == [2, 1]
    workload.recall(held)
    assert [one._state for one in running if one.key == LOW] == [RECALLED]
    part = workload.cut(work, HALVES[0])
    assert (part.in_flight, work.in_flight) == (1, 1)
    for record in running:
        workload.done(record)
    assert (part.in_flight, work.in_flight) == (0, 1)
    assert gather_held(workload.held)[0].slots == HALVES[1]


def test_nobody_knows() -> None:
    """What nobody will know of stays open, and does not come again."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW, HIGH]))
    held = process(workload, 1)
    workload.forsake(held)
    assert (work.in_flight, sorted(work.open), held[0]._state) == (0, [0, 1], FINISHED)
    workload.recall(held)
    workload.settle(held)
    assert offsets(take_all(workload)) == [1]


def test_too_much_is_held() -> None:
    """Nothing more is started when too much is held."""
    workload = transactional()
    workload.held_max = 2
    active(workload)
    deliver(workload, Log([LOW, HIGH, OTHER]))
    process(workload, 2)
    assert workload.is_paused
    assert workload.take(0.0) is None
    workload.is_paused = False
    assert workload.take(0.0) is not None


def test_polling() -> None:
    """What was handed out comes again in order, behind nothing of its key that came after it."""
    workload = new_workload(BatchQueue())
    work = active(workload)
    deliver(workload, Log([LOW, HIGH, LOW, HIGH, LOW]))
    out = [workload.take(0.0) for _ in range(3)]
    records = [one for one in out if one is not None]
    assert workload.hold(records[0])
    assert not workload.hold(records[0]), "held already"
    workload.recall([records[0]])
    assert work.in_flight == 1, "1 of the other key is out; 2 was taken back with 0"
    assert offsets(take_all(workload)) == [0, 2, 3, 4]


def test_polling_and_giving_back() -> None:
    """Of a range that drains nothing comes again."""
    workload = new_workload(BatchQueue())
    work = active(workload)
    deliver(workload, Log([LOW, LOW]))
    records = take_all(workload)
    workload.hold(records[0])
    workload.drain(work)
    workload.recall([records[0]])
    assert work.in_flight == 0
    assert workload.take(0.0) is None


@pytest.mark.parametrize("state", [RangeState.DRAINED, RangeState.LOADING])
def test_ranges_that_cannot_count(state: RangeState) -> None:
    """Nothing counts of a range whose progress was stored already, or is not known."""
    workload = transactional()
    work = active(workload)
    deliver(workload, Log([LOW]))
    held = process(workload, 1)
    work.state = state
    assert not workload.is_held(held[0])
