"""Zigzag varints: golden bytes from the definition, round trips, and what bad ones get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.varint import append_varint, read_varint, read_varlong

GOLDEN = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
GOLDEN_LONG = [(2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")]


def encoded(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


@pytest.mark.parametrize(("value", "wire"), GOLDEN + GOLDEN_LONG)
def test_golden(value: int, wire: str) -> None:
    """Values at every length's edge have the bytes of the zigzag definition."""
    assert encoded(value).hex() == wire
    assert read_varlong(bytes.fromhex(wire), 0) == (value, len(wire) // 2)


@given(value=st.integers(-(2**31), 2**31 - 1), before=st.binary(max_size=3))
def test_int32_round_trip(value: int, before: bytes) -> None:
    """An int32 is read back from any position."""
    data = before + encoded(value)
    assert read_varint(data + b"\xff", len(before)) == (value, len(data))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_int64_round_trip(value: int) -> None:
    """An int64 is read back."""
    assert read_varlong(encoded(value), 0)[0] == value


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        ("", "past the end"),
        ("80", "past the end"),
        ("ffffffff", "past the end"),
        ("ffffffff1f", "does not fit in 32"),
        ("ffffffffff", "longer than 32"),
    ],
)
def test_bad_int32(wire: str, why: str) -> None:
    """A varint that is cut, too long or too large is CORRUPT_MESSAGE."""
    with pytest.raises(KafkaError, match=why) as caught:
        read_varint(bytes.fromhex(wire), 0)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_bad_int64() -> None:
    """The same holds for the long kind, whose tenth byte may only be 0 or 1."""
    with pytest.raises(KafkaError, match="does not fit in 64"):
        read_varlong(b"\xff" * 9 + b"\x02", 0)
    with pytest.raises(KafkaError, match="longer than 64"):
        read_varlong(b"\xff" * 11, 0)
