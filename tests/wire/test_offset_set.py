"""Sets of offsets as bytes: golden forms, every set read back, and whatever anybody may send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.wire import offset_set
from anabranch.wire.messages.cooperation import OffsetSet
from anabranch.wire.offset_set import BITMAP, RANGES, decode, encode

OFFSET_MAX = 2**63 - 1


def ranges(*pairs: tuple[int, int]) -> OffsetRanges:
    return OffsetRanges(pairs)


# Golden ---------------------------------------------------------------------------------------

GOLDEN = [
    (ranges(), RANGES, ""),
    (ranges((0, 0)), RANGES, "00 00"),
    (ranges((41, 50)), RANGES, "29 09"),
    (ranges((0, 127), (129, 256)), RANGES, "00 7f 00 7f"),
    (ranges((128, 128), (300, 300)), RANGES, "80 01 00 aa 01 00"),
    (ranges((2**63 - 1, 2**63 - 1)), RANGES, "ff ff ff ff ff ff ff ff 7f 00"),
    (ranges((43, 45), (48, 49)), BITMAP, "2b 67"),
    (ranges((100, 100), (102, 102), (105, 106), (108, 108)), BITMAP, "64 65 01"),
    (ranges((300, 300), (302, 302), (304, 304)), BITMAP, "ac 02 15"),
]


@pytest.mark.parametrize(("offsets", "codec", "content"), GOLDEN)
def test_golden(offsets: OffsetRanges, codec: int, content: str) -> None:
    """The bytes are these, in the shorter form, and mean the same when read."""
    written = encode(offsets)
    assert (written.codec, written.content.hex(" ")) == (codec, content)
    assert decode(written) == offsets


def test_the_longer_form_is_read_too() -> None:
    """Whoever writes may choose; the bits after the last one, and empty maps, say nothing."""
    both = ranges((10, 11), (13, 13))
    assert decode(OffsetSet(codec=RANGES, content=b"\x0a\x01\x00\x00")) == both
    assert decode(OffsetSet(codec=BITMAP, content=b"\x0a\x0b")) == both
    assert decode(OffsetSet(codec=BITMAP, content=b"\x0a\x0b\x00\x00")) == both
    for content in (b"", b"\x0a", b"\x0a\x00"):
        assert decode(OffsetSet(codec=BITMAP, content=content)) == EMPTY


def test_a_bitmap_that_would_be_too_long_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written can be read: a bitmap has its limit, and ranges take the rest."""
    monkeypatch.setattr(offset_set, "BITMAP_MAX_BYTES", 64)
    last = 64 * 8 - 1
    dense = OffsetRanges((offset, offset + 4) for offset in range(0, last - 4, 14))
    most = dense.union(ranges((last, last)))
    assert (encode(most).codec, len(encode(most).content)) == (BITMAP, 64 + 1)
    assert decode(encode(most)) == most
    more = dense.union(ranges((last + 1, last + 1)))
    assert encode(more).codec == RANGES
    assert decode(encode(more)) == more


# Properties -----------------------------------------------------------------------------------

OFFSETS = st.one_of(st.integers(0, 300), st.integers(0, OFFSET_MAX - 64))
SETS = st.lists(st.tuples(OFFSETS, st.integers(0, 63)), max_size=40).map(
    lambda pairs: OffsetRanges((first, first + length) for first, length in pairs)
)
DENSE = st.tuples(st.integers(0, 10**6), st.lists(st.booleans(), max_size=400)).map(
    lambda made: OffsetRanges(
        (made[0] + i, made[0] + i) for i, is_done in enumerate(made[1]) if is_done
    )
)


@given(st.one_of(SETS, DENSE))
def test_every_set_is_read_back(offsets: OffsetRanges) -> None:
    """In one form or the other, never longer than as a bitmap."""
    written = encode(offsets)
    assert decode(written) == offsets
    if offsets:
        span = offsets.last - next(iter(offsets)).first
        if span < offset_set.BITMAP_MAX_BYTES:
            assert len(written.content) <= span // 8 + 1 + 9


@given(st.integers(-128, 127), st.binary(max_size=64))
def test_whatever_is_sent(codec: int, content: bytes) -> None:
    """It is a set of offsets, or it is refused as a bad request; nothing else happens."""
    try:
        found = decode(OffsetSet(codec=codec, content=content))
    except KafkaError as refusal:
        assert refusal.code is ErrorCode.INVALID_REQUEST
        return
    assert codec in (RANGES, BITMAP)
    assert all(0 <= first <= last <= OFFSET_MAX for first, last in found)
    assert decode(encode(found)) == found


# Hostile --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "content", "why"),
    [
        (2, b"", "codec 2 is not known"),
        (-1, b"\x00\x00", "codec -1 is not known"),
        (RANGES, b"\x80", "ends in the middle of a number"),
        (RANGES, b"\x05", "ends in the middle of a range"),
        (RANGES, b"\x05\x01\x02", "ends in the middle of a range"),
        (RANGES, b"\xff" * 8 + b"\x80\x01\x00", "does not fit in 63 bits"),
        (RANGES, b"\xff" * 8 + b"\x7f\x01", "9223372036854775808 is no offset"),
        (RANGES, b"\x00" + b"\xff" * 8 + b"\x7f\x00\x00", "9223372036854775809 is no offset"),
        (BITMAP, b"\x80", "ends in the middle of a number"),
        (BITMAP, b"\xff" * 8 + b"\x7f\x02", "ends beyond the last offset"),
    ],
)
def test_refused(codec: int, content: bytes, why: str) -> None:
    """What is no set of offsets is a bad request that says why."""
    with pytest.raises(KafkaError, match=why) as caught:
        decode(OffsetSet(codec=codec, content=content))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_the_last_offset_there_can_be() -> None:
    """It is one in either form."""
    last = ranges((OFFSET_MAX, OFFSET_MAX))
    assert decode(OffsetSet(codec=BITMAP, content=b"\xff" * 8 + b"\x7f\x01")) == last
    assert decode(encode(last)) == last


def test_limits() -> None:
    """A million ranges, in a bitmap of 1 MiB."""
    assert (offset_set.RANGES_MAX, offset_set.BITMAP_MAX_BYTES) == (1_000_000, 1_048_576)


def test_too_many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be are read, one more is not, in either form."""
    monkeypatch.setattr(offset_set, "RANGES_MAX", 100)
    bits = b"\x55" * 25
    assert len(decode(OffsetSet(codec=RANGES, content=b"\x00\x00" * 100))) == 100
    assert len(decode(OffsetSet(codec=BITMAP, content=b"\x00" + bits))) == 100
    for codec, content in (
        (RANGES, b"\x00\x00" * 101),
        (BITMAP, b"\x00" + bits + b"\x01"),
    ):
        with pytest.raises(KafkaError, match="more than 100 ranges"):
            decode(OffsetSet(codec=codec, content=content))


def test_too_long_a_bitmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length alone refuses it, whatever it says."""
    monkeypatch.setattr(offset_set, "BITMAP_MAX_BYTES", 64)
    assert decode(OffsetSet(codec=BITMAP, content=b"\x00" + bytes(64))) == EMPTY
    with pytest.raises(KafkaError, match="may have 64 bytes, not 65"):
        decode(OffsetSet(codec=BITMAP, content=b"\x00" + bytes(65)))
