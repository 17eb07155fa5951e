"""What may be started, and what counts when it ends."""

import pytest
from workload_kit import (
    HALVES,
    PLACE,
    TOPIC_ID,
    Coordinator,
    Log,
    active,
    deliver,
    key_in,
    new_workload,
    take_all,
    unit_of,
)

from anabranch.client.acks import gather
from anabranch.client.range_work import DoneBefore, RangeState, Rest
from anabranch.client.records import UNORDERED
from anabranch.client.timing import Lease
from anabranch.client.work_queues import BatchQueue, KeyQueue
from anabranch.client.workload import Workload
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, SlotRange

LOW, HIGH = (key_in(half) for half in HALVES)


def offsets(records: list) -> list[int]:  # type: ignore[type-arg]
    return [record.offset for record in records]


# Leases -------------------------------------------------------------------------------------------


def test_nothing_starts_after_the_lease() -> None:
    """Nine tenths of the lease after a heartbeat was sent nothing more is started."""
    workload = Workload(KeyQueue(), Lease())
    active(workload)
    deliver(workload, Log([LOW, HIGH]))
    assert workload.take(0.0) is None, "no heartbeat was answered yet"
    workload.lease.renew(100.0, 10.0)
    assert workload.take(108.9) is not None
    assert workload.take(109.0) is None
    workload.lease.renew(105.0, 10.0)
    assert workload.take(113.9) is not None


def test_giving_back_limits_the_lease() -> None:
    """Who does not give ranges back in time is forgotten, whatever heartbeats it sends."""
    lease = Lease()
    lease.renew(100.0, 10.0)
    lease.hand_back_begins("a", 100.0, 20.0)
    lease.hand_back_begins("b", 101.0, 5.0)
    lease.renew(104.0, 10.0)
    assert lease.ends_at == 105.5
    lease.hand_back_is_over("b", 105.0)
    lease.renew(104.9, 100.0)
    assert lease.ends_at == 105.5, "the coordinator has not heard of it"
    lease.renew(105.1, 100.0)
    assert lease.ends_at == 118.0
    lease.end()
    lease.renew(200.0, 10.0)
    assert lease.ends_at == 209.0


def test_nobody_waits_for_who_has_no_group() -> None:
    """A consumer that changes its own assignment may take its time."""
    lease = Lease()
    lease.renew_for_ever()
    lease.hand_back_begins("a", 0.0, 1.0)
    assert lease.may_start(1e9)


def test_a_late_answer_does_not_shorten_the_lease() -> None:
    """The newest heartbeat counts, in whatever order answers are looked at."""
    lease = Lease()
    lease.renew(50.0, 10.0)
    lease.renew(40.0, 10.0)
    assert lease.may_start(58.9)


def test_own_limit_of_the_lease() -> None:
    """A session timeout of the member's own shortens the lease, and never lengthens it."""
    lease = Lease(limit_s=5.0)
    lease.renew(0.0, 100.0)
    assert lease.ends_at == 4.5
    lease = Lease(limit_s=500.0)
    lease.renew(0.0, 100.0)
    assert lease.ends_at == 90.0


# Keys ---------------------------------------------------------------------------------------------


def test_one_record_of_a_key_at_a_time() -> None:
    """The next record of a key is ready when the one before is done."""
    workload = new_workload()
    active(workload)
    deliver(workload, Log([LOW, LOW, HIGH, LOW]))
    first, other = take_all(workload)
    assert offsets([first, other]) == [0, 2]
    assert workload.done(first)
    assert offsets(take_all(workload)) == [1]


def test_records_without_a_key_have_no_order() -> None:
    """Records that are ordered by nothing are all out at once."""
    workload = new_workload()
    work = active(workload)
    rows = [(offset, 0, None, b"", (), UNORDERED, 5) for offset in range(3)]
    workload.deliver((TOPIC_ID, 0), [ALL_SLOTS], rows, 0, 3)
    assert offsets(take_all(workload)) == [0, 1, 2]
    assert work.in_flight == 3


def test_failed_record_keeps_its_key() -> None:
    """A record that failed comes again after its rest, before the others of its key."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW, LOW, HIGH]))
    failing, _ = take_all(workload)
    assert workload.failed(failing, retry_after_s=5.0, reason="no", now=10.0)
    assert (take_all(workload, 14.9), work.watermark) == ([], 0)
    assert workload.wake(15.0)
    (again,) = take_all(workload, 15.0)
    assert (again.offset, again.attempt) == (0, 2)
    workload.done(again)
    assert offsets(take_all(workload, 15.0)) == [1]
    (failure,) = work.failures
    assert (failure.offset, failure.retry_after_ms, failure.reason) == (0, 5000, "no")


def test_key_stays_taken_when_its_range_is_lost() -> None:
    """What runs for a lost range keeps its key from the range that comes after it."""
    workload = new_workload()
    lost = active(workload, epoch=1)
    log = Log([LOW, LOW])
    deliver(workload, log)
    (running,) = take_all(workload)
    workload.end(lost)
    active(workload, epoch=2)
    deliver(workload, log)
    assert take_all(workload) == []
    assert workload.done(running) is False, "somebody else was given the record meanwhile"
    (again,) = take_all(workload)
    assert (again.offset, again.token.epoch) == (0, 2)


# Ranges -------------------------------------------------------------------------------------------


def test_drained_range() -> None:
    """Of a range that is to be given back nothing starts, what runs counts, the rest stays open."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW, HIGH, LOW]))
    running = workload.take(0.0)
    assert running is not None
    workload.drain(work)
    assert take_all(workload) == []
    assert not work.is_drained
    assert workload.done(running)
    assert work.is_drained
    told = gather(work)
    assert told is not None
    assert told.watermark == 1, "offset 1 was never started"


def test_failure_while_draining() -> None:
    """A record that fails while its range is given back is told, and left to the next owner."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW, LOW]))
    (running,) = take_all(workload)
    workload.drain(work)
    assert workload.failed(running, retry_after_s=1.0, reason="no", now=0.0)
    assert work.is_drained
    workload.wake(100.0)
    assert take_all(workload, 100.0) == []
    told = gather(work)
    assert told is not None and told.watermark == 0 and len(told.failures) == 1


def test_acknowledgement_of_a_lost_range() -> None:
    """What ends after its range was lost does not count."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW]))
    (running,) = take_all(workload)
    workload.end(work)
    assert not workload.may_start(running, 0.0)
    assert workload.done(running) is False
    assert work.acked == []


def test_abandoned_record() -> None:
    """A record that was given up stays open for the next owner, and frees its key."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW, LOW]))
    (running,) = take_all(workload)
    workload.drain(work)
    workload.give_up(running)
    assert work.is_drained and work.watermark == 0
    assert workload.done(running) is False
    assert work.keys == {}


def test_answer_that_comes_after_the_range_was_lost() -> None:
    """Records that were fetched from further on do not make a range skip what is before them."""
    workload = new_workload()
    log = Log([LOW] * 6)
    lost = active(workload, position=4)
    workload.end(lost)
    work = active(workload, epoch=2, position=0)
    deliver(workload, log, first=4)
    assert (work.position, take_all(workload)) == (0, [])
    deliver(workload, log, first=0)
    assert work.position == 6


def test_answer_for_fewer_slots() -> None:
    """Records of half of the slots do not make a range that has all of them go on."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW, HIGH]), asked=HALVES[0])
    assert work.position == 0


def test_record_that_came_before() -> None:
    """A range that is fetched for together with one that is behind takes no record twice."""
    workload = new_workload()
    ahead = active(workload, HALVES[0])
    behind = active(workload, HALVES[1])
    log = Log([LOW, HIGH, LOW])
    deliver(workload, log, asked=HALVES[0])
    assert deliver(workload, log) == 1
    assert (ahead.position, behind.position) == (3, 3)
    assert sorted(offsets(take_all(workload))) == [0, 1]


def test_what_is_done_is_left_out() -> None:
    """Records that somebody did before are not handed out, slot by slot."""
    workload = new_workload()
    work = workload.begin(PLACE, unit_of(), 1)
    done = OffsetRanges([(3, 4)])
    work.load(1, [DoneBefore(HALVES[0], 1, done), DoneBefore(HALVES[1], 4)])
    deliver(workload, Log([LOW, LOW, HIGH, LOW, LOW, HIGH]), first=1)
    assert sorted(work.open) == [1, 5]
    assert work.done_before == [], "nobody asks for them any more"


def test_record_that_rests_at_its_new_owner() -> None:
    """A record that failed elsewhere waits for the rest of its rest, with its attempts."""
    workload = new_workload()
    work = active(workload)
    work.rests = {0: Rest(attempts=3, until=50.0)}
    deliver(workload, Log([LOW, LOW, HIGH]))
    assert offsets(take_all(workload, 49.0)) == [2]
    workload.wake(50.0)
    (again,) = take_all(workload, 50.0)
    assert (again.offset, again.attempt) == (0, 4)


@pytest.mark.parametrize("queue", [KeyQueue, BatchQueue])
def test_broker_is_done_with_a_record(queue: type) -> None:
    """A record that rests is dropped when the broker has disposed of it, and its key goes on."""
    workload = new_workload(queue())
    work = active(workload)
    deliver(workload, Log([LOW, LOW]))
    failing = workload.take(0.0)
    assert failing is not None
    workload.failed(failing, retry_after_s=-60.0, reason="no", now=0.0)
    assert work.failures[0].retry_after_ms == -1
    assert take_all(workload, 1.0) == []
    workload.update_rests(work, [DoneBefore(ALL_SLOTS, 0, OffsetRanges([(0, 0)]))], {})
    assert offsets(take_all(workload, 1.0)) == [1]


@pytest.mark.parametrize("queue", [KeyQueue, BatchQueue])
def test_broker_says_how_long_a_record_rests(queue: type) -> None:
    """The broker's rest and its count of attempts are the ones that count."""
    workload = new_workload(queue())
    work = active(workload)
    deliver(workload, Log([LOW]))
    (failing,) = take_all(workload)
    workload.failed(failing, retry_after_s=1.0, reason="no", now=0.0)
    workload.update_rests(work, [], {0: Rest(attempts=4, until=30.0)})
    workload.wake(29.0)
    assert take_all(workload, 29.0) == []
    workload.wake(30.0)
    (again,) = take_all(workload, 30.0)
    assert again.attempt == 5


# Polling ------------------------------------------------------------------------------------------


def test_polled_records_come_as_they_are() -> None:
    """Several records of a key are handed out, in order."""
    workload = new_workload(BatchQueue())
    active(workload)
    deliver(workload, Log([LOW, LOW, HIGH, LOW]))
    assert offsets(take_all(workload)) == [0, 1, 2, 3]


def test_later_records_of_a_key_are_taken_back() -> None:
    """After a failure the later records of the key come again, behind it; others do not."""
    workload = new_workload(BatchQueue())
    work = active(workload)
    deliver(workload, Log([LOW, LOW, HIGH, LOW, LOW]))
    polled = [workload.take(0.0) for _ in range(4)]
    assert polled[1] is not None and polled[3] is not None
    workload.failed(polled[1], retry_after_s=5.0, reason="no", now=0.0)
    assert work.in_flight == 2
    assert not workload.may_start(polled[3], 0.0)
    assert take_all(workload, 1.0) == []
    workload.wake(5.0)
    assert offsets(take_all(workload, 5.0)) == [1, 3, 4]


def test_record_that_was_taken_back_and_done_nevertheless() -> None:
    """Who processed a record that was taken back may say so, and does not get it again."""
    workload = new_workload(BatchQueue())
    work = active(workload)
    deliver(workload, Log([LOW, LOW]))
    first, second = take_all(workload)
    workload.failed(first, retry_after_s=5.0, reason="no", now=0.0)
    assert workload.done(second)
    workload.wake(5.0)
    (again,) = take_all(workload, 5.0)
    assert again is first
    assert workload.done(first)
    assert work.open == {} and work.in_flight == 0


def test_two_failures_of_a_key() -> None:
    """All records of a key come together and in order when the last of them may."""
    workload = new_workload(BatchQueue())
    active(workload)
    deliver(workload, Log([LOW, LOW, LOW]))
    first, second, _ = take_all(workload)
    workload.failed(second, retry_after_s=2.0, reason="no", now=0.0)
    workload.failed(first, retry_after_s=9.0, reason="no", now=0.0)
    workload.wake(5.0)
    assert take_all(workload, 5.0) == []
    workload.wake(9.0)
    assert offsets(take_all(workload, 9.0)) == [0, 1, 2]


# Cutting ------------------------------------------------------------------------------------------


def test_cut() -> None:
    """Records go with their slots, running ones too; both parts know what was acknowledged."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW, HIGH, LOW, HIGH]))
    running = {record.key: record for record in take_all(workload)}
    part = workload.cut(work, HALVES[1])
    assert (sorted(work.open), sorted(part.open)) == ([0, 2], [1, 3])
    assert (work.in_flight, part.in_flight) == (1, 1)
    assert (work.slots, part.slots) == HALVES
    workload.drain(part)
    assert workload.done(running[LOW]) and workload.done(running[HIGH])
    assert offsets(take_all(workload)) == [2]
    assert part.is_drained
    coordinator = Coordinator()
    for one in (work, part):
        told = gather(one)
        assert told is not None
        coordinator.take(told)
    watermarks = {one.slots: one.watermark for one in coordinator.progress.intervals}
    assert watermarks == {HALVES[0]: 2, HALVES[1]: 3}


def test_cut_keeps_what_is_to_be_told() -> None:
    """What was done of a part before it was cut off, and not told yet, is told for the part."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([HIGH, key_in(HALVES[1], 1), LOW]))
    done = next(record for record in take_all(workload) if record.offset == 1)
    workload.done(done)
    workload.failed(work.open[0], retry_after_s=1.0, reason="no", now=0.0)
    part = workload.cut(work, HALVES[1])
    told = gather(part)
    assert told is not None
    assert (told.watermark, told.done) == (0, OffsetRanges([(1, 2)]))
    assert [failure.offset for failure in told.failures] == [0]
    assert work.failures == []


def test_cut_in_the_middle_is_refused() -> None:
    """A range is cut at one of its ends, so that both parts are ranges."""
    workload = new_workload()
    work = active(workload)
    middle = SlotRange(5, 10)
    with pytest.raises(ValueError, match="two ranges"):
        work.cut(middle, lambda record: 0)


def test_end_of_a_range_frees_its_keys() -> None:
    """A range that ends leaves no key behind but those of records that run."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log([LOW, LOW, HIGH, HIGH]))
    (running, _) = take_all(workload)
    resting = work.open[2]
    workload.failed(resting, retry_after_s=9.0, reason="no", now=0.0)
    keys = work.keys
    workload.end(work)
    assert work.state is RangeState.GONE
    assert list(keys) == [LOW]
    workload.done(running)
    assert keys == {}


def test_without_a_group_nothing_is_kept_to_tell() -> None:
    """Where nobody is told what is done, it is forgotten at once."""
    workload = new_workload()
    workload.is_told = False
    work = active(workload)
    deliver(workload, Log([LOW, HIGH]))
    done, failed = take_all(workload)
    workload.done(done)
    workload.failed(failed, retry_after_s=1.0, reason="", now=0.0)
    assert (work.acked, work.failures) == ([], [])
