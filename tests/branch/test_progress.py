"""How far a group is, from its commits on branches: stories, and a naive look at each record."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.branch.progress import (
    Progress,
    RangeStart,
    Tally,
    plan_of,
    plan_tally,
    progress_of,
    progress_tally,
    replay_tally,
    scan_starts,
)
from anabranch.branch.slots import branch_of_slot
from anabranch.model.units import SLOT_COUNT

_BLOCK = struct.Struct("<qIIII")
_SPARSE, _CONTROL = 1, 2


class Indexed(NamedTuple):
    """A record as the slot index has it."""

    offset: int
    slot: int


def block(base_offset: int, end_offset: int, records: Sequence[Indexed], flags: int = 0) -> bytes:
    """The index of one batch, as it stands in the file."""
    deltas = [record.offset - base_offset for record in records]
    if deltas != list(range(len(deltas))):
        flags |= _SPARSE
    parts = [_BLOCK.pack(base_offset, end_offset - base_offset - 1, len(records), 0, flags)]
    parts.append(_padded(struct.pack(f"<{len(records)}H", *(r.slot for r in records))))
    if flags & _SPARSE:
        parts.append(_padded(struct.pack(f"<{len(records)}I", *deltas)))
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class Log:
    """A log of which only the index is there."""

    def __init__(self, log_start_offset: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.high_watermark = log_start_offset
        self.records: list[Indexed] = []
        self.blocks: list[tuple[int, bytes]] = []  # with the offset after it

    def batch(self, *slots: int, gaps: Sequence[int] = (), tail: int = 0) -> "Log":
        """Append a batch with a record of each slot; `gaps` come before them, `tail` after."""
        base = offset = self.high_watermark
        records = []
        for number, slot in enumerate(slots):
            offset += gaps[number] if number < len(gaps) else 0
            records.append(Indexed(offset, slot))
            offset += 1
        offset = max(offset + tail, base + 1)
        self.records += records
        self.blocks.append((offset, block(base, offset, records)))
        self.high_watermark = offset
        return self

    def control(self) -> "Log":
        end = self.high_watermark + 1
        self.blocks.append((end, block(self.high_watermark, end, (), _CONTROL)))
        self.high_watermark = end
        return self

    def count(self, from_offset: int, tally: Tally) -> None:
        """Give a tally the runs of blocks from an offset on, two batches in each."""
        kept = [one for end, one in self.blocks if end > from_offset]
        runs = [b"".join(kept[at : at + 2]) for at in range(0, len(kept), 2)]
        tally.add(runs[:1])
        tally.add(runs[1:])

    def progress(self, *commits: int | None, known: Progress | None = None) -> Progress:
        starts = scan_starts(commits, self.log_start_offset, self.high_watermark, known)
        tally = progress_tally(starts, self.high_watermark)
        self.count(min(starts), tally)
        return progress_of(tally, commits, self.log_start_offset)

    def plan(self, ranges: int, *commits: int | None) -> tuple[RangeStart, ...]:
        starts = scan_starts(commits, self.log_start_offset, self.high_watermark)
        tally = plan_tally(starts, ranges, self.high_watermark)
        self.count(min(starts), tally)
        replays = replay_tally(starts, tally.firsts, self.high_watermark)
        self.count(min(starts), replays)
        return plan_of(tally.firsts, replays)


LOW, HIGH = 0, SLOT_COUNT - 1  # a slot of the first of two ranges, and one of the second


# Stories ----------------------------------------------------------------------------------------


def test_the_slowest_range_holds_the_stable_offset() -> None:
    """Everything below the first record that is not done is done, whatever is done above it."""
    progress = Log().batch(LOW, HIGH, LOW, HIGH, LOW).progress(1, 4)
    assert progress.firsts == (2, 5)
    assert progress.stable_offset == 2
    assert progress.unprocessed == (2, 0)
    assert progress.unprocessed_records == 2


def test_an_idle_branch_holds_nothing_back() -> None:
    """A client that commits no further than its last record has finished its range all the same."""
    log = Log().batch(HIGH).batch(*[LOW] * 50)
    assert log.progress(51, 1).stable_offset == 51
    assert log.progress(30, 1).stable_offset == 30
    assert log.progress(30, 1).firsts == (30, 51)


def test_foreign_records_are_no_lag() -> None:
    """Of a hundred records, those of other ranges are not unprocessed ones of this."""
    progress = Log().batch(*[LOW, LOW, LOW, HIGH] * 25).progress(100, 0)
    assert progress.unprocessed == (0, 25)


def test_without_commits_everything_is_to_do() -> None:
    """A range without a commit counts from the log's start."""
    log = Log(log_start_offset=10).batch(LOW, HIGH)
    nothing = log.progress(None, None)
    assert (nothing.stable_offset, nothing.unprocessed_records) == (10, 2)
    assert nothing.committed_ranges == 0
    half = log.progress(11, None)
    assert (half.stable_offset, half.unprocessed_records, half.committed_ranges) == (11, 1, 1)


def test_an_empty_log_is_done() -> None:
    """Nothing is unprocessed where there is nothing, and the stable offset is the end."""
    progress = Log(log_start_offset=7).progress(None, 3)
    assert (progress.stable_offset, progress.unprocessed_records) == (7, 0)


def test_commits_outside_of_the_log_count_as_its_ends() -> None:
    """Records that are gone are not unprocessed; a commit beyond the end is the end."""
    log = Log(log_start_offset=100).batch(LOW, HIGH, LOW)
    assert log.progress(3, 5).firsts == (100, 101)
    beyond = log.progress(1000, 1000)
    assert (beyond.stable_offset, beyond.unprocessed_records) == (103, 0)
    assert scan_starts((3, 1000), 100, 103) == (100, 103)


def test_records_below_the_start_of_the_log_do_not_count() -> None:
    """The log may begin in the middle of a batch (DeleteRecords)."""
    log = Log().batch(LOW, LOW, LOW, HIGH)
    log.log_start_offset = 2
    assert log.progress(0, None).firsts == (2, 3)
    assert log.progress(0, None).unprocessed == (1, 1)


def test_holes_and_control_batches_are_nothing_to_do() -> None:
    """What compaction removed, and what only brokers read, holds nothing back."""
    log = Log().batch(LOW, LOW, gaps=(5, 3), tail=4).control().batch(HIGH, gaps=(2,))
    progress = log.progress(0, 0)
    assert progress.firsts == (5, 17)
    assert progress.unprocessed == (2, 1)
    assert log.progress(10, 0).stable_offset == 17


def test_a_group_has_begun_when_every_range_with_records_has_a_commit() -> None:
    """Clients commit nothing for a range in which there was never a record."""
    log = Log().batch(LOW, LOW)
    assert log.progress(1, None).is_begun
    assert not log.progress(None, 1).is_begun
    assert log.progress(1, 0).is_begun
    assert not log.batch(HIGH).progress(3, None).is_begun


def test_an_earlier_look_spares_reading_again() -> None:
    """A range that had no record from its commit on is looked at from the former end on."""
    log = Log().batch(*[LOW] * 50)
    known = log.progress(50, 1)
    assert known.firsts == (50, 50)
    log.batch(LOW, HIGH)
    assert scan_starts((51, 1), 0, 52, known) == (51, 50)
    assert log.progress(51, 1, known=known) == log.progress(51, 1)


def test_a_reset_to_earlier_is_followed() -> None:
    """What was known of later offsets does not hide what is to be done again."""
    log = Log().batch(HIGH, LOW, HIGH, LOW)
    known = log.progress(4, 4)
    again = log.progress(4, 0, known=known)
    assert (again.stable_offset, again.unprocessed_records) == (0, 2)


def test_a_plan_skips_nothing_and_counts_what_comes_again() -> None:
    """From two ranges to four: each begins at its first open record, done ones above it return."""
    quarter = SLOT_COUNT // 4
    log = Log().batch(0, quarter, 0, quarter, 2 * quarter, 3 * quarter, 2 * quarter)
    # The first half is done below 2, the second one below 6.
    assert log.plan(4, 2, 6) == (
        RangeStart(2, 0),
        RangeStart(3, 0),
        RangeStart(6, 0),
        RangeStart(7, 0),
    )
    # From there on to one range: it begins at 2, and what the second half did comes again.
    assert log.plan(1, 2, 6) == (RangeStart(2, 2),)


def test_a_plan_from_the_plain_topic_replays_nothing() -> None:
    """One commit for all keys is a set of ranges with one member."""
    log = Log().batch(LOW, HIGH, HIGH, LOW, HIGH)
    assert log.plan(2, 2) == (RangeStart(3, 0), RangeStart(2, 0))
    assert log.plan(2, 5) == (RangeStart(5, 0), RangeStart(5, 0))


# Against an oracle ------------------------------------------------------------------------------

RANGES = st.integers(1, 12)
# Few different slots, so that ranges meet; the ends of the space among them.
SLOTS = st.one_of(
    st.sampled_from([0, 1, SLOT_COUNT - 1, SLOT_COUNT // 2, SLOT_COUNT // 2 - 1, SLOT_COUNT // 3]),
    st.integers(0, SLOT_COUNT - 1),
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log(draw(st.integers(0, 5)))
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 7)) == 0:
            log.control()
        else:
            slots = draw(st.lists(SLOTS, max_size=9))
            gaps = draw(st.lists(st.integers(0, 3), max_size=len(slots)))
            log.batch(*slots, gaps=gaps, tail=draw(st.integers(0, 3)))
    # The first batches may be gone in part.
    log.log_start_offset = draw(st.integers(log.log_start_offset, log.high_watermark))
    return log


def commits_for(log: Log, ranges: int) -> st.SearchStrategy[tuple[int | None, ...]]:
    one = st.one_of(st.none(), st.integers(0, log.high_watermark + 3))
    return st.tuples(*[one] * ranges)


def is_open(record: Indexed, log: Log, commits: Sequence[int | None]) -> bool:
    """Whether nobody has done a record, by the commit of its range."""
    commit = commits[branch_of_slot(record.slot, len(commits))]
    return record.offset >= max(log.log_start_offset, commit or 0)


def of_range(log: Log, number: int, ranges: int) -> list[Indexed]:
    return [
        record
        for record in log.records
        if branch_of_slot(record.slot, ranges) == number and record.offset >= log.log_start_offset
    ]


@settings(max_examples=300)
@given(st.data())
def test_progress_is_what_a_look_at_each_record_finds(data: st.DataObject) -> None:
    """Stable offset and unprocessed records of random logs and commits, one record at a time."""
    log = data.draw(logs())
    commits = data.draw(commits_for(log, data.draw(RANGES)))
    found = log.progress(*commits)
    for number, first in enumerate(found.firsts):
        left = [r for r in of_range(log, number, len(commits)) if is_open(r, log, commits)]
        assert first == (left[0].offset if left else log.high_watermark)
        assert found.unprocessed[number] == len(left)
    left = [r for r in log.records if is_open(r, log, commits)]
    assert found.stable_offset == min([r.offset for r in left], default=log.high_watermark)
    assert found.unprocessed_records == len(left)


@settings(max_examples=200)
@given(st.data())
def test_earlier_looks_change_nothing(data: st.DataObject) -> None:
    """While the log grows, loses its beginning and commits go anywhere, memory only saves time."""
    log = data.draw(logs())
    ranges = data.draw(RANGES)
    known: Progress | None = None
    for _ in range(4):
        commits = data.draw(commits_for(log, ranges))
        fresh = log.progress(*commits)
        known = log.progress(*commits, known=known)
        assert known == fresh
        log.batch(*data.draw(st.lists(SLOTS, max_size=5)))
        log.log_start_offset = data.draw(st.integers(log.log_start_offset, log.high_watermark))


@settings(max_examples=300)
@given(st.data())
def test_a_plan_skips_nothing(data: st.DataObject) -> None:
    """Every record that is open in the old ranges is read in the new ones, and replays add up."""
    log = data.draw(logs())
    commits = data.draw(commits_for(log, data.draw(RANGES)))
    ranges = data.draw(RANGES)
    plan = log.plan(ranges, *commits)
    assert len(plan) == ranges
    for number, planned in enumerate(plan):
        mine = of_range(log, number, ranges)
        left = [r for r in mine if is_open(r, log, commits)]
        read = [r for r in mine if r.offset >= planned.start_offset]
        assert set(left) <= set(read)
        assert planned.replayed_records == len(read) - len(left)
        # No later start is possible.
        assert planned.start_offset == (left[0].offset if left else log.high_watermark)
