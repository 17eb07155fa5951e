"""Batches of a partition, sorted into the batches of each of its branches.

One pass over a chunk of consecutive batches makes the output of all branches at once, so that
many readers of the same part of a log share the work; what a reader gets is then looked up by two
or three binary searches. A batch that survives whole is in the output byte for byte; otherwise it
is rebuilt around the surviving records, which keep their bytes and offsets (and the batch its
offsets, timestamps and producer), uncompressed. Control batches are in every branch, batches
without survivors in none.

A batch that cannot be read (its CRC, codec or records are broken) goes as it is to the branch of
slot 0: one reader sees what a consumer of the plain topic would see, the others go on.

Branches are equal ranges of slots, or the outputs of a `CutTable`, which may leave slots out.
"""

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from anabranch.branch import _kernels
from anabranch.branch.cuts import CutTable
from anabranch.branch.payloads import open_batches
from anabranch.branch.slots import SlotRule
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    DECOMPRESSED_BYTES_MAX,
    HEADER_SIZE,
    Record,
    build_batch,
)

PLAIN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Decompressed bytes of one chunk; a few KB of hostile zstd make 128 MiB."""
EXPANDED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one chunk may spend on things that every branch has: control batches and array entries."""

_LENGTH_PREFIX_SIZE = 12  # base offset and batch length: what the length does not count
_END_SIZE = 4  # the array entry of each batch for each branch
_OBJECTS_BYTES = 1024  # the objects around the arrays, roughly
_COMMIT_MARKER_KEY = struct.pack(">hh", 0, 1)  # version, type
_COMMIT_MARKER_VALUE = struct.pack(">hi", 0, 0)  # version, epoch of the transaction coordinator
_read_int64 = struct.Struct(">q").unpack_from
_read_length_and_attributes = struct.Struct(">8xi9xh").unpack_from


class ChunkRead(NamedTuple):
    """What one branch has in a part of a chunk."""

    records: memoryview
    next_offset: int
    """Follows the last batch in `records`; the offset asked for when there is none."""
    covered_offset: int
    """Below it, `records` has all that the branch has from the offset asked for on."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitChunk:
    """The output of all branches for consecutive batches of one partition."""

    first_offset: int
    next_offset: int
    branches: int
    source_bytes: int
    """The size of the batches that it was made of."""
    size_bytes: int
    """The memory that it holds."""
    index: bytes
    """The slot index blocks of the batches."""
    output: memoryview
    _starts: memoryview
    _ends: memoryview
    _next_offsets: memoryview

    def read(
        self, branch: int, offset: int, upto: int, max_bytes: int, *, min_one_batch: bool
    ) -> ChunkRead:
        """The branch's batches from the one of the log that contains `offset` on.

        A batch of the log counts when it ends at or below the offset `upto`. At most `max_bytes`
        are returned, but with `min_one_batch` at least one batch if there is any.
        """
        next_offsets = self._next_offsets
        ends = self._ends_of(branch)
        first = bisect_right(next_offsets, offset)
        limit = bisect_right(next_offsets, upto, lo=first)
        start = ends[first - 1] if first else 0
        last = bisect_right(ends, start + max(max_bytes, 0), lo=first, hi=limit)
        end = ends[last - 1] if last > first else start
        if end == start and min_one_batch and last < limit:
            end = ends[last]
            last = bisect_right(ends, end, lo=last, hi=limit)  # those after it that have nothing
        origin = self._starts[branch]
        return ChunkRead(
            self.output[origin + start : origin + end],
            next_offsets[bisect_left(ends, end, lo=first, hi=last)] if end > start else offset,
            next_offsets[last - 1] if last > first else offset,
        )

    def touched_bytes(self, branch: int, from_offset: int) -> int:
        """What the branch has from the batch of the log that contains `from_offset` on."""
        first = bisect_right(self._next_offsets, from_offset)
        ends = self._ends_of(branch)
        total: int = ends[-1]
        return total - (ends[first - 1] if first else 0)

    def _ends_of(self, branch: int) -> memoryview:
        count = len(self._next_offsets)
        return self._ends[branch * count : (branch + 1) * count]


def split_batches(batches: memoryview, cuts: int | CutTable, rule: SlotRule) -> SplitChunk:
    """Sort whole, consecutive batches into so many equal ranges of slots, or by a table.

    The chunk ends early (see its `next_offset` and `source_bytes`) where the batches are ones that
    grow beyond all measure, but has at least one. ValueError when `batches` is not a run of whole
    batches, whatever lies inside of them.
    """
    if isinstance(cuts, CutTable):
        branches, table = len(cuts.outputs), cuts.table
    else:
        branches, table = cuts, None
    batches, payloads = _open_batches(_within_expansion(batches, branches))
    output, starts, ends, next_offsets, index = _kernels.split(
        batches, payloads, branches, rule.is_null_key_ordered, rule.ordering_header, table
    )
    offsets = memoryview(next_offsets).cast("q")
    parts_bytes = sum(map(len, (output, starts, ends, next_offsets, index)))
    return SplitChunk(
        first_offset=_read_int64(batches)[0],
        next_offset=offsets[-1],
        branches=branches,
        source_bytes=len(batches),
        size_bytes=parts_bytes + _OBJECTS_BYTES,
        index=index,
        output=memoryview(output),
        _starts=memoryview(starts).cast("Q"),
        _ends=memoryview(ends).cast("I"),
        _next_offsets=offsets,
    )


def index_batches(batches: memoryview, rule: SlotRule) -> bytes:
    """The slot index blocks of whole, consecutive batches; ValueError as `split_batches`."""
    blocks: list[bytes] = []
    while batches:
        part, payloads = _open_batches(batches)
        blocks.append(
            _kernels.split(part, payloads, 0, rule.is_null_key_ordered, rule.ordering_header)[4]
        )
        batches = batches[len(part) :]
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


# The branches of a tail are looked at together, and most of them need the same one.
@lru_cache(maxsize=64)
def filler_batch(next_offset: int, leader_epoch: int) -> bytes:
    """A batch without a record for applications, which moves a reader to `next_offset`.

    It is a commit marker of nobody's transaction, because every client passes over markers in
    silence. An empty batch would not do: librdkafka takes answers with bytes and no message for
    ones that were cut short, and after ten of them reports an error.
    """
    marker = Record(next_offset - 1, -1, _COMMIT_MARKER_KEY, _COMMIT_MARKER_VALUE)
    return build_batch(
        (marker,),
        base_offset=next_offset - 1,
        partition_leader_epoch=leader_epoch,
        attributes=CONTROL_FLAG,
    )


def _open_batches(batches: memoryview) -> tuple[memoryview, list[bytes | None]]:
    """As many batches as decompress to a bearable size, at least one, and their plain records."""
    if not batches:
        raise ValueError("there are no batches to split")
    return open_batches(
        batches,
        _kernels.compressed_batches(batches),
        plain_bytes_max=PLAIN_BYTES_MAX,
        batch_bytes_max=DECOMPRESSED_BYTES_MAX,
    )


def _within_expansion(batches: memoryview, branches: int) -> memoryview:
    """As many batches as do not expand too much by being in every branch, at least one."""
    if len(batches) * branches <= EXPANDED_BYTES_MAX:
        return batches
    expanded_bytes = 0
    pos = 0
    while len(batches) - pos >= HEADER_SIZE:
        batch_length, attributes = _read_length_and_attributes(batches, pos)
        size = max(_LENGTH_PREFIX_SIZE + batch_length, HEADER_SIZE)  # the kernel refuses less
        expanded_bytes += branches * (size if attributes & CONTROL_FLAG else _END_SIZE)
        if expanded_bytes > EXPANDED_BYTES_MAX and pos:
            return batches[:pos]
        pos += size
    return batches
