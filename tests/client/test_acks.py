"""What is told to the broker of what is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_kit import HALVES, Coordinator, Log, active, deliver, key_in, new_workload, take_all

from anabranch.client.acks import Progress, confirm, gather, requests, take_back
from anabranch.client.range_work import DoneBefore, Failure, RangeWork
from anabranch.client.workload import Workload
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS
from anabranch.wire.offset_set import decode

LOW, HIGH = (key_in(half) for half in HALVES)
KEYS = [key_in(ALL_SLOTS, number) for number in range(40)]


def fetched(keys: list[bytes], position: int = 0) -> tuple[Workload, RangeWork]:
    """All records out, each with a key of its own."""
    workload = new_workload()
    work = active(workload, position=position)
    deliver(workload, Log(keys), first=position)
    return workload, work


def told(work: RangeWork) -> tuple[int, OffsetRanges]:
    found = gather(work)
    assert found is not None
    return found.watermark, found.done


def test_gaps_of_the_proposal() -> None:
    """KIP-X's gap amending: 41 to 50 fetched, 43-45 and 48-49 done before, all processed.

    Its stable offset of 40 is the last one done, ours of 41 the next one to do.
    """
    workload = new_workload()
    work = active(workload, position=41)
    done = OffsetRanges([(43, 45), (48, 49)])
    work.load(41, [DoneBefore(ALL_SLOTS, 41, done)])
    deliver(workload, Log([KEYS[i % 40] for i in range(51)]), first=41)
    records = take_all(workload)
    assert [record.offset for record in records] == [41, 42, 46, 47, 50]
    for record in records[1:]:
        workload.done(record)
    assert told(work) == (41, OffsetRanges([(42, 50)]))
    workload.done(records[0])
    assert told(work) == (51, OffsetRanges())


def test_everything_done() -> None:
    """Without open records the watermark is how far the range was looked through."""
    workload, work = fetched(KEYS[:3])
    for record in take_all(workload):
        workload.done(record)
    assert told(work) == (3, OffsetRanges())


def test_only_what_changed_is_told() -> None:
    """A gap in which nothing was done since the last commit is not told again."""
    workload, work = fetched(KEYS[:6])
    records = take_all(workload)
    workload.done(records[1])
    first = gather(work)
    assert first is not None and first.done == OffsetRanges([(1, 1)])
    confirm(first, 0)
    assert gather(work) is None
    workload.done(records[4])
    assert told(work) == (0, OffsetRanges([(4, 4)]))


def test_what_was_not_taken_is_told_again() -> None:
    """After a commit that failed the next one tells everything again."""
    workload, work = fetched(KEYS[:4])
    records = take_all(workload)
    workload.done(records[1])
    failed = gather(work)
    assert failed is not None
    take_back(failed)
    workload.done(records[3])
    assert told(work) == (0, OffsetRanges([(1, 1), (3, 3)]))


def cut_under_way() -> tuple[Workload, RangeWork, Progress, RangeWork]:
    """A record of the upper half is done, and the next one failed, while those before them are
    open; that is being told while the upper half is cut off."""
    workload, work = fetched([LOW, *(key_in(HALVES[1], number) for number in range(3))])
    records = take_all(workload)
    workload.failed(records.pop(), retry_after_s=1, reason="no", now=0)
    workload.done(records.pop())
    told = gather(work)
    assert told is not None
    assert (told.watermark, told.done, len(told.failures)) == (0, OffsetRanges([(2, 2)]), 1)
    return workload, work, told, workload.cut(work, HALVES[1])


def test_range_that_is_cut_while_it_is_told() -> None:
    """What the broker did not take is told again by the parts that the range has now: by each what
    is its own."""
    _workload, work, told, part = cut_under_way()
    take_back(told)
    again, of_part = gather(work), gather(part)
    assert again is not None and of_part is not None
    assert (again.done, again.failures) == (OffsetRanges([(1, 3)]), [])
    assert (of_part.done, of_part.failures) == (OffsetRanges([(2, 2)]), told.failures)


def test_part_that_is_left_tells_it() -> None:
    """A part tells it also when the rest of the range is gone, and what is gone tells nothing."""
    workload, work, told, part = cut_under_way()
    workload.end(work)
    take_back(told)
    assert gather(work) is None
    of_part = gather(part)
    assert of_part is not None and of_part.done == OffsetRanges([(2, 2)])


def test_part_that_came_later_is_another_range() -> None:
    """Slots that were lost and given again have nothing of what was told before."""
    workload, _work, told, part = cut_under_way()
    workload.end(part)
    other = active(workload, HALVES[1], epoch=1)
    other.committed = 0
    take_back(told)
    assert (other.acked, other.failures) == ([], [])


def test_parts_know_what_is_confirmed() -> None:
    """After a commit that was taken no part tells it again."""
    _workload, work, told, part = cut_under_way()
    confirm(told, 0)
    assert (work.committed, part.committed) == (0, 0)
    assert (work.acked, work.failures) == (part.acked, part.failures) == ([], [])


def test_below_the_stable_offset_nothing_is_told() -> None:
    """What lies below the stable offset of an answer is forgotten."""
    workload, work = fetched(KEYS[:4])
    records = take_all(workload)
    workload.done(records[2])
    first = gather(work)
    assert first is not None
    workload.done(records[1])
    confirm(first, 2)
    assert work.acked == []


def test_records_of_others_in_between() -> None:
    """Ranges of offsets go over the records of other members, so that they stay few."""
    workload = new_workload()
    work = active(workload, HALVES[0])
    keys = [key_in(HALVES[i % 2], i) for i in range(20)]
    deliver(workload, Log(keys), asked=HALVES[0])
    records = take_all(workload)
    assert [record.offset for record in records] == list(range(0, 20, 2))
    for record in records[2:]:
        workload.done(record)
    assert told(work) == (0, OffsetRanges([(3, 19)]))


def test_start_that_the_group_does_not_know() -> None:
    """A range that began where nobody had committed tells its start, without a record done."""
    workload = new_workload()
    work = active(workload, position=7)
    assert work.committed == -1
    found = gather(work)
    assert found is not None and (found.watermark, found.done) == (7, OffsetRanges())
    confirm(found, 7)
    assert gather(work) is None


@given(data=st.data())
def test_nothing_open_is_ever_told(data: st.DataObject) -> None:
    """Whatever is done in whatever order: what is told is exactly what is done."""
    count = data.draw(st.integers(1, 30))
    workload, work = fetched(KEYS[:count])
    coordinator = Coordinator()
    records = take_all(workload)
    done: set[int] = set()
    for index in data.draw(st.permutations(range(count))):
        workload.done(records[index])
        done.add(index)
        if not data.draw(st.booleans()):
            continue
        found = gather(work)
        assert found is not None
        if data.draw(st.booleans()):
            coordinator.take(found)
            known = {offset for offset in range(count) if coordinator.progress.is_done(0, offset)}
            assert known == done
        else:
            take_back(found)


# Requests -----------------------------------------------------------------------------------------


def progress_with(ranges: int, failures: int = 0) -> Progress:
    workload = new_workload()
    work = active(workload)
    done = OffsetRanges((10 * i, 10 * i) for i in range(1, ranges + 1))
    failed = [Failure(i, 0, 0, "x" * 5000) for i in range(failures)]
    return Progress(work, work.slots, 5, done, [], failed)


def test_ranges_per_request() -> None:
    """A request has at most so many ranges of offsets, and together they tell everything."""
    one, other = progress_with(25), progress_with(3)
    batches = list(requests([one, other], max_ranges=10, max_bytes=10**6))
    counts = [[len(decode(ack.done)) for ack in batch] for batch in batches]
    assert counts == [[10], [10], [5, 3]]
    assert [ack.is_last for batch in batches for ack in batch] == [False, False, True, True]
    acks = [ack for batch in batches for ack in batch if ack.work is one.work]
    assert OffsetRanges(pair for ack in acks for pair in decode(ack.done)) == one.done


def test_bytes_per_request() -> None:
    """A request has at most so many bytes."""
    batches = list(requests([progress_with(5)] * 10, max_ranges=10_000, max_bytes=300))
    assert len(batches) > 2
    assert all(sum(ack.size_bytes for ack in batch) <= 300 for batch in batches)


def test_failures_are_told_once() -> None:
    """Failures go with the first part of a range, their reasons shortened."""
    batches = list(requests([progress_with(4, failures=2)], max_ranges=2, max_bytes=10**6))
    acks = [ack for batch in batches for ack in batch]
    assert [len(ack.failures) for ack in acks] == [2, 0]
    assert all(len(one.reason) == 256 for one in acks[0].failures)


@pytest.mark.parametrize("ranges", [0, 1])
def test_one_request(ranges: int) -> None:
    """A range without ranges of offsets still tells its watermark."""
    ((ack,),) = requests([progress_with(ranges)], max_ranges=10, max_bytes=10**6)
    assert (ack.watermark, ack.is_last) == (5, True)
