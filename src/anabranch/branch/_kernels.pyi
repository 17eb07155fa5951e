"""Compiled loops over records; see `_kernels.c`. They run without the interpreter's lock."""

from collections.abc import Sequence

from typing_extensions import Buffer

def xxh64(data: Buffer, /) -> int:
    """XXH64 with seed 0."""

def murmur2(data: Buffer, /) -> int:
    """Kafka's murmur2, with the seed of its producers: 32 bits without a sign."""

def crc32c(data: Buffer, /) -> int:
    """CRC-32C, the checksum of record batches."""

def whole_batches(data: Buffer, end_offset: int = ..., /) -> int:
    """How many bytes of whole batches of format v2, whose offsets rise, `data` begins with.

    Only those that begin before `end_offset` count.
    """

def compressed_batches(
    batches: Buffer, ranges: bytes | None = None, /
) -> list[tuple[int, int, int]]:
    """(position, size, codec) of the payload of each compressed batch with records, in order.

    `batches` holds whole batches of format v2; ValueError when it does not. With `ranges`, only
    those that `withhold` with the same ranges has to open.
    """

def split(
    batches: Buffer,
    payloads: Sequence[bytes | None],
    branches: int,
    is_null_key_ordered: bool,
    ordering_header: bytes | None,
    table: bytes | None = None,
    /,
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Sort the records of `batches` into `branches` equal ranges of slots, or by a table.

    `table` has a little-endian uint16 for each slot: the branch that has it, or a number that no
    branch has, and then the slot's records are in no output. Control batches are in all of them,
    and a batch that cannot be read counts as a record of slot 0.

    `payloads` has the plain records of each batch that `compressed_batches` names, or None for one
    that cannot be decompressed. With 0 branches only the last two results are made. ValueError
    when `batches` is not a run of whole batches whose offsets rise; what is wrong inside of a batch
    is no error.

    Returns (output, starts, ends, next_offsets, index), all but the first little-endian arrays:
    branch b has output[starts[b]:starts[b + 1]] (uint64), whole batches in the order of the log;
    the part of it that comes from batch k of K ends at starts[b] + ends[b * K + k] (uint32);
    next_offsets[k] follows batch k (int64); `index` is a run of slot index blocks.
    """

def withhold(
    batches: Buffer, payloads: Sequence[bytes | None], ranges: bytes, /
) -> tuple[bytes | None, int, int]:
    """Whole batches without the records whose offsets are in `ranges`.

    `ranges` is an array of int64 pairs, first and last offset, sorted and disjoint. `payloads` is
    as for `split`, but of the batches that `compressed_batches` names with the same ranges.
    ValueError as for `split`, and when the ranges are not such pairs.

    Batches that lose nothing are kept byte for byte, control batches and those without records
    always; others are rebuilt, or left out with their last record. A batch that cannot be read
    counts as one record at its base offset.

    Returns the batches, or None when nothing is left out; the offset after the last batch among
    them, or -1; and the offset after the last one of `batches`, or -1.
    """

def read_records(
    batches: Buffer,
    payloads: Sequence[bytes | None],
    is_null_key_ordered: bool,
    ordering_header: bytes | None,
    from_offset: int,
    /,
) -> tuple[bytes, int, int, bytes, bytes | None, int, int]:
    """Records at or above `from_offset` as columns.

    `payloads` and ValueError are as for `split`; what is wrong inside of a batch is no error: none
    of its records are in the columns, and its entry says what it is.

    Returns (columns, room, count, entries, buffer, with_headers, damaged): `count` records, in one
    block of columns that have `room` entries each, in this order: offsets and timestamps (int64);
    starts and sizes of keys, of values and of headers, and numbers of batches (int32, a null has
    the size -1); slots (uint16). Starts are positions in `buffer` or, if that is None, in
    `batches`. `entries` has 48 bytes for each batch (int64 base offset, next offset, producer id;
    int32 leader epoch, base sequence, number of its first record, count of its records; int16
    producer epoch, attributes, type of the control record or -1; uint16 state: 0 read, 1 wrong CRC,
    2 not decompressed, 3 malformed). The last two numbers count records with headers and batches
    of other states than 0.
    """

def fields(buffer: Buffer, starts: Buffer, sizes: Buffer, /) -> list[bytes | None]:
    """The keys or values of a column; ValueError when one does not lie in `buffer`."""

ArrowColumn = tuple[bytes | None, bytes, bytes]
"""Validity bitmap (None when nothing is null), int32 offsets, and the bytes they point into."""

ArrowRows = tuple[
    int,
    int,
    ArrowColumn | None,
    ArrowColumn | None,
    bytes | None,
    bytes | None,
    bytes | None,
    ArrowColumn | None,
    ArrowColumn | None,
    ArrowColumn | None,
]

def arrow_rows(
    batches: Buffer,
    payloads: Sequence[bytes | None],
    is_null_key_ordered: bool,
    ordering_header: bytes | None,
    from_offset: int,
    end_offset: int,
    first_slot: int,
    end_slot: int,
    aborted: Buffer,
    wanted: int,
    /,
) -> ArrowRows | tuple[int, int]:
    """Records of an offset interval and of a range of slots, as the buffers of Arrow's columns.

    `payloads` and ValueError are as for `split`; ValueError also for a range without slots, or for
    more than 2 GiB. `aborted` has int64 pairs, producer id and first offset of a transaction, by
    offset: its records are left out. `wanted` adds up 1 for keys, 2 for values, 4 for offsets, 8
    for timestamps, 16 for their types and 32 for headers.

    Returns (state, base offset) of the first batch that concerns the interval and cannot be read;
    the states are those of `read_records`. Otherwise (count, next_offset, keys, values, offsets,
    timestamps, types, headers, header_names, header_values), where what is not wanted is None:
    int64 offsets and microseconds, int32 types (1: log append time), and for the headers the lists
    (no data), names that are UTF-8 for sure, and values. Buffers may be longer than their columns.
    `next_offset` follows the last batch; -1 when there is none.
    """

GivenColumn = tuple[Buffer | None, Buffer, Buffer | None, int]
"""The buffers of an Arrow array: validity, int32 offsets or numbers, data; and its offset."""

def record_targets(
    count: int,
    topics: GivenColumn | None,
    keys: GivenColumn | None,
    given: GivenColumn | None,
    partitions: Buffer,
    sticky_first: int,
    sticky_rows: int,
    /,
) -> tuple[bytes, int, int]:
    """The target of each of `count` rows: a partition of one of some topics.

    `partitions` has an int32 for each topic, how many partitions it has; its targets follow those
    of the topics before. `topics` has the number of each row's topic (None: there is only one),
    `given` the partition that a row names. Others go by murmur2 of their keys; of those without a
    key, the first `sticky_rows` go to partition `sticky_first`, as many to the next one, and so on.
    ValueError when the buffers are too small for their rows.

    Returns an int32 array; how many rows had neither key nor partition; and the first row that has
    no topic, or names a partition that its topic does not have, -1 when there is none.
    """

def encode_records(
    count: int,
    targets: Buffer,
    targets_count: int,
    keys: GivenColumn | None,
    values: GivenColumn | None,
    headers: GivenColumn | None,
    header_names: GivenColumn | None,
    header_values: GivenColumn | None,
    headers_count: int,
    batch_size_max: int,
    /,
) -> list[tuple[int, int, bytearray]]:
    """Rows as the records of batches, in the order in which the batches begin.

    `headers` are lists of the `headers_count` names and values. A target's batch ends before the
    record with which it would have more than `batch_size_max` bytes. ValueError when columns do
    not fit their buffers, a header has no name, or a record has more than 2 GiB.

    Returns (target, count of records, batch) of each; the batch begins with 61 bytes that are to
    become its header, whose timestamp is that of all of its records.
    """

def progress(
    index: Buffer, watermarks: bytes, floors: bytes, end_offset: int, /
) -> tuple[bytes, bytes, bytes]:
    """Count records by branch over a run of slot index blocks.

    `watermarks` is an int64 array, one for each of W equal ranges: a record at or above the
    watermark of its range is open, one below it is done. `floors` is an int64 array, one for each
    of F equal ranges by which is counted. Records at or above `end_offset` do not count.

    Returns three arrays with one number for each of the F: open records (uint64), the offset of
    the first open record or -1 (int64), and done records at or above the range's floor (uint64).
    """
