"""The variable-length pieces of Kafka's encoding that the generated codecs call."""

from typing import NoReturn

Buffer = bytes | bytearray | memoryview


class DecodeError(ValueError):
    """Bytes that are not the message they claim to be."""


class EncodeError(ValueError):
    """A message that its version cannot carry."""


# Nearly every length and tag count is small, so their bytes are made once.
SMALL_UVARINTS: list[bytes] = [
    bytes([n]) if n < 128 else bytes([n & 0x7F | 0x80, n >> 7]) for n in range(1 << 14)
]


def encode_uvarint(value: int) -> bytes:
    """An unsigned varint, at most five bytes (32 bits)."""
    if value < len(SMALL_UVARINTS):
        return SMALL_UVARINTS[value]
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
