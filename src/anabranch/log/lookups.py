"""Finding offsets by time: what ListOffsets asks of a log.

The time index leads to a batch, the batch's headers to the first that is late enough, and only
that one batch is parsed record by record, as Kafka does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.log.log_config import INT64_MAX
from anabranch.log.segment import Segment
from anabranch.wire.record_batch import iter_records


class TimestampOffset(NamedTuple):
    """A record's timestamp, its offset, and the leader epoch it was written under."""

    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    """The first record at or after `log_start_offset` whose timestamp is not below `timestamp`."""
    for segment in segments:
        if segment.size_bytes and segment.next_offset > log_start_offset:
            if segment.largest_timestamp() < timestamp and segment.max_timestamp >= 0:
                continue
            found = _first_in_segment(segment, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def max_timestamp_offset(
    segments: Sequence[Segment], log_start_offset: int
) -> TimestampOffset | None:
    """The first record that has the largest timestamp of the log."""
    newest: Segment | None = None
    largest = -1
    for segment in segments:
        if segment.size_bytes and segment.next_offset > log_start_offset:
            timestamp = _largest_visible(segment, log_start_offset)
            if timestamp > largest:
                newest, largest = segment, timestamp
    if newest is None:
        return None
    return offset_for_timestamp([newest], largest, log_start_offset)


def _largest_visible(segment: Segment, log_start_offset: int) -> int:
    """The largest timestamp from the log's start on; -1 when no record has one."""
    segment.largest_timestamp()
    if segment.base_offset >= log_start_offset or segment.max_timestamp < 0:
        return segment.max_timestamp
    largest = -1
    position = segment.position_of(log_start_offset)
    while position < segment.size_bytes:
        header = segment.header_at(position)
        if header.base_offset >= log_start_offset:
            largest = max(largest, header.max_timestamp)
        else:
            for record in iter_records(segment.batch_at(position)):
                if record.offset >= log_start_offset:
                    largest = max(largest, min(record.timestamp, INT64_MAX))
        position += header.size_bytes
    return largest


def _first_in_segment(
    segment: Segment, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    start = max(segment.base_offset + segment.time_index.floor_offset(timestamp), log_start_offset)
    position = segment.position_of(start)
    while position < segment.size_bytes:
        header = segment.header_at(position)
        if header.max_timestamp >= timestamp:
            for record in iter_records(segment.batch_at(position)):
                if record.timestamp >= timestamp and record.offset >= log_start_offset:
                    # Nothing but the header was checked, so a sum in there can exceed an int64.
                    return TimestampOffset(
                        min(record.timestamp, INT64_MAX),
                        record.offset,
                        header.partition_leader_epoch,
                    )
        position += header.size_bytes
    return None
