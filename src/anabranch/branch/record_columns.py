"""Fetched batches as columns of records, without a step of Python for each record.

One compiled pass finds where each key, value and block of headers lies, and what offset, timestamp
and slot each record has; objects are made of them when somebody asks. Everything is checked on the
way, so nothing that is asked for later can fail.

    columns = read_records(response.records, rule, from_offset=position)
    for offset, timestamp, key, value, headers in columns.rows():
        ...
    position = columns.next_offset

Control batches have no records here, but they are among the `batches`, with all that a reader of
committed records needs to leave out aborted ones. Batches that cannot be read are `damaged`: their
records are missing, those of their neighbours are not. What a broker cut off at the end of a
response is passed over in silence.
"""

import struct
from collections.abc import Iterator
from enum import Enum
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from anabranch.branch import _kernels
from anabranch.branch.payloads import open_batches
from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    DECOMPRESSED_BYTES_MAX,
    HEADER_SIZE,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    Record,
)
from anabranch.wire.varint import read_varint

if TYPE_CHECKING:
    from typing_extensions import Buffer

PLAIN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Decompressed bytes of one call; a few KB of hostile zstd make 128 MiB."""

Headers = tuple[tuple[str, bytes | None], ...]

_ENTRY = struct.Struct("<qqqiiiihhhH")
_ENTRY_NEXT_OFFSET = struct.Struct("<8xq32x")
_STATE_POS = 10
_LENGTH_PREFIX_SIZE = 12  # base offset and batch length: what the length does not count
_MAGIC_POS = 16
_read_base_offset_and_length = struct.Struct(">qi").unpack_from


class Damage(Enum):
    """Why a batch cannot be read."""

    CRC = "its CRC-32C does not match"
    COMPRESSION = "it cannot be decompressed"
    RECORDS = "its records are malformed"
    FRAMING = "it does not begin as a batch of format v2, or its offset does not rise"


_DAMAGES = (None, Damage.CRC, Damage.COMPRESSION, Damage.RECORDS)


class ReadBatch(NamedTuple):
    """A batch whose records are in the columns; also one without records."""

    base_offset: int
    next_offset: int
    producer_id: int
    leader_epoch: int
    base_sequence: int
    first_record: int
    """The place of its first record in the columns; the others follow."""
    records_count: int
    """Records in the columns, which may be fewer than the batch has."""
    producer_epoch: int
    attributes: int
    control_type: int
    """0 aborts and 1 commits the producer's transaction; -1 when it is no control batch."""
    damage: Damage | None

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0


class DamagedBatch(NamedTuple):
    """A batch that cannot be read."""

    base_offset: int
    next_offset: int
    """Where to go on after it, as far as one can tell."""
    damage: Damage


class RecordColumns:
    """Records as parallel columns, each a memoryview with one number for each record.

    A size of -1 means null. Starts are positions in `buffer`, which keeps the fetched bytes alive
    unless a batch was compressed.
    """

    __slots__ = (
        "_damaged_count",
        "_entries",
        "_from_offset",
        "_tail",
        "_with_headers_count",
        "batch_numbers",
        "buffer",
        "header_sizes",
        "header_starts",
        "key_sizes",
        "key_starts",
        "offsets",
        "slots",
        "source_bytes",
        "timestamps",
        "value_sizes",
        "value_starts",
    )

    def __init__(
        self,
        batches: memoryview,
        payloads: list[bytes | None],
        rule: SlotRule,
        from_offset: int,
        tail: DamagedBatch | None,
    ) -> None:
        block, room, count, entries, buffer, with_headers, damaged = _kernels.read_records(
            batches, payloads, rule.is_null_key_ordered, rule.ordering_header, from_offset
        )
        self.source_bytes = len(batches)
        self.buffer = batches if buffer is None else memoryview(buffer)
        self._entries = entries
        self._from_offset = from_offset
        self._with_headers_count = with_headers
        self._damaged_count = damaged
        self._tail = tail
        view = memoryview(block)
        self.offsets = view[: 8 * count].cast("q")
        self.timestamps = view[8 * room : 8 * (room + count)].cast("q")
        (
            self.key_starts,
            self.key_sizes,
            self.value_starts,
            self.value_sizes,
            self.header_starts,
            self.header_sizes,
            self.batch_numbers,
        ) = (view[4 * i * room : 4 * (i * room + count)].cast("i") for i in range(4, 11))
        self.slots = view[44 * room : 44 * room + 2 * count].cast("H")

    def __len__(self) -> int:
        return len(self.offsets)

    # One record -----------------------------------------------------------------------------------

    def key(self, i: int) -> bytes | None:
        return self._field(self.key_starts[i], self.key_sizes[i])

    def value(self, i: int) -> bytes | None:
        return self._field(self.value_starts[i], self.value_sizes[i])

    def headers(self, i: int) -> Headers:
        size = self.header_sizes[i]
        if not size:
            return ()
        start = self.header_starts[i]
        return parse_headers(bytes(self.buffer[start : start + size]))

    def record(self, i: int) -> Record:
        """All of a record."""
        return Record(
            self.offsets[i], self.timestamps[i], self.key(i), self.value(i), self.headers(i)
        )

    def batch_of(self, i: int) -> ReadBatch:
        """The batch that the record came in."""
        return _batch(_ENTRY.unpack_from(self._entries, self.batch_numbers[i] * _ENTRY.size))

    def _field(self, start: int, size: int) -> bytes | None:
        return None if size < 0 else bytes(self.buffer[start : start + size])

    # All records ----------------------------------------------------------------------------------

    def keys(self) -> list[bytes | None]:
        return _kernels.fields(self.buffer, self.key_starts, self.key_sizes)

    def values(self) -> list[bytes | None]:
        return _kernels.fields(self.buffer, self.value_starts, self.value_sizes)

    def rows(self) -> Iterator[tuple[int, int, bytes | None, bytes | None, Headers]]:
        """(offset, timestamp, key, value, headers) of each record, in the order of the log.

        Several times faster than asking for one record after the other.
        """
        headers: Iterator[Headers] = repeat(())
        if self._with_headers_count:
            headers = map(self.headers, range(len(self)))
        keys, values = self.keys(), self.values()
        return zip(self.offsets, self.timestamps, keys, values, headers, strict=False)

    # Batches --------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Where to read on: after the last batch, whatever became of it.

        Without a whole batch it is the offset that was asked for. A response that has bytes and
        none of a whole batch was cut short by its size: ask for more.
        """
        if not self._entries:
            return self._from_offset
        position = len(self._entries) - _ENTRY.size
        next_offset: int = _ENTRY_NEXT_OFFSET.unpack_from(self._entries, position)[0]
        return max(next_offset, self._from_offset)

    @property
    def batches(self) -> list[ReadBatch]:
        """All whole batches, those without records included."""
        return list(map(_batch, _ENTRY.iter_unpack(self._entries)))

    @property
    def damaged(self) -> list[DamagedBatch]:
        """What cannot be read, in order; after damage of the framing nothing was read."""
        found = [] if self._tail is None else [self._tail]
        if not self._damaged_count:
            return found
        return [
            *(
                DamagedBatch(batch.base_offset, batch.next_offset, batch.damage)
                for batch in self.batches
                if batch.damage is not None
            ),
            *found,
        ]


def read_records(
    batches: "Buffer", rule: SlotRule = DEFAULT_RULE, *, from_offset: int = 0
) -> RecordColumns:
    """The records at or above `from_offset` in fetched batches.

    Reading ends early (see `source_bytes` and `next_offset`) where batches decompress to more than
    is bearable, but not before the second one. ValueError when there are more than 2 GiB.
    """
    view = memoryview(batches).cast("B")
    whole = view[: _kernels.whole_batches(view)]
    tail = damage_of_tail(view[len(whole) :])
    part, payloads = open_batches(
        whole,
        _kernels.compressed_batches(whole),
        plain_bytes_max=PLAIN_BYTES_MAX,
        batch_bytes_max=DECOMPRESSED_BYTES_MAX,
    )
    return RecordColumns(
        part, payloads, rule, from_offset, tail if len(part) == len(whole) else None
    )


def parse_headers(block: bytes) -> Headers:
    """The headers that fill a block: names and values behind their lengths."""
    headers: list[tuple[str, bytes | None]] = []
    pos = 0
    while pos < len(block):
        size, pos = read_varint(block, pos)
        name = block[pos : pos + size].decode("utf-8", "surrogateescape")
        size, pos = read_varint(block, pos + size)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, block[pos : pos + size]))
            pos += size
    return tuple(headers)


def _batch(fields: tuple[int, ...]) -> ReadBatch:
    return ReadBatch._make((*fields[:_STATE_POS], _DAMAGES[fields[_STATE_POS]]))


def damage_of_tail(tail: memoryview) -> DamagedBatch | None:
    """What follows the last whole batch, unless it is only the beginning of another."""
    if len(tail) <= _MAGIC_POS:
        return None
    base_offset, length = _read_base_offset_and_length(tail)
    is_batch = tail[_MAGIC_POS] == MAGIC_V2 and length >= HEADER_SIZE - _LENGTH_PREFIX_SIZE
    if is_batch and _LENGTH_PREFIX_SIZE + length > len(tail):
        return None
    return DamagedBatch(base_offset, base_offset + 1, Damage.FRAMING)
