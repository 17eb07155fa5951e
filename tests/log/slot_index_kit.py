"""Slot index blocks made naively from a log, and short ways to have an index built."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import pack

from log_kit import NOW_MS

from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.branch.split import index_batches
from anabranch.log.partition_log import PartitionLog
from anabranch.log.segment import Segment
from anabranch.log.slot_index import SlotIndexes, slot_indexes_of
from anabranch.log.slot_index_steps import BuildStep, LoadStep
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import (
    Record,
    build_batch,
    crc_ok,
    iter_headers,
    iter_records,
)

END = 2**62
SPARSE, CONTROL, UNREADABLE = 1, 2, 4
_MASK = 2**64 - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _round(lane: int, value: int) -> int:
    return _rotated((lane + value * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0, by its published description."""
    at = 0
    if len(data) >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at + 32 <= len(data):
            for i in range(4):
                lanes[i] = _round(lanes[i], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        found = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = _P5
    found = (found + len(data)) & _MASK
    while at + 8 <= len(data):
        found ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        found = (_rotated(found, 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        found ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        found = (_rotated(found, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def slot_of(record: Record, rule: SlotRule) -> int:
    key = record.key
    if rule.ordering_header is not None:
        for name, value in record.headers:
            if name.encode() == rule.ordering_header:
                key = value
    if key is None:
        if rule.is_null_key_ordered:
            return 0
        key = (record.offset // 64).to_bytes(8, "big")
    return (xxh64(key) >> 1) >> 47


def block_of(batch: bytes, rule: SlotRule = DEFAULT_RULE) -> bytes:
    """The block of one batch."""
    ((_, header),) = iter_headers(batch)
    flags, slots, deltas = 0, [], []
    try:
        if not crc_ok(batch, 0, len(batch)):
            raise ValueError
        records = list(iter_records(batch))
        if header.is_control:
            flags = CONTROL
        else:
            slots = [slot_of(record, rule) for record in records]
            deltas = [record.offset - header.base_offset for record in records]
    except (ValueError, KafkaError):
        flags, slots, deltas = UNREADABLE, [0], [0]
    if deltas != list(range(len(deltas))):
        flags |= SPARSE
    block = pack(
        "<qIIII", header.base_offset, header.last_offset_delta, len(slots), header.crc, flags
    )
    block += _padded(pack(f"<{len(slots)}H", *slots))
    if flags & SPARSE:
        block += _padded(pack(f"<{len(deltas)}I", *deltas))
    return block


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def batches_of(segment: Segment) -> Iterator[bytes]:
    content = segment.path().read_bytes()[: segment.size_bytes]
    for position, header in iter_headers(content):
        yield content[position : position + header.size_bytes]


def naive_blocks(
    segments: Sequence[Segment],
    rule: SlotRule = DEFAULT_RULE,
    from_offset: int = 0,
    upto: int = END,
) -> bytes:
    """The blocks of all batches that reach `from_offset` and begin below `upto`."""
    found = []
    for segment in segments:
        for batch in batches_of(segment):
            ((_, header),) = iter_headers(batch)
            if header.last_offset >= from_offset and header.base_offset < upto:
                found.append(block_of(batch, rule))
    return b"".join(found)


def build(
    log: PartitionLog, rule: SlotRule = DEFAULT_RULE, from_offset: int = 0, upto: int = END
) -> list[type[BuildStep] | type[LoadStep]]:
    """Run all steps that are missing; which kinds they were."""
    indexes = slot_indexes_of(log)
    kinds: list[type[BuildStep] | type[LoadStep]] = []
    while (step := indexes.missing(rule, from_offset, upto)) is not None:
        step.run()
        indexes.add(step)
        kinds.append(type(step))
        assert len(kinds) < 10_000
    return kinds


def write_files(indexes: SlotIndexes, *, with_unfinished: bool = False) -> int:
    """Run all write steps; how many there were."""
    count = 0
    while (step := indexes.next_write(with_unfinished=with_unfinished)) is not None:
        step.run()
        indexes.add(step)
        count += 1
    return count


def indexed(
    log: PartitionLog, rule: SlotRule = DEFAULT_RULE, from_offset: int = 0, upto: int = END
) -> bytes:
    """The blocks that the index has."""
    return b"".join(slot_indexes_of(log).blocks(rule, from_offset, upto))


def check(log: PartitionLog, rule: SlotRule = DEFAULT_RULE) -> None:
    """Build what is missing and compare all of it with the log."""
    build(log, rule)
    assert indexed(log, rule) == naive_blocks(log.segments, rule)


def offer(
    log: PartitionLog, offset: int, max_bytes: int = 2**20, rule: SlotRule = DEFAULT_RULE
) -> int:
    """Offer the blocks of what a filtered read of some bytes finds; the offset after it."""
    batches = log.read(offset, max_bytes)
    if not batches:
        return offset
    next_offset = [header for _, header in iter_headers(batches)][-1].next_offset
    blocks = index_batches(batches, rule)
    slot_indexes_of(log).note(rule, log.replacements, next_offset, blocks)
    return next_offset


def keyed_batch(
    *keys: bytes | None,
    value: bytes | None = b"value",
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    headers: tuple[tuple[str, bytes | None], ...] = (),
    attributes: int = 0,
) -> memoryview:
    """A writable batch with a record for each key."""
    records = [Record(i, NOW_MS, key, value, headers) for i, key in enumerate(keys)]
    producer_id, producer_epoch, base_sequence = producer
    return memoryview(
        bytearray(
            build_batch(
                records,
                base_offset=0,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                attributes=attributes,
            )
        )
    )


def put(log: PartitionLog, *keys: bytes | None, **changes: object) -> None:
    """Append a batch with a record for each key."""
    log.append(keyed_batch(*keys, **changes), now_ms=NOW_MS)


def slots_files(folder: Path) -> list[str]:
    """The names of all files that have to do with slot indexes, leftovers included."""
    return sorted(path.name for path in folder.iterdir() if ".slots" in path.name)
