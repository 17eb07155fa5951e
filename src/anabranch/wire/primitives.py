"""The variable-length pieces of Kafka's encoding that the generated codecs call."""

import struct
from collections.abc import Callable
from typing import Any, NoReturn

Buffer = bytes | bytearray | memoryview

STRING_MAX_BYTES = 32767


class DecodeError(ValueError):
    """Bytes that are not the message they claim to be."""


class EncodeError(ValueError):
    """A message that its version cannot carry."""


# Nearly every length and tag count is small, so their bytes are made once.
SMALL_UVARINTS: list[bytes] = [
    bytes([n]) if n < 128 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(1 << 14)
]


# Lists of numbers are short too (replicas, in-sync replicas, partitions of one topic), and a
# precompiled Struct for each short length is three times faster than formatting one.
SHORT_ARRAY = 32


def short_array_codecs(format: str, method: str) -> list[Callable[..., Any]]:
    """The `method` ("pack", "unpack_from") of the Structs for 0 to SHORT_ARRAY elements."""
    return [getattr(struct.Struct(f">{n}{format}"), method) for n in range(SHORT_ARRAY + 1)]


def encode_uvarint(value: int) -> bytes:
    """An unsigned varint, at most five bytes (32 bits)."""
    if value < len(SMALL_UVARINTS):
        return SMALL_UVARINTS[value]
    if value < 1 << 21:  # the length of most record sets
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value > 0xFFFFFFFF:
        raise EncodeError(f"{value} does not fit a 32-bit varint")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def finish_uvarint(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """The value whose first byte (with its continuation bit set) was already read."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise DecodeError("varint is longer than 32 bits")
            return value, pos
        shift += 7
        if shift > 28:
            raise DecodeError("varint is longer than five bytes")


def finish_string_length(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """As `finish_uvarint`, for a string: Kafka keeps int16's limit in the compact form too."""
    value, pos = finish_uvarint(buf, pos, first)
    if value > STRING_MAX_BYTES + 1:
        bad_length(value - 1, "a string")
    return value, pos


def encode_string_length(value: int) -> bytes:
    """The compact length of a string (its bytes + 1), within the limit that clients check."""
    if value > STRING_MAX_BYTES + 1:
        raise EncodeError(f"a string of {value - 1} bytes is too long")
    return encode_uvarint(value)


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    first = buf[pos]
    if first < 0x80:
        return first, pos + 1
    return finish_uvarint(buf, pos + 1, first)


def skip_tags(buf: Buffer, pos: int, count: int) -> int:
    """Pass over tagged fields that this side does not know, as the protocol demands."""
    end = len(buf)
    for _ in range(count):
        _tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
        if pos > end:
            raise DecodeError("tagged field runs past the end of the message")
    return pos


def bad_length(length: int, field: str) -> NoReturn:
    raise DecodeError(f"{field} has the impossible length {length}")


def too_many_elements() -> NoReturn:
    raise DecodeError("its lists have more elements than any client needs")
