"""Fetched record batches as Arrow batches, made in compiled code.

    batches, position = decode(response.records, wanted)

A row is a record of the wanted offsets and slots that no aborted transaction wrote. Columns and
types are those of Spark's `kafka` source, as its `to_arrow_schema` has them: everything may be
null, timestamps are microseconds in UTC. Only the columns that are wanted are made, and there is no
step of Python for a record. Millions of rows per CPU second, with keys of 14 bytes, seven columns
and batches of 16 KB, on a machine that was busy with other things:

    value     none    gzip    snappy    lz4     zstd
    100 B     14.8    2.0     5.4       6.8     2.7
    1 KB      3.1     0.3     0.9       1.0     0.2

What cannot be read is an error (CORRUPT_MESSAGE) that names the batch: a source that passed over
it in silence would lose records. Names of headers are made UTF-8, as Java does; timestamps that
have no place in 64 bits of microseconds become the first or the last one that has.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from anabranch.branch import _kernels
from anabranch.branch.payloads import open_batches
from anabranch.branch.record_columns import PLAIN_BYTES_MAX, Damage, damage_of_tail
from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import ALL_SLOTS, SlotRange
from anabranch.wire.record_batch import DECOMPRESSED_BYTES_MAX

ROWS_MAX: Final = 10_000
"""Rows of one Arrow batch; from there on larger ones gain nothing."""
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""What the rows of one Arrow batch may have, unless a single one has more."""

_HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS_TYPE = pa.list_(pa.field("element", _HEADER_TYPE))
_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS_TYPE,
}
_FLAGS: Final = {
    "key": 1,
    "value": 2,
    "offset": 4,
    "timestamp": 8,
    "timestampType": 16,
    "headers": 32,
}
_DAMAGES: Final = (None, Damage.CRC, Damage.COMPRESSION, Damage.RECORDS)
_PAIR = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records of a partition are rows, and which of the columns they have."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    slots: SlotRange | None
    """None means all."""
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of aborted transactions, as a fetch of committed records has
    them."""
    columns: tuple[str, ...]
    rule: SlotRule = DEFAULT_RULE


def arrow_schema(columns: Sequence[str]) -> Any:
    """The schema of batches with these columns, in this order."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def decode(records: bytes | memoryview, wanted: Wanted) -> tuple[list[Any], int]:
    """The rows in fetched records, as batches of at most 10,000, and the offset to ask for next.

    That offset is never above `end_offset`, and is the end when a batch beyond it was seen. It is
    `start_offset` when there is not one whole batch: the answer had none, or was cut short by its
    size. KafkaError when something that concerns the rows cannot be read.
    """
    view = memoryview(records).cast("B")
    whole = view[: _kernels.whole_batches(view, wanted.end_offset)]
    part, payloads = open_batches(
        whole,
        _kernels.compressed_batches(whole),
        plain_bytes_max=PLAIN_BYTES_MAX,
        batch_bytes_max=DECOMPRESSED_BYTES_MAX,
    )
    rows, next_offset = _rows(part, payloads, wanted)
    if len(part) == len(whole) and next_offset < wanted.end_offset:
        tail = view[len(whole) :]
        if _is_past(tail, wanted.end_offset):
            next_offset = wanted.end_offset
        elif (damaged := damage_of_tail(tail)) is not None:
            raise _damaged(wanted, damaged.base_offset, damaged.damage)
    return rows, min(max(next_offset, wanted.start_offset), wanted.end_offset)


def _is_past(tail: memoryview, end_offset: int) -> bool:
    """Whether a whole batch follows that begins at the end or later."""
    return _kernels.whole_batches(tail) > 0 and int.from_bytes(tail[:8], "big") >= end_offset


def _rows(
    batches: memoryview, payloads: list[bytes | None], wanted: Wanted
) -> tuple[list[Any], int]:
    """The rows, and the offset after the last batch."""
    slots = ALL_SLOTS if wanted.slots is None else wanted.slots
    by_offset = sorted(wanted.aborted, key=lambda pair: pair[1])
    try:
        result = _kernels.arrow_rows(
            batches,
            payloads,
            wanted.rule.is_null_key_ordered,
            wanted.rule.ordering_header,
            wanted.start_offset,
            wanted.end_offset,
            slots.first,
            slots.end,
            b"".join(_PAIR.pack(*pair) for pair in by_offset),
            sum(_FLAGS.get(name, 0) for name in wanted.columns),
        )
    except ValueError as error:
        raise _corrupt(wanted, f"its records cannot be read: {error}") from error
    if len(result) == 2:
        state, base_offset = result
        raise _damaged(wanted, base_offset, _DAMAGES[state])
    if not result[0]:
        return [], result[1]
    return _cut(_arrays(result), wanted, result[0]), result[1]


def _arrays(result: "_kernels.ArrowRows") -> dict[str, Any]:
    """The arrays of what the kernel made."""
    count, _, key, value, offsets, timestamps, types, lists, names, values = result
    arrays: dict[str, Any] = {}
    for name, column in (("key", key), ("value", value)):
        if column is not None:
            arrays[name] = _binary(pa.binary(), count, column)
    for name, numbers in (("offset", offsets), ("timestamp", timestamps), ("timestampType", types)):
        if numbers is not None:
            arrays[name] = pa.Array.from_buffers(
                _TYPES[name], count, [None, pa.py_buffer(numbers)], 0
            )
    if lists is not None and names is not None and values is not None:
        arrays["headers"] = _headers(count, lists, names, values)
    return arrays


def _binary(type_: Any, count: int, column: "_kernels.ArrowColumn") -> Any:
    buffers = [None if one is None else pa.py_buffer(one) for one in column]
    return pa.Array.from_buffers(type_, count, buffers, 0 if column[0] is None else -1)


def _headers(
    count: int,
    lists: "_kernels.ArrowColumn",
    names: "_kernels.ArrowColumn",
    values: "_kernels.ArrowColumn",
) -> Any:
    """Lists of names and values; null for a record without headers, as in Spark's source."""
    validity, offsets, _ = lists
    total = int.from_bytes(offsets[4 * count : 4 * count + 4], "little")
    items = pa.StructArray.from_arrays(
        [_binary(pa.string(), total, (None, *names[1:])), _binary(pa.binary(), total, values)],
        fields=list(_HEADER_TYPE),
    )
    return pa.Array.from_buffers(
        _HEADERS_TYPE,
        count,
        [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets)],
        0 if validity is None else -1,
        children=[items],
    )


def _cut(arrays: dict[str, Any], wanted: Wanted, count: int) -> list[Any]:
    """The rows as batches, each of a size that Spark handles well."""
    row_bytes = sum(_bytes_of(array) for array in arrays.values()) // count + 1
    step = max(min(ROWS_MAX, BATCH_BYTES_MAX // row_bytes), 1)
    schema = arrow_schema(wanted.columns)
    batches = []
    for start in range(0, count, step):
        size = min(step, count - start)
        columns = [
            _constant(wanted, name).slice(0, size)
            if name in ("topic", "partition")
            else arrays[name].slice(start, size)
            for name in wanted.columns
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return batches


def _bytes_of(array: Any) -> int:
    """The bytes of keys or values; of anything else they do not count."""
    if array.type != pa.binary():
        return 0
    offsets = memoryview(array.buffers()[1]).cast("i")
    return int(offsets[len(array)])


def _constant(wanted: Wanted, name: str) -> Any:
    return _repeated(wanted.topic if name == "topic" else wanted.partition)


@lru_cache(maxsize=256)
def _repeated(value: str | int) -> Any:
    """What is the same in all rows of a partition, made once for all of its batches."""
    return pa.repeat(
        pa.scalar(value, pa.string() if isinstance(value, str) else pa.int32()), ROWS_MAX
    )


def _damaged(wanted: Wanted, base_offset: int, damage: Damage | None) -> KafkaError:
    what = "unknown damage" if damage is None else damage.value
    return _corrupt(wanted, f"the batch at offset {base_offset} cannot be read: {what}")


def _corrupt(wanted: Wanted, what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{wanted.topic}-{wanted.partition}: {what}; read it again, and if it stays so, start the"
        " query behind it with startingOffsets and a new checkpoint",
    )
