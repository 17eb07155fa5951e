"""When the record at an offset was written: what lag as time is measured from.

The offset index leads to the batch, and its header says when its first record and its newest one
were written. Where an offset lies within a batch, the header alone gives an estimate between the
two; the exact answer takes parsing the batch.
"""

from bisect import bisect_right
from operator import attrgetter

from anabranch.log.partition_log import PartitionLog
from anabranch.log.segment import Segment
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import iter_records

_base_offset = attrgetter("base_offset")


def timestamp_at(log: PartitionLog, offset: int, *, is_exact: bool = False) -> int | None:
    """The timestamp of the first record at or after an offset, in ms.

    None when there is no such record, or when it has none. KafkaError when it cannot be read.
    Without `is_exact`, an offset within a batch is given a time in proportion to its place there.
    """
    offset = max(offset, log.log_start_offset)
    if log.is_closed or offset >= log.log_end_offset:
        return None
    segments = log.segments
    first = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
    try:
        for segment in segments[first:]:
            was_mapped = segment.is_mapped
            try:
                position = segment.position_of(offset)
                # Compaction can empty the end of a segment; the next record is in a later one then.
                if position < segment.size_bytes:
                    return _in_batch(segment, position, offset, is_exact)
            finally:
                if not was_mapped:
                    # One look at each of many thousand logs must not take a descriptor of each.
                    segment.close_idle()
    except OSError as error:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{log.topic}-{log.partition}: reading failed: {error}; check the disk",
        ) from error
    return None


def _in_batch(segment: Segment, position: int, offset: int, is_exact: bool) -> int | None:
    header = segment.header_at(position)
    first, newest = header.base_timestamp, header.max_timestamp
    if header.is_log_append_time:
        return _known(newest)
    if first == newest or offset <= header.base_offset or first < 0:
        return _known(first)
    if not is_exact:
        share = (offset - header.base_offset) / max(header.last_offset_delta, 1)
        return int(first + share * (newest - first))
    for record in iter_records(segment.batch_at(position)):
        if record.offset >= offset:
            return _known(record.timestamp)
    return _known(newest)


def _known(timestamp: int) -> int | None:
    return timestamp if timestamp >= 0 else None
