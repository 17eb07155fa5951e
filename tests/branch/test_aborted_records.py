"""Which fetched records were aborted."""

from typing import Any

from anabranch.branch.aborted_records import aborted_batches, committed_numbers
from anabranch.branch.record_columns import RecordColumns, read_records
from anabranch.branch.split import filler_batch
from anabranch.wire.control_records import ABORT, COMMIT, build_marker
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch


def batch(
    first: int, *, producer: int = -1, count: int = 1, attributes: int | None = None
) -> bytes:
    """Records of a producer's transaction, or of nobody's."""
    records = [Record(first + i, 0, b"k", b"%d" % (first + i)) for i in range(count)]
    if attributes is None:
        attributes = TRANSACTIONAL_FLAG if producer >= 0 else 0
    header: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": first}
    return build_batch(records, base_offset=first, attributes=attributes, **header)


def marker(offset: int, producer: int, control_type: int) -> bytes:
    built = build_marker(
        control_type, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )
    return offset.to_bytes(8, "big") + built[8:]


def columns_of(*batches: bytes, from_offset: int = 0) -> RecordColumns:
    columns = read_records(b"".join(batches), from_offset=from_offset)
    assert not columns.damaged
    return columns


def committed(columns: RecordColumns, *aborted: tuple[int, int]) -> list[int]:
    numbers = committed_numbers(columns, aborted)
    return [columns.offsets[i] for i in (range(len(columns)) if numbers is None else numbers)]


def test_from_its_first_offset_to_its_marker() -> None:
    """Records of the producer's transactions before and after are not touched, nor of others."""
    columns = columns_of(
        batch(0, producer=1),
        marker(1, 1, COMMIT),
        batch(2, producer=1, count=2),
        batch(4, producer=2),
        batch(5),
        batch(6, producer=1),
        marker(7, 1, ABORT),
        batch(8, producer=1),
        marker(9, 1, COMMIT),
        marker(10, 2, COMMIT),
    )
    assert committed(columns, (1, 2)) == [0, 4, 5, 8]
    assert committed(columns) == [0, 2, 3, 4, 5, 6, 8]
    assert committed_numbers(columns, [(3, 0)]) is None


def test_two_transactions_of_one_producer() -> None:
    """The list may have several of a producer, in any order."""
    columns = columns_of(
        batch(0, producer=1),
        marker(1, 1, ABORT),
        batch(2, producer=1),
        marker(3, 1, COMMIT),
        batch(4, producer=1),
        marker(5, 1, ABORT),
        batch(6, producer=1),
    )
    assert committed(columns, (1, 4), (1, 0)) == [2, 6]


def test_reading_that_begins_inside() -> None:
    """A transaction that began before what was fetched is known by the list alone."""
    columns = columns_of(
        batch(10, producer=1, count=4), marker(14, 1, ABORT), batch(15), from_offset=12
    )
    assert committed(columns, (1, 3)) == [15]
    nothing_left = columns_of(batch(10, producer=1, count=4), batch(14), from_offset=14)
    assert committed(nothing_left, (1, 3)) == [14]


def test_only_transactional_batches() -> None:
    """What a producer writes outside of a transaction nobody can abort."""
    columns = columns_of(
        batch(0, producer=1), batch(1, producer=1, attributes=0), marker(2, 1, ABORT)
    )
    assert committed(columns, (1, 0)) == [1]


def test_only_the_marker_that_aborts_ends_it() -> None:
    """Whatever else a broker sends in between; fillers are commit markers of nobody."""
    columns = columns_of(
        batch(0, producer=1),
        marker(1, 1, COMMIT),
        filler_batch(3, 0),
        batch(3, producer=1),
        marker(4, 1, ABORT),
    )
    assert committed(columns, (1, 0)) == []
    assert [one.base_offset for one in aborted_batches(columns.batches, [(1, 0)])] == [0, 3]
