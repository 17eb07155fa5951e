"""The compiled kernels: the hash, the framing they insist on, damage, and counting."""

import random
import struct
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
from batch_kit import (
    CODECS,
    CONTROL,
    RULES,
    SPARSE,
    UNREADABLE,
    branch_of_slot_model,
    control_batch,
    patched,
    random_log,
    read_index,
    with_crc,
    xxh64_model,
)
from hypothesis import given
from hypothesis import strategies as st

from anabranch.branch import _kernels
from anabranch.wire.record_batch import Record, build_batch, read_header

# Published results of the reference implementation, seed 0.
XXH64_VECTORS = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"foo": 0x33BF00A859C4BA3F,
    b"hello": 0x26C7827D889F6DA3,
    b"message digest": 0x066ED728FCEEB3BE,
    b"abcdefghijklmnopqrstuvwxyz": 0xCFE1F278FA89835C,
    b"0123456789abcdefghijklmnopqrstuvwxyz": 0x69196C1B3AF0BFF9,
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789": 0xAAA46907D3047814,
    b"1234567890" * 8: 0xE04A477F19EE145D,
}


def batch_of(keys: list[bytes | None], base_offset: int = 0, codec: int = 0) -> bytes:
    records = [Record(base_offset + i, 1000, key, b"value") for i, key in enumerate(keys)]
    return build_batch(records, base_offset=base_offset, codec=codec)


def split(batches: bytes, branches: int) -> tuple[list[bytes], bytes]:
    """The output by branch, and the index."""
    output, starts, _, _, index = _kernels.split(batches, [], branches, False, None)
    edges = struct.unpack(f"<{branches + 1}Q", starts)
    assert edges[0] == 0
    assert edges[-1] == len(output)
    return [output[a:b] for a, b in pairwise(edges)], index


# --- XXH64 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "expected"), XXH64_VECTORS.items())
def test_published_hashes(data: bytes, expected: int) -> None:
    """Kernel and model both give the reference implementation's published results."""
    assert _kernels.xxh64(data) == expected
    assert xxh64_model(data) == expected


@given(st.binary(max_size=300))
def test_hash_agrees_with_the_specification(data: bytes) -> None:
    """The kernel's hash is the specification's for every length, wherever the data lies."""
    assert _kernels.xxh64(data) == xxh64_model(data)
    assert _kernels.xxh64(memoryview(b"?" + data)[1:]) == xxh64_model(data)


# --- Framing ------------------------------------------------------------------------------------


def test_compressed_batches_are_named() -> None:
    """Payload position, size and codec of each batch with a codec and records, and of no other."""
    rng = random.Random(1)
    parts = [
        batch_of([b"a"], 0, codec=3),
        batch_of([b"a"], 1),
        control_batch(rng, 2),
        batch_of([b"a"] * 9, 3, codec=4),
        patched(batch_of([b"a"], 20, codec=1), 57, ">i", 0),
        patched(batch_of([b"a"], 21), 21, ">h", 7),
    ]
    starts = [sum(map(len, parts[:k])) for k in range(len(parts))]
    assert _kernels.compressed_batches(memoryview(b"".join(parts))) == [
        (starts[0] + 61, len(parts[0]) - 61, 3),
        (starts[3] + 61, len(parts[3]) - 61, 4),
        (starts[5] + 61, len(parts[5]) - 61, 7),
    ]
    assert _kernels.compressed_batches(b"") == []


@pytest.mark.parametrize(
    "break_it",
    [
        lambda batch: batch[:-1],
        lambda batch: batch + b"\0",
        lambda batch: batch[:60],
        lambda batch: patched(batch, 8, ">i", 48),
        lambda batch: patched(batch, 8, ">i", -1),
        lambda batch: patched(batch, 8, ">i", 2**31 - 1),
        lambda batch: patched(batch, 16, ">b", 1),
    ],
)
def test_only_whole_batches_are_taken(break_it: Callable[[bytes], bytes]) -> None:
    """Bytes that are not a run of whole batches of format v2 are a ValueError."""
    bad = batch_of([b"a"], 0) + break_it(batch_of([b"b"], 1))
    with pytest.raises(ValueError, match="whole batches"):
        _kernels.compressed_batches(bad)
    with pytest.raises(ValueError, match="whole batches"):
        _kernels.split(bad, [], 2, False, None)


@pytest.mark.parametrize("base_offset", [-1, 4, 5, 2**63 - 2**31])
def test_offsets_of_batches_must_rise(base_offset: int) -> None:
    """Readers look batches up by offset, so an order that makes no sense is a ValueError."""
    bad = bytearray(batch_of([b"b"], 0))
    struct.pack_into(">q", bad, 0, base_offset)
    with pytest.raises(ValueError, match="do not rise"):
        _kernels.split(batch_of([b"a"], 5) + bad, [], 2, False, None)


def test_arguments_are_checked() -> None:
    """Wrong counts and types are Python errors, and the buffers are let go."""
    plain, packed = bytearray(batch_of([b"a"])), bytearray(batch_of([b"a"], codec=3))
    bad: list[tuple[type[Exception], tuple[object, ...]]] = [
        (ValueError, (plain, [], -1, False, None)),
        (ValueError, (plain, [], 1025, False, None)),
        (ValueError, (plain, [b""], 1, False, None)),
        (ValueError, (packed, [], 1, False, None)),
        (TypeError, (packed, ["text"], 1, False, None)),
        (TypeError, (packed, None, 1, False, None)),
        (TypeError, (plain, [], 1, False, "text")),
        (TypeError, ("text", [], 1, False, None)),
    ]
    for error, arguments in bad:
        with pytest.raises(error):
            _kernels.split(*arguments)  # type: ignore[arg-type]
    plain += b"a bytearray can only grow while nobody has its buffer"
    packed += b"the same"


def test_nothing_is_kept() -> None:
    """Payloads and header name have as many references after a call as before it."""
    batch = batch_of([b"a", b"b"], codec=3)
    payload, name = b"no records in here", b"some header"
    before = sys.getrefcount(payload), sys.getrefcount(name)
    for _ in range(100):
        _kernels.split(batch, [payload], 3, False, name)
    assert (sys.getrefcount(payload), sys.getrefcount(name)) == before


def test_no_batches() -> None:
    """Nothing split is nothing, for any number of branches."""
    assert _kernels.split(b"", [], 2, False, None) == (b"", bytes(24), b"", b"", b"")
    assert _kernels.split(b"", [], 0, False, None) == (b"", bytes(8), b"", b"", b"")


# --- Damage -------------------------------------------------------------------------------------

KEYS: list[bytes | None] = [b"k%d" % i for i in range(40)]
FIRST_RECORD = 61  # one byte each of length, attributes, timestamp delta, offset delta, key length


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda b: b[:17] + bytes(4) + b[21:], id="crc"),
        pytest.param(lambda b: b[:-1] + b"?", id="bit rot in a value"),
        pytest.param(lambda b: patched(b, 57, ">i", len(KEYS) + 1), id="count too high"),
        pytest.param(lambda b: patched(b, 57, ">i", len(KEYS) - 1), id="count too low"),
        pytest.param(lambda b: patched(b, 57, ">i", -1), id="count negative"),
        pytest.param(lambda b: patched(b, 57, ">i", 2**31 - 1), id="count absurd"),
        pytest.param(lambda b: patched(b, 23, ">i", len(KEYS) - 2), id="last delta too low"),
        pytest.param(lambda b: patched(b, 23, ">i", -5), id="last delta negative"),
        pytest.param(lambda b: patched(b, FIRST_RECORD, ">B", 1), id="record length negative"),
        pytest.param(lambda b: patched(b, FIRST_RECORD, ">B", 10), id="record too short"),
        pytest.param(lambda b: patched(b, FIRST_RECORD, ">H", 0xFFFF), id="length of no end"),
        pytest.param(lambda b: patched(b, FIRST_RECORD + 2, ">Q", 2**64 - 1), id="varlong"),
        pytest.param(lambda b: patched(b, FIRST_RECORD + 3, ">B", 2), id="offset delta repeats"),
        pytest.param(lambda b: patched(b, FIRST_RECORD + 3, ">B", 1), id="offset delta negative"),
        pytest.param(lambda b: patched(b, FIRST_RECORD + 4, ">B", 3), id="key length below -1"),
        pytest.param(lambda b: patched(b, FIRST_RECORD + 4, ">B", 60), id="key too long"),
        pytest.param(lambda b: patched(b, 21, ">h", 3), id="a codec, but no such payload"),
    ],
)
def test_unreadable_batch_goes_to_slot_0(damage: Callable[[bytes], bytes]) -> None:
    """A damaged batch is passed on as it is by the first branch; its neighbours are not touched."""
    before, after = batch_of(KEYS, 0), batch_of(KEYS, 80)
    middle = damage(batch_of(KEYS, 40))
    assert middle != batch_of(KEYS, 40)
    payloads = [None] if read_header(middle).codec else []
    output, starts, ends, next_offsets, index = _kernels.split(
        before + middle + after, payloads, 4, False, None
    )
    edges = struct.unpack("<5Q", starts)
    for branch in range(4):
        first, second, third = struct.unpack_from("<3I", ends, 12 * branch)
        got = output[edges[branch] : edges[branch + 1]]
        assert got[:first] == split(before, 4)[0][branch]
        assert got[first:second] == (b"" if branch else middle)
        assert got[second:third] == split(after, 4)[0][branch]
    block = read_index(index)[1]
    assert (block.flags, block.offsets, block.slots) == (UNREADABLE, (40,), (0,))
    assert struct.unpack("<3q", next_offsets)[::2] == (40, 120)


@pytest.mark.parametrize(("length", "is_readable"), [("9880808000", True), ("9880808010", False)])
def test_long_varints(length: str, is_readable: bool) -> None:
    """A number may have needless bytes, as far as 32 bits go; its record stays as it is."""
    one = batch_of([b"a"])
    assert one[61] == 0x18  # 12 bytes
    first, second = bytes.fromhex(length) + one[62:], bytes.fromhex("100000020461620100")
    two = one[:61] + first + second
    two = patched(patched(patched(two, 8, ">i", len(two) - 12), 23, ">i", 1), 57, ">i", 2)
    outputs, index = split(two, 64)
    assert (read_index(index)[0].flags == 0) == is_readable
    if is_readable:
        assert {out[61:] for out in outputs if out} == {first, second}
    else:
        assert outputs == [two, *[b""] * 63]


def test_damaged_span_ends_at_the_next_batch() -> None:
    """A last offset delta that reaches into the next batch is not believed."""
    wide = patched(batch_of(KEYS, 0), 23, ">i", 10**6)
    assert _kernels.split(wide + batch_of(KEYS, 70), [], 2, False, None)[3] == struct.pack(
        "<2q", 70, 110
    )
    negative = patched(batch_of(KEYS, 0), 23, ">i", -7)
    assert _kernels.split(negative, [], 2, False, None)[3] == struct.pack("<q", 1)


@pytest.mark.parametrize("codec", CODECS)
def test_whole_survivor_is_the_same_bytes(codec: int) -> None:
    """A batch whose records all have one branch stays as it is, compressed if it was."""
    batch = batch_of([b"one key"] * 50, 7, codec=codec)
    payloads: list[bytes | None] = [batch_of([b"one key"] * 50, 7)[61:]] if codec else []
    output, starts, *_ = _kernels.split(batch, payloads, 8, False, None)
    assert output == batch
    edges = struct.unpack("<9Q", starts)
    branch = branch_of_slot_model(xxh64_model(b"one key") >> 48, 8)
    assert edges[branch + 1] - edges[branch] == len(batch)


def test_control_and_empty_batches() -> None:
    """A control batch is in every branch, damaged or not; a batch without records in none."""
    marker = control_batch(random.Random(1), 5)
    damaged = control_batch(random.Random(1), 6)[:-1] + b"?"
    empty = build_batch([], base_offset=7, last_offset=900)
    outputs, index = split(marker + damaged + empty, 3)
    assert outputs == [marker + damaged] * 3
    blocks = read_index(index)
    assert [block.flags for block in blocks] == [CONTROL, CONTROL, 0]
    assert [block.slots for block in blocks] == [(), (), ()]
    assert [block.last_offset_delta for block in blocks] == [0, 0, 893]


def test_damaged_empty_batch_is_not_swallowed() -> None:
    """A batch without records whose CRC is wrong may have lost its count, so it is passed on."""
    empty = patched(batch_of(KEYS), 57, ">i", 0)
    assert split(empty, 2)[0] == [b"", b""]
    damaged = empty[:17] + bytes(4) + empty[21:]
    assert split(damaged, 2)[0] == [damaged, b""]


def test_many_branches() -> None:
    """As many branches as there may be, most of them empty."""
    keys: list[bytes | None] = [b"%d" % i for i in range(2000)]
    outputs, index = split(batch_of(keys), 1024)
    counts = [read_header(out).records_count if out else 0 for out in outputs]
    slots = read_index(index)[0].slots
    assert counts == [sum(i * 64 <= slot < (i + 1) * 64 for slot in slots) for i in range(1024)]


# --- Progress -----------------------------------------------------------------------------------


def progress_model(
    index: bytes, watermarks: list[int], floors: list[int], end_offset: int
) -> list[tuple[int, ...]]:
    """Counts by going over the decoded records one by one."""
    counts = [[0, -1, 0] for _ in floors]
    for block in read_index(index):
        for offset, slot in zip(block.offsets, block.slots, strict=True):
            branch = branch_of_slot_model(slot, len(floors))
            if offset >= end_offset:
                continue
            if offset >= watermarks[branch_of_slot_model(slot, len(watermarks))]:
                counts[branch][0] += 1
                if counts[branch][1] < 0:
                    counts[branch][1] = offset
            elif offset >= floors[branch]:
                counts[branch][2] += 1
    return [tuple(column) for column in zip(*counts, strict=True)]


def progress(
    index: bytes, watermarks: list[int], floors: list[int], end_offset: int
) -> list[tuple[int, ...]]:
    opened, first, done = _kernels.progress(
        index,
        struct.pack(f"<{len(watermarks)}q", *watermarks),
        struct.pack(f"<{len(floors)}q", *floors),
        end_offset,
    )
    size = len(floors)
    return [
        struct.unpack(f"<{size}Q", opened),
        struct.unpack(f"<{size}q", first),
        struct.unpack(f"<{size}Q", done),
    ]


@given(st.data())
def test_progress_equals_counting(data: st.DataObject) -> None:
    """Open, first open and done records are what counting one by one gives."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    batches = [b for b in random_log(rng, rng.randrange(12)) if not read_header(b).codec]
    rule = rng.choice(RULES)
    index = _kernels.split(
        b"".join(batches), [], 0, rule.is_null_key_ordered, rule.ordering_header
    )[4]
    low = read_header(batches[0]).base_offset - 2 if batches else 0
    high = read_header(batches[-1]).next_offset + 2 if batches else 9
    some_offset = st.integers(low, high)
    watermarks = data.draw(st.lists(some_offset, min_size=1, max_size=9))
    floors = data.draw(st.lists(some_offset, min_size=1, max_size=9))
    end_offset = data.draw(some_offset | st.just(2**62))
    expected = progress_model(index, watermarks, floors, end_offset)
    assert progress(index, watermarks, floors, end_offset) == expected


def sparse_index() -> bytes:
    records = [Record(offset, 1, b"k", b"") for offset in (3, 5, 9)]
    index = _kernels.split(build_batch(records, base_offset=3), [], 0, False, None)[4]
    assert read_index(index)[0].flags == SPARSE
    assert read_index(index)[0].offsets == (3, 5, 9)
    return index


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda i: i[:-1], id="cut short"),
        pytest.param(lambda i: i[:20], id="half a header"),
        pytest.param(lambda i: i[:24], id="no slots"),
        pytest.param(lambda i: i + i, id="the same block twice"),
        pytest.param(lambda i: i[:12] + struct.pack("<I", 8) + i[16:], id="more than the span"),
        pytest.param(lambda i: i[:12] + struct.pack("<I", 2**32 - 1) + i[16:], id="absurd count"),
        pytest.param(lambda i: i[:20] + struct.pack("<I", 8) + i[24:], id="unknown flag"),
        pytest.param(lambda i: struct.pack("<q", -1) + i[8:], id="negative offset"),
        pytest.param(lambda i: i[:36] + struct.pack("<I", 0) + i[40:], id="deltas do not rise"),
        pytest.param(lambda i: i[:40] + struct.pack("<I", 99) + i[44:], id="delta beyond the span"),
    ],
)
def test_damaged_index_is_refused(damage: Callable[[bytes], bytes]) -> None:
    """Blocks that do not fit together are a ValueError, never a count."""
    index = sparse_index()
    assert progress(index, [0], [0], 100) == [(3,), (3,), (0,)]
    with pytest.raises(ValueError, match="damaged slot index"):
        progress(damage(index), [0], [0], 100)


@pytest.mark.parametrize("array", [b"", bytes(7), bytes(8 * 65537)])
def test_progress_checks_its_arrays(array: bytes) -> None:
    """Watermarks and floors have at least one and at most 65,536 entries."""
    with pytest.raises(ValueError, match="int64"):
        _kernels.progress(b"", array, bytes(8), 0)
    with pytest.raises(ValueError, match="int64"):
        _kernels.progress(b"", bytes(8), array, 0)


def test_crc_of_every_length() -> None:
    """Rebuilt batches of all small sizes and around the edges of the fast CRC are valid."""
    for size in [*range(400), *range(3 * 1024 - 70, 3 * 1024 + 70), 100_000]:
        value = random.Random(size).randbytes(size)
        batch = build_batch([Record(0, 1, b"k1", value), Record(1, 1, b"k4", b"")], base_offset=0)
        outputs = [out for out in split(batch, 64)[0] if out]
        assert len(outputs) == 2
        for out in outputs:
            assert with_crc(out) == out
