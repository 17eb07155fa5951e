"""Leaving out what a group has done already, above the offset where a member goes on.

Members acknowledge records one by one, so a reader that goes on at its range's watermark would see
again what lies above it and is done. `withhold` takes a branch's batches and the set of offsets
that are done, and leaves those records out: batches that lose nothing stay as they are, byte for
byte, those that lose everything are left out, and the others are rebuilt around the rest. Control
batches stay. A batch that cannot be read counts as one record at its base offset, as in the slot
index, so whoever skips it acknowledges that offset.
"""

import struct
from array import array
from itertools import chain
from typing import NamedTuple

from anabranch.branch import _kernels
from anabranch.branch.payloads import open_batches
from anabranch.branch.split import PLAIN_BYTES_MAX, ChunkRead
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.wire.record_batch import DECOMPRESSED_BYTES_MAX

_read_int64 = struct.Struct(">q").unpack_from


class Remainder(NamedTuple):
    """What is left of whole batches."""

    records: memoryview
    next_offset: int | None
    """Follows the last batch in `records`; None when there is none."""
    covered_offset: int
    """Follows the last batch that was looked at."""
    source_bytes: int
    """The size of the batches that were looked at."""


def pack_ranges(offsets: OffsetRanges) -> bytes:
    """A set of offsets as the kernels take it: for who uses the same set again."""
    return array("q", chain.from_iterable(offsets)).tobytes()


def withhold(batches: memoryview, done: OffsetRanges | bytes) -> Remainder:
    """Whole batches without the records whose offsets are in `done`.

    `done` is a set or a packed one. It costs a little for each of its ranges, so it should be cut
    to the offsets at hand. What is looked at ends early, after at least one batch, where batches
    decompress to more than is bearable. ValueError when `batches` is empty or not a run of whole
    batches, whatever lies inside of them.
    """
    if not batches:
        raise ValueError("there are no batches to leave records out of")
    ranges = done if isinstance(done, bytes) else pack_ranges(done)
    batches, payloads = open_batches(
        batches,
        _kernels.compressed_batches(batches, ranges),
        plain_bytes_max=PLAIN_BYTES_MAX,
        batch_bytes_max=DECOMPRESSED_BYTES_MAX,
    )
    kept, next_offset, covered_offset = _kernels.withhold(batches, payloads, ranges)
    return Remainder(
        batches if kept is None else memoryview(kept),
        next_offset if next_offset >= 0 else None,
        covered_offset,
        len(batches),
    )


def withhold_read(read: ChunkRead, offset: int, done: OffsetRanges) -> ChunkRead:
    """What was read of a branch from `offset` on, without the records that are done.

    As in a read, `next_offset` follows the last batch that is left, or is `offset`.
    """
    if not done or not read.records:
        return read
    ranges = done.at_or_above(_read_int64(read.records)[0]).below(read.covered_offset)
    rest = withhold(read.records, ranges)
    is_whole = rest.source_bytes == len(read.records)
    return ChunkRead(
        rest.records,
        offset if rest.next_offset is None else rest.next_offset,
        read.covered_offset if is_whole else rest.covered_offset,
    )
