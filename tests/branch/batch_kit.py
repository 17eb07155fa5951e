"""Random logs, a slow model of what the kernels do, and other implementations' readers.

The model is plain Python over `struct` and the record format's definition. Where it has to read
records it is checked itself, because the same outputs go through aiokafka and kafka-python.
"""

import random
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c

from anabranch.branch import _kernels
from anabranch.branch.record_columns import RecordColumns
from anabranch.branch.slots import SlotRule
from anabranch.model.errors import KafkaError
from anabranch.wire.compression import compress, decompress
from anabranch.wire.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    Record,
    build_batch,
    iter_headers,
    iter_records,
    read_header,
)
from anabranch.wire.varint import read_varint

with warnings.catch_warnings():  # kafka-python loads its schemas through a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

CODECS = range(5)
RULES = (
    SlotRule(),
    SlotRule(is_null_key_ordered=True),
    SlotRule(ordering_header=b"order"),
    SlotRule(is_null_key_ordered=True, ordering_header=b""),
)
SPARSE, CONTROL, UNREADABLE = 1, 2, 4
_MASK = 2**64 - 1


# --- XXH64 from its specification ---------------------------------------------------------------

_P1, _P2, _P3, _P4, _P5 = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)


def _rotl(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _lane(acc: int, value: int) -> int:
    return _rotl((acc + value * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64_model(data: bytes) -> int:
    """XXH64 with seed 0, step by step as the specification has it."""
    pos = 0
    if len(data) >= 32:
        accs = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        for pos in range(0, len(data) - 31, 32):
            words = struct.unpack_from("<4Q", data, pos)
            accs = [_lane(acc, word) for acc, word in zip(accs, words, strict=True)]
        pos += 32
        acc = sum(_rotl(a, bits) for a, bits in zip(accs, (1, 7, 12, 18), strict=True)) & _MASK
        for a in accs:
            acc = ((acc ^ _lane(0, a)) * _P1 + _P4) & _MASK
    else:
        acc = _P5
    acc = (acc + len(data)) & _MASK
    while len(data) - pos >= 8:
        (word,) = struct.unpack_from("<Q", data, pos)
        acc = (_rotl(acc ^ _lane(0, word), 27) * _P1 + _P4) & _MASK
        pos += 8
    if len(data) - pos >= 4:
        (word,) = struct.unpack_from("<I", data, pos)
        acc = (_rotl(acc ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        pos += 4
    for byte in data[pos:]:
        acc = _rotl(acc ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    acc = (acc ^ acc >> 33) * _P2 & _MASK
    acc = (acc ^ acc >> 29) * _P3 & _MASK
    return acc ^ acc >> 32


# --- Random logs --------------------------------------------------------------------------------


def with_crc(batch: bytes | bytearray) -> bytes:
    """The batch with the CRC that its bytes should have."""
    return bytes(batch[:17]) + struct.pack(">I", crc32c(bytes(batch[21:]))) + bytes(batch[21:])


def patched(batch: bytes, pos: int, layout: str, value: int) -> bytes:
    """The batch with one header field changed and the CRC made right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, pos, value)
    return with_crc(changed)


def random_record(rng: random.Random, offset: int, now_ms: int) -> Record:
    """A record with a key from a small set, a null or empty key, odd headers, any size."""
    kind = rng.randrange(8)
    if kind == 0:
        key = None
    elif kind == 1:
        key = b""
    elif kind == 2:
        key = rng.randbytes(rng.randrange(1, 100))
    else:
        key = b"key-%d" % rng.randrange(30)
    value = None if rng.randrange(10) == 0 else rng.randbytes(rng.choice((0, 1, 20, 90, 300)))
    headers = tuple(
        (
            rng.choice(("order", "orde", "", "trace-id", "ordér")),
            None if rng.randrange(3) == 0 else rng.randbytes(rng.randrange(12)),
        )
        for _ in range(rng.choice((0, 0, 0, 1, 2, 4)))
    )
    return Record(offset, now_ms + rng.choice((0, 0, 1, 100, -5, 10_000_000)), key, value, headers)


def foreign_batch(
    rng: random.Random, records: Sequence[Record], builder_class: Any, codec: int
) -> bytes:
    """A batch as another implementation's producer builds it, placed in the log."""
    base_offset = records[0].offset
    producer = (rng.randrange(1000), rng.randrange(9), rng.randrange(10**6))
    if builder_class is AiokafkaBuilder:
        builder = AiokafkaBuilder(2, codec, 0, *producer, 1 << 30)
    else:
        builder = KafkaPythonBuilder(2, codec, 0, *producer, 1 << 30)
    for record in records:
        builder.append(
            record.offset - base_offset,
            record.timestamp,
            record.key,
            record.value,
            list(record.headers),
        )
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, rng.randrange(5))
    return bytes(batch)


def own_batch(rng: random.Random, records: Sequence[Record], codec: int, last_offset: int) -> bytes:
    """A batch of ours, sparse as after compaction if the records are, with any flags."""
    attributes = 0
    producer: dict[str, int] = {}
    if rng.randrange(3) == 0:
        producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": rng.randrange(2**31)}
        attributes |= rng.choice((0, TRANSACTIONAL_FLAG))
    attributes |= rng.choice((0, 0, LOG_APPEND_TIME_FLAG, DELETE_HORIZON_FLAG))
    base_offset = records[0].offset - rng.choice((0, 0, 3)) if records else last_offset
    return build_batch(
        records,
        base_offset=max(base_offset, 0),
        last_offset=last_offset,
        partition_leader_epoch=rng.randrange(5),
        codec=codec,
        attributes=attributes,
        **producer,
    )


def control_batch(rng: random.Random, offset: int) -> bytes:
    """A commit or abort marker."""
    key = struct.pack(">hh", 0, rng.randrange(2))
    return build_batch(
        [Record(offset, 1_700_000_000_000, key, struct.pack(">hi", 0, 7))],
        base_offset=offset,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        producer_id=9,
        producer_epoch=2,
    )


def random_log(rng: random.Random, batches_count: int) -> list[bytes]:
    """Batches of all kinds, their offsets rising, with gaps here and there."""
    batches = []
    offset = rng.choice((0, 10, 2**31 - 40, 2**40))
    for _ in range(batches_count):
        kind = rng.choice(
            ("aiokafka", "kafka-python", "ours", "ours", "sparse", "control", "empty")
        )
        codec = rng.choice(CODECS)
        if kind == "control":
            batches.append(control_batch(rng, offset))
        elif kind == "empty":
            batches.append(own_batch(rng, (), 0, offset))
        else:
            count = rng.choice((1, 1, 2, 5, 40, 90))
            records = [random_record(rng, offset + i, 1_700_000_000_000) for i in range(count)]
            if kind == "sparse":
                records = [r for r in records if rng.randrange(3)] or records[-1:]
            if kind == "aiokafka":
                batch = foreign_batch(rng, records, AiokafkaBuilder, codec)
            elif kind == "kafka-python":
                batch = foreign_batch(rng, records, KafkaPythonBuilder, codec)
            else:
                extra = rng.choice((0, 0, 5))
                batch = own_batch(rng, records, codec, records[-1].offset + extra)
            # A batch may begin below its first record, but not inside the one before.
            if batches and read_header(batch).base_offset < read_header(batches[-1]).next_offset:
                continue
            batches.append(batch)
        offset = read_header(batches[-1]).next_offset + rng.choice((0, 0, 0, 1, 70))
    return batches


# --- Readers ------------------------------------------------------------------------------------


def cut(batches: bytes | memoryview) -> list[bytes]:
    """The single batches of a run."""
    found = [bytes(batches[p : p + h.size_bytes]) for p, h in iter_headers(batches)]
    assert sum(map(len, found)) == len(batches)
    return found


def _as_records(foreign: Any) -> list[Record]:
    return [
        Record(
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((key, None if value is None else bytes(value)) for key, value in record.headers),
        )
        for record in foreign
    ]


def read_by_aiokafka(batch: bytes) -> list[Record]:
    """The records of one batch as aiokafka reads them; its CRC must be right."""
    reader = AiokafkaBatch(batch)
    assert reader.validate_crc()
    return _as_records(reader)


def read_by_kafka_python(batch: bytes) -> list[Record]:
    """The records of one batch as kafka-python reads them; its CRC must be right."""
    reader = KafkaPythonBatch(batch)
    assert reader.validate_crc()
    return _as_records(reader)


def records_of(columns: RecordColumns) -> list[Record]:
    """All records, asked for in every way there is."""
    records = [columns.record(i) for i in range(len(columns))]
    assert records == list(map(Record._make, columns.rows()))
    assert [record.key for record in records] == columns.keys()
    assert [record.value for record in records] == columns.values()
    return records


def records_in(batches: list[bytes]) -> list[Record]:
    return [
        record
        for batch in batches
        if not read_header(batch).is_control
        for record in iter_records(batch)
    ]


# --- The model ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """One block of the slot index, with the offset of each of its records."""

    base_offset: int
    last_offset_delta: int
    crc: int
    flags: int
    offsets: tuple[int, ...]
    slots: tuple[int, ...]


def read_index(index: bytes) -> list[IndexBlock]:
    """The blocks of a run, which must fill it to the last byte with zeros between the arrays."""
    blocks = []
    pos = 0
    while pos < len(index):
        base_offset, last_offset_delta, count, crc, flags = struct.unpack_from("<qIIII", index, pos)
        pos += 24
        slots = struct.unpack_from(f"<{count}H", index, pos)
        pos = _skip_padding(index, pos + 2 * count)
        deltas: Sequence[int] = range(count)
        if flags & SPARSE:
            deltas = struct.unpack_from(f"<{count}I", index, pos)
            pos = _skip_padding(index, pos + 4 * count)
        offsets = tuple(base_offset + delta for delta in deltas)
        blocks.append(IndexBlock(base_offset, last_offset_delta, crc, flags, offsets, slots))
    assert pos == len(index)
    return blocks


def _skip_padding(index: bytes, pos: int) -> int:
    padded = (pos + 7) // 8 * 8
    assert index[pos:padded] == bytes(padded - pos)
    return padded


def slot_of_record(record: Record, rule: SlotRule) -> int:
    """The slot by the rule's words, from the model's own hash."""
    key = record.key
    if rule.ordering_header is not None:
        for name, value in record.headers:
            if (
                name.encode("utf-8", "surrogateescape") == rule.ordering_header
                and value is not None
            ):
                key = value
    if key is None:
        if rule.is_null_key_ordered:
            return 0
        key = (record.offset // 64).to_bytes(8, "big")
    return xxh64_model(key) >> 1 >> 47


def branch_of_slot_model(slot: int, branches: int) -> int:
    """The branch whose slots, as the cuts are defined, contain the slot."""
    return next(
        i for i in range(branches) if i * 65536 // branches <= slot < (i + 1) * 65536 // branches
    )


def plain_records(batch: bytes) -> list[bytes]:
    """The bytes of each record of one batch, its length in front included."""
    header = read_header(batch)
    payload = decompress(header.codec, batch[HEADER_SIZE:], max_bytes=1 << 27)
    found = []
    pos = 0
    while pos < len(payload):
        size, body = read_varint(payload, pos)
        found.append(payload[pos : body + size])
        pos = body + size
    return found


def split_model(
    batch: bytes,
    branches: int,
    rule: SlotRule,
    branch_of: Callable[[int, int], int | None] = branch_of_slot_model,
) -> list[bytes]:
    """What each branch gets of one readable batch; no branch where `branch_of` a slot is None."""
    header = read_header(batch)
    if header.is_control:
        return [batch] * branches
    sorted_records: list[list[bytes]] = [[] for _ in range(branches)]
    for raw, record in zip(plain_records(batch), iter_records(batch), strict=True):
        branch = branch_of(slot_of_record(record, rule), branches)
        if branch is not None:
            sorted_records[branch].append(raw)
    return [with_only(batch, kept) for kept in sorted_records]


def with_only(batch: bytes, kept: list[bytes]) -> bytes:
    """What is left of a batch with some of its records: itself, nothing, or another batch."""
    if not kept:
        return b""
    return batch if len(kept) == read_header(batch).records_count else _rebuilt(batch, kept)


def _rebuilt(batch: bytes, kept: list[bytes]) -> bytes:
    new = bytearray(batch[:HEADER_SIZE] + b"".join(kept))
    struct.pack_into(">i", new, 8, len(new) - 12)
    struct.pack_into(">h", new, 21, read_header(batch).attributes & ~CODEC_MASK)
    struct.pack_into(">i", new, 57, len(kept))
    return with_crc(new)


# --- Damage -------------------------------------------------------------------------------------


def payloads_of(batches: list[bytes]) -> list[bytes | None]:
    """Plain records of those with a codec, None for what cannot be had."""
    log = b"".join(batches)
    payloads: list[bytes | None] = []
    for pos, size, codec in _kernels.compressed_batches(log):
        try:
            payloads.append(decompress(codec, log[pos : pos + size], max_bytes=1 << 20))
        except KafkaError:
            payloads.append(None)
    return payloads


def mutated(rng: random.Random, batch: bytes) -> bytes:
    """A batch with a few wrong bytes under a right CRC, inside of the compression if it has one."""
    header = read_header(batch)
    if rng.randrange(4) == 0:  # fields of the header, under the CRC
        pos, layout, value = rng.choice(
            (
                (21, ">h", rng.randrange(-(2**15), 2**15)),
                (23, ">i", rng.choice((-1, 0, 5, 2**31 - 1))),
                (57, ">i", rng.choice((-1, 0, 1, 2**31 - 1, header.records_count + 1))),
            )
        )
        return patched(batch, pos, layout, value)
    plain = bytearray(decompress(header.codec, batch[HEADER_SIZE:], max_bytes=1 << 20))
    for _ in range(rng.choice((1, 1, 2, 8))):
        if plain:
            plain[rng.randrange(len(plain))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
    if rng.randrange(4) == 0:
        del plain[rng.randrange(len(plain) + 1) :]
    payload = compress(header.codec, plain)
    if header.codec and rng.randrange(4) == 0:
        payload = payload[: rng.randrange(len(payload) + 1)]
    changed = bytearray(batch[:HEADER_SIZE] + payload)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    return with_crc(changed)
