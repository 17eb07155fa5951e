"""Leaving out records that are done: what stays, byte for byte, and how far it goes."""

import random
import struct
import sys
from collections.abc import Callable

import pytest
from batch_kit import (
    CODECS,
    UNREADABLE,
    control_batch,
    cut,
    mutated,
    patched,
    payloads_of,
    plain_records,
    random_log,
    read_by_aiokafka,
    read_by_kafka_python,
    read_index,
    with_crc,
    with_only,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.branch import _kernels
from anabranch.branch import withhold as withhold_module
from anabranch.branch.slots import DEFAULT_RULE
from anabranch.branch.split import ChunkRead, split_batches
from anabranch.branch.withhold import Remainder, pack_ranges, withhold, withhold_read
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.wire.record_batch import Record, build_batch, iter_records, read_header

ALL = 2**62
seeds = st.integers(0, 2**32)


def batch_of(base_offset: int, count: int, codec: int = 0) -> bytes:
    records = [Record(base_offset + i, 1000, b"k%d" % i, b"v" * 50) for i in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec)


def random_done(rng: random.Random, batches: list[bytes]) -> OffsetRanges:
    """Offsets here and there, whole batches, edges of batches, or all."""
    first = read_header(batches[0]).base_offset
    end = read_header(batches[-1]).next_offset
    ranges = []
    for _ in range(rng.choice((0, 1, 3, 10, 100))):
        header = read_header(rng.choice(batches))
        start, last = rng.choice(
            (
                (rng.randrange(first, end), None),
                (rng.randrange(header.base_offset, header.next_offset), None),
                (header.base_offset, header.last_offset),
                (header.base_offset + 1, max(header.last_offset - 1, header.base_offset + 1)),
                (header.last_offset, header.last_offset + rng.randrange(3)),
            )
        )
        ranges.append((start, start + rng.choice((0, 0, 1, 5, 50)) if last is None else last))
    if rng.randrange(20) == 0:
        ranges.append((0, end))
    return OffsetRanges(ranges)


def withhold_model(batch: bytes, done: OffsetRanges) -> bytes:
    """What is left of one readable batch."""
    header = read_header(batch)
    if header.is_control or header.records_count == 0:
        return batch
    pairs = zip(plain_records(batch), iter_records(batch), strict=True)
    return with_only(batch, [raw for raw, record in pairs if record.offset not in done])


@settings(max_examples=250)
@given(seeds)
def test_rest_is_the_models(seed: int) -> None:
    """Batch by batch, what is left has exactly the bytes that a slow model leaves."""
    rng = random.Random(seed)
    batches = random_log(rng, 8)
    if not batches:
        return
    done = random_done(rng, batches)
    log = memoryview(b"".join(batches))
    parts = [withhold_model(batch, done) for batch in batches]
    rest = withhold(log, done)
    assert rest.records == b"".join(parts)
    ends = [read_header(batch).next_offset for batch in batches]
    kept_ends = [end for end, part in zip(ends, parts, strict=True) if part]
    assert rest.next_offset == (kept_ends[-1] if kept_ends else None)
    assert (rest.covered_offset, rest.source_bytes) == (ends[-1], len(log))
    assert rest == withhold(log, pack_ranges(done))
    if parts == batches:
        assert rest.records is log


@settings(max_examples=100)
@given(seeds)
def test_stock_readers_find_the_rest(seed: int) -> None:
    """Other implementations read the records that are not done, as they were, and no others."""
    rng = random.Random(seed)
    batches = random_log(rng, 8)
    if not batches:
        return
    done = random_done(rng, batches)
    found = cut(withhold(memoryview(b"".join(batches)), done).records)
    for read in (read_by_aiokafka, read_by_kafka_python):
        expected = [
            record
            for batch in batches
            if not read_header(batch).is_control
            for record in read(batch)
            if record.offset not in done
        ]
        readable = [batch for batch in found if not read_header(batch).is_control]
        assert [record for batch in readable for record in read(batch)] == expected
    is_marker = [read_header(batch).is_control for batch in batches]
    assert sum(is_marker) == sum(read_header(batch).is_control for batch in found)


def test_kip_x_example() -> None:
    """With 40 the last done offset below and [43-45], [48-49] done, 41, 42, 46, 47 and 50 stay."""
    rest = withhold(memoryview(batch_of(40, 11)), OffsetRanges([(40, 40), (43, 45), (48, 49)]))
    assert [r.offset for r in iter_records(rest.records)] == [41, 42, 46, 47, 50]
    assert read_header(rest.records).base_offset == 40
    assert rest.next_offset == rest.covered_offset == 51


@pytest.mark.parametrize("codec", CODECS)
def test_untouched_batches_are_not_opened(codec: int) -> None:
    """What is not done at all, or done altogether, is neither decompressed nor rebuilt."""
    batches = [batch_of(i * 10, 10, codec) for i in range(4)]
    log = memoryview(b"".join(batches))
    ranges = pack_ranges(OffsetRanges([(3, 4), (20, 29)]))
    opened = _kernels.compressed_batches(log, ranges)
    assert [pos for pos, _, _ in opened] == ([61] if codec else [])
    rest = withhold(log, ranges)
    first, *others = cut(rest.records)
    assert others == [batches[1], batches[3]]
    assert [r.offset for r in iter_records(first)] == [0, 1, 2, *range(5, 10)]
    assert read_header(first).codec == 0
    assert withhold(log, OffsetRanges([(40, 99)])).records is log
    assert withhold(log, EMPTY).records is log


@pytest.mark.parametrize("count", [2, 3, 7, 8])
def test_every_second_record(count: int) -> None:
    """As many pieces as there can be, of many batches, and none lost between them."""
    log = memoryview(b"".join(batch_of(i * count, count) for i in range(9)))
    for odd in (0, 1):
        done = OffsetRanges([(i, i) for i in range(9 * count) if i % 2 == odd])
        found = cut(withhold(log, done).records)
        offsets = [record.offset for batch in found for record in iter_records(batch)]
        assert offsets == [i for i in range(9 * count) if i % 2 != odd]


def test_ranges_in_the_gaps_of_a_batch() -> None:
    """A batch of one branch has few of its offsets; done ones of other branches change nothing."""
    records = [Record(offset, 1, b"k", b"v") for offset in (100, 150, 199)]
    log = memoryview(build_batch(records, base_offset=100, codec=4))
    gaps = OffsetRanges([(101, 149), (151, 198)])
    assert withhold(log, gaps).records is log
    rest = withhold(log, gaps.union(OffsetRanges([(150, 150)])))
    assert [r.offset for r in iter_records(rest.records)] == [100, 199]


def test_nothing_left() -> None:
    """A reader of which everything is done gets no batch but learns how far it got."""
    log = memoryview(batch_of(5, 10) + batch_of(15, 10, codec=3))
    for done in ([(5, 24)], [(5, 10), (11, 14), (15, 15), (16, 24)], [(0, 99)]):
        packed = b"".join(struct.pack("<qq", *pair) for pair in done)
        assert withhold(log, packed) == Remainder(memoryview(b""), None, 25, len(log))


def test_markers_and_empty_batches_stay() -> None:
    """Who reads must see how transactions end, whatever is done."""
    marker = control_batch(random.Random(1), 5)
    empty = build_batch([], base_offset=7, last_offset=900)
    log = memoryview(marker + empty)
    assert withhold(log, OffsetRanges([(0, 1000)])).records is log


# --- Damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda b: b[:17] + bytes(4) + b[21:], id="crc"),
        pytest.param(lambda b: patched(b, 57, ">i", 41), id="count too high"),
        pytest.param(lambda b: patched(b, 57, ">i", 39), id="count too low"),
        pytest.param(lambda b: patched(b, 57, ">i", -1), id="count negative"),
        pytest.param(lambda b: patched(b, 57, ">i", 2**31 - 1), id="count absurd"),
        pytest.param(lambda b: patched(b, 23, ">i", 38), id="last delta too low"),
        pytest.param(lambda b: patched(b, 61, ">B", 1), id="record length negative"),
        pytest.param(lambda b: patched(b, 61, ">H", 0xFFFF), id="length of no end"),
        pytest.param(lambda b: patched(b, 64, ">B", 2), id="offset delta repeats"),
        pytest.param(lambda b: patched(b, 65, ">B", 60), id="key too long"),
        pytest.param(lambda b: patched(b, 21, ">h", 3), id="a codec, but no such payload"),
    ],
)
def test_unreadable_batch_is_one_record(damage: Callable[[bytes], bytes]) -> None:
    """A damaged batch stays as it is until its base offset is done, whatever else is."""
    middle = damage(batch_of(40, 40))
    before, after = batch_of(0, 40), batch_of(80, 40)
    log = memoryview(before + middle + after)
    assert withhold(log, OffsetRanges([(41, 79)])).records is log
    assert withhold(log, OffsetRanges([(50, 50)])).records is log
    assert withhold(log, OffsetRanges([(40, 40)])).records == before + after
    assert withhold(log, OffsetRanges([(0, 60)])).records == after
    assert withhold(log, OffsetRanges([(40, 79)])).records == before + after


@settings(max_examples=400)
@given(seeds)
def test_damage_stays_in_its_batch(seed: int) -> None:
    """Wrong bytes under a right CRC neither change a neighbour nor break what is left."""
    rng = random.Random(seed)
    batches = random_log(rng, 6)
    if not batches:
        return
    victim = rng.randrange(len(batches))
    done = random_done(rng, batches)
    damaged = [*batches]
    damaged[victim] = mutated(rng, batches[victim])
    parts = [withhold(memoryview(batch), done).records for batch in damaged]
    rest = withhold(memoryview(b"".join(damaged)), done)
    for k, part in enumerate(parts):
        if k != victim:
            assert part == withhold_model(batches[k], done)
    header = read_header(damaged[victim])
    index = _kernels.split(damaged[victim], payloads_of([damaged[victim]]), 0, False, None)[4]
    if read_index(index)[0].flags & UNREADABLE:
        assert parts[victim] == (b"" if header.base_offset in done else damaged[victim])
    else:
        assert parts[victim] == withhold_model(damaged[victim], done)
    if victim + 1 == len(batches) or header.next_offset <= read_header(batches[victim + 1])[0]:
        assert rest.records == b"".join(parts)  # else the next batch cuts its span


@settings(max_examples=200)
@given(seeds)
def test_cut_or_random_bytes(seed: int) -> None:
    """A log cut anywhere, or garbage in its framing, is a ValueError or a sound result."""
    rng = random.Random(seed)
    batches = random_log(rng, 5)
    if not batches:
        return
    done = pack_ranges(random_done(rng, batches))
    log = bytearray(b"".join(batches))
    if rng.randrange(2):
        del log[rng.randrange(len(log) + 1) :]
    for _ in range(rng.randrange(3)):
        if log:
            log[rng.randrange(len(log))] = rng.randrange(256)
    try:
        payloads = [None] * len(_kernels.compressed_batches(log, done))
        kept, next_offset, covered = _kernels.withhold(log, payloads, done)
    except ValueError:
        return
    assert -1 <= next_offset <= covered
    assert all(with_crc(batch) == batch or batch in cut(log) for batch in cut(kept or b""))


# --- Arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranges",
    [
        bytes(8),
        struct.pack("<2q", 5, 4),
        struct.pack("<4q", 0, 5, 5, 6),
        struct.pack("<4q", 10, 11, 0, 1),
    ],
)
def test_ranges_are_checked(ranges: bytes) -> None:
    """Sets are whole pairs, sorted and disjoint; anything else is a ValueError."""
    log = batch_of(0, 10)
    with pytest.raises(ValueError, match="pairs of int64"):
        _kernels.withhold(log, [], ranges)
    with pytest.raises(ValueError, match="pairs of int64"):
        _kernels.compressed_batches(log, ranges)


def test_arguments_are_checked_and_let_go() -> None:
    """Wrong counts and types are Python errors; buffers, payloads and ranges are not kept."""
    packed = bytearray(batch_of(0, 10, codec=3))
    ranges = struct.pack("<2q", 2, 3)
    payload = batch_of(0, 10)[61:]
    before = sys.getrefcount(ranges), sys.getrefcount(payload)
    for _ in range(20):
        assert _kernels.withhold(packed, [payload], ranges)[0]
        for error, arguments in (
            (ValueError, (packed, [], ranges)),
            (ValueError, (packed, [payload, payload], ranges)),
            (ValueError, (packed, [payload], b"")),
            (TypeError, (packed, ["text"], ranges)),
            (TypeError, (packed, None, ranges)),
            (TypeError, (packed, [payload], None)),
            (TypeError, ("text", [payload], ranges)),
        ):
            with pytest.raises(error):
                _kernels.withhold(*arguments)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            _kernels.compressed_batches(packed, "text")  # type: ignore[arg-type]
    del arguments
    assert (sys.getrefcount(ranges), sys.getrefcount(payload)) == before
    packed += b"a bytearray can only grow while nobody has its buffer"
    with pytest.raises(ValueError, match="whole batches"):
        _kernels.withhold(packed, [payload], ranges)
    assert _kernels.withhold(b"", [], ranges) == (None, -1, -1)
    with pytest.raises(ValueError, match="no batches"):
        withhold(memoryview(b""), EMPTY)


def test_ends_early_before_too_many_plain_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would decompress to more than is bearable is left for another call, but never all."""
    log = memoryview(b"".join(batch_of(i * 50, 50, codec=4) for i in range(9)))
    done = OffsetRanges([(i * 50, i * 50) for i in range(9)])
    whole = withhold(log, done)
    monkeypatch.setattr(withhold_module, "PLAIN_BYTES_MAX", 3 * 3500)
    rests, rest = [], log
    while rest:
        rests.append(withhold(rest, done))
        rest = rest[rests[-1].source_bytes :]
    assert [got.covered_offset for got in rests] == [150, 300, 450]
    assert b"".join(got.records for got in rests) == whole.records
    monkeypatch.setattr(withhold_module, "PLAIN_BYTES_MAX", 1)
    assert withhold(log, done).covered_offset == 50


# --- Reads of a chunk ---------------------------------------------------------------------------


@settings(max_examples=150)
@given(seeds)
def test_read_of_a_branch_without_what_is_done(seed: int) -> None:
    """A read keeps its meaning: what is left, where that ends, and how far the search went."""
    rng = random.Random(seed)
    batches = random_log(rng, 8)
    if not batches:
        return
    done = random_done(rng, batches)
    chunk = split_batches(memoryview(b"".join(batches)), 3, DEFAULT_RULE)
    offset = rng.randrange(chunk.first_offset, chunk.next_offset)
    read = chunk.read(rng.randrange(3), offset, ALL, rng.choice((0, 500, ALL)), min_one_batch=True)
    got = withhold_read(read, offset, done)
    parts = {
        read_header(batch).next_offset: withhold_model(batch, done) for batch in cut(read.records)
    }
    kept = [end for end, part in parts.items() if part]
    expected = ChunkRead(
        memoryview(b"".join(parts.values())), kept[-1] if kept else offset, read.covered_offset
    )
    assert got == expected


def test_read_that_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read is not said to cover what was not looked at."""
    log = memoryview(b"".join(batch_of(i * 50, 50, codec=4) for i in range(9)))
    read = ChunkRead(log, 450, 700)
    done = OffsetRanges([(i * 50, i * 50) for i in range(9)])
    assert withhold_read(read, 0, done).covered_offset == 700
    assert withhold_read(read, 0, EMPTY) is read
    nothing = ChunkRead(memoryview(b""), 3, 700)
    assert withhold_read(nothing, 3, done) is nothing
    monkeypatch.setattr(withhold_module, "PLAIN_BYTES_MAX", 3 * 3500)
    assert withhold_read(read, 0, done)[1:] == (150, 150)
    assert withhold_read(read, 0, OffsetRanges([(0, 149), (151, 151)]))[1:] == (450, 700)
