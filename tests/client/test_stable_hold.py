"""Why a stable offset does not move: one sentence for each cause."""

from typing import Any

import pytest

from anabranch.client import (
    GroupRange,
    Handover,
    KeyRange,
    OldestRecord,
    PartitionProgress,
    RetriedRecord,
    explain_stable_offset,
)
from anabranch.client.stable_hold import duration, find_hold
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, hashes_of

HALF = SLOT_COUNT // 2
LOW, HIGH = SlotRange(0, HALF), SlotRange(HALF, SLOT_COUNT)


def row(
    slots: SlotRange,
    watermark: int,
    done: OffsetRanges = EMPTY,
    owner: str = "",
    delivered: int | None = None,
) -> GroupRange:
    return GroupRange(
        key_range=KeyRange(*hashes_of(slots)),
        owner=owner or None,
        watermark=watermark,
        done=done,
        delivered_offset=delivered,
    )


def partition_of(*rows: GroupRange, **more: Any) -> PartitionProgress:
    stable = min(one.watermark for one in rows)
    return PartitionProgress(
        topic="t",
        partition=0,
        stable_offset=stable if stable >= 0 else None,
        high_watermark=60,
        ranges=rows,
        **more,
    )


def oldest(offset: int, slot: int = 1, key: bytes | None = b"k") -> OldestRecord:
    return OldestRecord(offset=offset, slot=slot, key=key, timestamp_ms=0, age_ms=300_000)


def test_nobody_owns_it() -> None:
    """Of several ranges at the stable offset the one without an owner will not move."""
    found = partition_of(row(LOW, 40, owner="a"), row(HIGH, 40))
    assert explain_stable_offset(found) == (
        "the stable offset of t-0 stays at 40: nobody owns slots 32768-65535, which wait for offset"
        " 40, and 1 more range with it; nothing above it is done."
    )


def test_somebody_is_to_have_it() -> None:
    """A range without an owner may be on its way to one."""
    coming = Handover(key_range=KeyRange.whole(), from_member=None, to_member="b", since_ms=0)
    found = partition_of(row(LOW, 50, owner="a"), row(HIGH, 40), handovers=(coming,))
    assert "which wait for offset 40; b is to have them; " in explain_stable_offset(found)
    elsewhere = Handover(
        key_range=KeyRange(*hashes_of(LOW)), from_member=None, to_member="b", since_ms=0
    )
    found = partition_of(row(LOW, 50, owner="a"), row(HIGH, 40), handovers=(elsewhere,))
    assert "is to have them" not in explain_stable_offset(found)


def test_a_hand_over() -> None:
    """An owner that is to give a range up has yet to end what runs in it."""
    going = Handover(
        key_range=KeyRange(*hashes_of(LOW)), from_member="a", to_member="b", since_ms=0
    )
    found = partition_of(
        row(LOW, 40, owner="a", delivered=45),
        row(HIGH, 50, owner="b"),
        oldest=oldest(41),
        handovers=(going,),
        stalled_ms=1500,
    )
    assert explain_stable_offset(found).startswith(
        "the stable offset of t-0 stays at 40 for 1.5 s: a is to hand slots 0-32767 over to b, and"
        " still has offset 41 (key k, 5 min old); "
    )


def test_an_owner_at_work() -> None:
    """Who was shown the record works on it, since the stable offset stands still."""
    found = partition_of(
        row(LOW, 40, OffsetRanges([(42, 44)]), owner="a", delivered=45),
        row(HIGH, 42, owner="b"),
        oldest=oldest(40),
        stalled_ms=12_000,
    )
    assert explain_stable_offset(found) == (
        "the stable offset of t-0 stays at 40 for 12 s: a works on offset 40 (key k, 5 min old) in"
        " slots 0-32767; up to 2 records of other ranges and 3 records of its own are done above"
        " it."
    )


def test_an_owner_that_was_shown_nothing() -> None:
    """Who has not been given the record cannot be blamed for it."""
    found = partition_of(row(ALL_SLOTS, 40, owner="a", delivered=40), oldest=oldest(40, key=None))
    assert "slots 0-65535 of a wait for offset 40 (5 min old), which it was not shown yet" in (
        explain_stable_offset(found)
    )
    found = partition_of(row(ALL_SLOTS, 40, owner="a"))
    assert "40: slots 0-65535 of a wait for offset 40; " in explain_stable_offset(found)


def test_the_range_of_the_record_is_to_blame() -> None:
    """A range that has no records there holds the stable offset in name only."""
    found = partition_of(
        row(LOW, 40, owner="idle", delivered=60),
        row(HIGH, 40, owner="busy", delivered=60),
        oldest=oldest(45, slot=HALF),
    )
    hold = find_hold(found)
    assert hold is not None
    assert (hold.row.owner, hold.offset, hold.other_ranges) == ("busy", 45, 1)
    assert "busy works on offset 45 (key k" in explain_stable_offset(found)


def test_a_record_that_failed() -> None:
    """Its attempts, its reason, and what becomes of it."""
    rows = row(LOW, 40, owner="a"), row(HIGH, 50, owner="b")
    for rest_ms, text in (
        (0, "failed 2 times (no stock) and is due again"),
        (2500, "failed 2 times (no stock) and rests for another 2.5 s"),
        (None, "failed 2 times (no stock) and is not tried again until somebody decides about it"),
    ):
        failed = RetriedRecord(offset=40, attempts=2, rest_ms=rest_ms, reason="no stock")
        found = partition_of(*rows, retried=(failed,))
        assert f"stays at 40: offset 40 in slots 0-32767, of a, {text}" in (
            explain_stable_offset(found)
        )
    alone = RetriedRecord(offset=40, attempts=1, rest_ms=0, reason="a\nb")
    found = partition_of(row(ALL_SLOTS, 40), retried=(alone,))
    assert r", which nobody owns, failed 1 time (a\nb) and is" in explain_stable_offset(found)


def test_only_the_record_that_is_waited_for_blocks() -> None:
    """Others that failed are somebody else's, or wait behind it."""
    later = RetriedRecord(offset=45, attempts=2, rest_ms=0)
    rows = row(LOW, 40, owner="a"), row(HIGH, 50, owner="b")
    assert "failed" not in explain_stable_offset(partition_of(*rows, retried=(later,)))
    found = partition_of(*rows, retried=(later,), oldest=oldest(45))
    assert "failed 2 times and is due again" in explain_stable_offset(found)


def test_the_range_of_a_record_that_failed() -> None:
    """The hash of its key says it; without, it is the only one that is open there."""
    later = RetriedRecord(offset=45, attempts=2, rest_ms=0)
    rows = row(LOW, 40, owner="a"), row(HIGH, 50, owner="b")
    assert partition_of(*rows).range_of(later) == rows[0]
    assert partition_of(row(ALL_SLOTS, 50)).range_of(later) is None
    assert partition_of(row(LOW, 40), row(HIGH, 41)).range_of(later) is None
    hashed = RetriedRecord(offset=45, attempts=2, rest_ms=0, key_hash=2**63 - 1)
    assert partition_of(*rows).range_of(hashed) == rows[1]


def test_offsets_are_counted_once() -> None:
    """Ranges of offsets overlap where slots are mixed."""
    quarter, rest = SlotRange(HALF, HALF + 9), SlotRange(HALF + 9, SLOT_COUNT)
    found = partition_of(
        row(LOW, 40, owner="a", delivered=55),
        row(quarter, 44, OffsetRanges([(46, 50)]), "b", 55),
        row(rest, 42, OffsetRanges([(48, 52)]), "c", 55),
    )
    # 40 to 43, and 46 to 52
    assert "up to 11 records of other ranges are done above it" in explain_stable_offset(found)
    assert [one.in_flight for one in found.ranges] == [15, 6, 8]
    assert found.in_flight == 15
    assert [list(one.gaps) for one in found.ranges] == [[], [(44, 45)], [(42, 47)]]
    assert found.window == 13


def test_what_is_in_flight_may_not_be_known() -> None:
    """Nobody knows what members were shown before the broker started; who is nobody has nothing."""
    assert partition_of(row(LOW, 40, owner="a"), row(HIGH, 41)).in_flight is None
    assert partition_of(row(LOW, 40), row(HIGH, 41, owner="b", delivered=44)).in_flight == 3


def test_all_is_done() -> None:
    """Nothing is open; or nothing is left, and an owner has yet to say so."""
    assert explain_stable_offset(partition_of(row(ALL_SLOTS, 60))) == (
        "the stable offset of t-0 is 60: nothing is left to do."
    )
    silent = partition_of(row(LOW, 60, owner="a"), row(HIGH, 50, owner="b"), is_searched=True)
    assert explain_stable_offset(silent) == (
        "the stable offset of t-0 is 50: no record is left to do, but b has not confirmed slots"
        " 32768-65535."
    )
    unknown = PartitionProgress(topic="t", partition=0, stable_offset=3, ranges=(row(LOW, 3),))
    assert explain_stable_offset(unknown) == (
        "the stable offset of t-0 is 3; its end is not known."
    )


def test_nothing_was_committed() -> None:
    """Of all of it, or of some ranges, which are named."""
    assert explain_stable_offset(partition_of(row(ALL_SLOTS, -1))) == (
        "there is no stable offset of t-0: nothing was committed yet."
    )
    found = partition_of(row(LOW, 7, owner="a"), row(HIGH, -1))
    assert explain_stable_offset(found) == (
        "there is no stable offset of t-0: nothing was committed yet for slots 32768-65535 (which"
        " nobody owns)."
    )
    assert found.window is None


@pytest.mark.parametrize(
    ("is_shareable", "is_enabled", "texts"),
    [
        (True, True, ()),
        (None, True, ()),
        (False, True, ("range.fetch.enable=false",)),
        (True, False, ("group.individual.commit.enable=false",)),
        (False, False, ("range.fetch.enable=false", "group.individual.commit.enable=false")),
    ],
)
def test_switches(is_shareable: bool | None, is_enabled: bool, texts: tuple[str, ...]) -> None:
    """A switch that is off is said with what waits."""
    found = partition_of(
        row(ALL_SLOTS, 40, OffsetRanges([(42, 44)]), owner="a"), is_shareable=is_shareable
    )
    sentence = explain_stable_offset(found, is_enabled=is_enabled)
    for text in ("range.fetch.enable=false", "group.individual.commit.enable=false"):
        assert (text in sentence) == (text in texts)


def test_topics_that_were_never_shared() -> None:
    """Their switch holds nobody up."""
    found = partition_of(row(ALL_SLOTS, 40, owner="a"), is_shareable=False)
    assert "range.fetch.enable" not in explain_stable_offset(found)


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (-1, "0 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (119_999, "120 s"),
        (120_000, "2 min"),
        (7_199_999, "119 min"),
        (7_200_000, "2 h"),
        (172_800_000, "2 days"),
    ],
)
def test_durations(length_ms: int, text: str) -> None:
    """One unit, and no more digits than are of use."""
    assert duration(length_ms) == text
