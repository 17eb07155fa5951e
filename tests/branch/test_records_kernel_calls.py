"""The calls behind the columns: what they take, what they refuse, and that they keep nothing."""

import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from random import Random

import pytest
from batch_kit import patched, random_log
from hypothesis import given
from hypothesis import strategies as st

from anabranch.branch import _kernels
from anabranch.branch.record_columns import read_records
from anabranch.wire.record_batch import Record, build_batch


def batch_of(base_offset: int, count: int, codec: int = 0) -> bytes:
    records = [Record(base_offset + i, 1000, b"k%d" % i, b"value") for i in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec)


def test_arguments_are_checked_and_let_go() -> None:
    """Wrong counts and types are Python errors; buffers and payloads are not kept."""
    packed = bytearray(batch_of(0, 10, codec=3))
    payload, name = batch_of(0, 10)[61:], b"some header"
    before = sys.getrefcount(payload), sys.getrefcount(name)
    bad: list[tuple[type[Exception], tuple[object, ...]]] = [
        (ValueError, (packed, [], False, None, 0)),
        (ValueError, (packed, [b"", b""], False, None, 0)),
        (ValueError, (bytes(packed[:-1]), [b""], False, None, 0)),
        (ValueError, (bytes(packed) * 2, [b"", b""], False, None, 0)),
        (TypeError, (packed, ["text"], False, None, 0)),
        (TypeError, (packed, None, False, None, 0)),
        (TypeError, (packed, [b""], False, "text", 0)),
        (TypeError, (packed, [b""], False, None, "0")),
        (TypeError, ("text", [b""], False, None, 0)),
        (OverflowError, (packed, [b""], False, None, 2**63)),
    ]
    for _ in range(20):
        assert _kernels.read_records(packed, [payload], False, name, 0)[2] == 10
        for error, arguments in bad:
            with pytest.raises(error):
                _kernels.read_records(*arguments)  # type: ignore[arg-type]
    assert (sys.getrefcount(payload), sys.getrefcount(name)) == before
    packed += b"a bytearray can only grow while nobody has its buffer"


def test_no_batches() -> None:
    """Nothing read is nothing, and the position stays."""
    assert _kernels.read_records(b"", [], False, None, 0) == (b"", 0, 0, b"", None, 0, 0)
    columns = read_records(b"", from_offset=17)
    assert (len(columns), columns.next_offset, columns.source_bytes) == (0, 17, 0)
    assert list(columns.rows()) == columns.batches == columns.damaged == []
    below = read_records(batch_of(0, 5), from_offset=9)
    assert (len(below), below.next_offset) == (0, 9)  # a position never goes back


def test_columns_keep_what_they_need() -> None:
    """A response stays alive with its columns, and goes with them."""
    response = bytearray(batch_of(0, 10))
    columns = read_records(response)
    with pytest.raises(BufferError):
        response += b"?"
    assert columns.value(9) == b"value"
    del columns
    response += b"?"
    packed = bytearray(batch_of(0, 10, codec=4))
    columns = read_records(packed)
    packed += b"?"  # its records are in a buffer of their own
    assert columns.value(9) == b"value"


@pytest.mark.parametrize(
    ("varlong", "delta"),
    [
        ("feffffffffffffffff01", 2**63 - 1),
        ("ffffffffffffffffff01", -(2**63)),
        ("80808080808080808000", 0),
        ("ffffffffffffffffff02", None),
        ("ffffffffffffffffff81", None),
        ("8080808080808080808000", None),
    ],
)
def test_long_varlongs(varlong: str, delta: int | None) -> None:
    """A timestamp delta may have ten bytes and needless ones, as far as 64 bits go."""
    body = b"\0" + bytes.fromhex(varlong) + bytes([0, 1, 1, 0])
    header = build_batch([Record(0, 0, None, None)], base_offset=0)[:61]
    batch = header + bytes([2 * len(body)]) + body
    columns = read_records(patched(batch, 8, ">i", len(batch) - 12))
    assert list(columns.timestamps) == ([] if delta is None else [delta])
    assert len(columns.damaged) == (delta is None)


def test_records_end_where_their_bytes_end() -> None:
    """Wherever plain records are cut, and whatever the last bytes say, nothing behind is read."""
    record = Record(0, 1000, b"key", b"value", (("name", b"text"), ("", None)))
    plain = build_batch([record], base_offset=0)[61:]
    batch = build_batch([record, Record(1, 1000, b"k", b"")], base_offset=0, codec=3)
    for size in range(len(plain)):
        assert len(from_payload(batch, 1, plain[:size])) == 0
    assert len(from_payload(batch, 1, plain)) == 1
    odd = (0x00, 0x01, 0x02, 0x0D, 0x7F, 0x80, 0xFF)
    for length in (1, 2, 3):
        for tail in product(odd, repeat=length):
            assert len(from_payload(batch, 2, plain + bytes(tail))) == 0
    whole = plain + bytes.fromhex("100002020261620100")
    assert len(from_payload(batch, 2, whole)) == 0
    assert len(from_payload(batch, 2, plain + bytes.fromhex("0e000002026101"))) == 0
    assert len(from_payload(batch, 2, plain + bytes.fromhex("0e00000202610100"))) == 2


def from_payload(batch: bytes, count: int, payload: bytes) -> range:
    """The records of a compressed batch, if these are its plain records."""
    counted = patched(batch, 57, ">i", count)
    return range(_kernels.read_records(counted, [payload], False, None, 0)[2])


def test_whole_batches() -> None:
    """Counted up to the first byte that no batch can be, or that belongs to one cut short."""
    log = batch_of(5, 3) + batch_of(8, 3, codec=1)
    assert _kernels.whole_batches(b"") == 0
    assert _kernels.whole_batches(log) == len(log)
    assert _kernels.whole_batches(log + log) == len(log)  # offsets must rise
    assert _kernels.whole_batches(log[:-1]) == len(batch_of(5, 3))
    assert _kernels.whole_batches(log + bytes(100)) == len(log)
    assert _kernels.whole_batches(memoryview(b"?" + log)[1:]) == len(log)
    with pytest.raises(TypeError):
        _kernels.whole_batches("text")  # type: ignore[arg-type]


def fields(buffer: bytes, starts: list[int], sizes: list[int]) -> list[bytes | None]:
    return _kernels.fields(
        buffer, struct.pack(f"<{len(starts)}i", *starts), struct.pack(f"<{len(sizes)}i", *sizes)
    )


@given(st.data())
def test_fields_are_slices(data: st.DataObject) -> None:
    """What lies in the buffer is cut out of it, -1 is None, anything else a ValueError."""
    buffer = data.draw(st.binary(max_size=30))
    pairs = data.draw(st.lists(st.tuples(st.integers(-3, 33), st.integers(-3, 33)), max_size=5))
    starts, sizes = [start for start, _ in pairs], [size for _, size in pairs]
    if all(n == -1 or (p >= 0 and n >= 0 and p + n <= len(buffer)) for p, n in pairs):
        expected = [None if size < 0 else buffer[start : start + size] for start, size in pairs]
        assert fields(buffer, starts, sizes) == expected
    else:
        with pytest.raises(ValueError, match="no field"):
            fields(buffer, starts, sizes)


def test_fields_check_their_arrays() -> None:
    """Starts and sizes are int32 arrays of one length, and large numbers do not wrap."""
    assert fields(b"abc", [], []) == []
    for starts, sizes in ((bytes(4), bytes(8)), (bytes(4), b""), (bytes(3), bytes(3))):
        with pytest.raises(ValueError, match="int32 arrays"):
            _kernels.fields(b"abc", starts, sizes)
    for start, size in ((2**31 - 1, 2**31 - 1), (-1, 0), (-3, 3), (3, -2), (4, 0), (1, 3)):
        with pytest.raises(ValueError, match="no field"):
            fields(b"abc", [start], [size])
    assert fields(b"abc", [3, -1, 9], [0, -1, -1]) == [b"", None, None]
    with pytest.raises(TypeError):
        _kernels.fields("text", b"", b"")  # type: ignore[arg-type]
    name = bytes(4)
    before = sys.getrefcount(name), sys.getrefcount(None)
    for _ in range(1000):
        _kernels.fields(name, name, struct.pack("<i", -1))
    assert sys.getrefcount(name) == before[0]
    assert abs(sys.getrefcount(None) - before[1]) < 100


def test_threads_read_side_by_side() -> None:
    """The loop runs without the interpreter's lock, on memory that nobody else has."""
    log = b"".join(random_log(Random(3), 60))
    expected = list(read_records(log).rows())
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(lambda _: list(read_records(log).rows()), range(40)):
            assert rows == expected
