"""Zigzag variable-length integers, as records inside a batch use them.

Seven bits per byte, lowest first, the high bit meaning that more follow; the sign moves to the
lowest bit so that small negative numbers stay short. (The unsigned variant of flexible message
versions belongs to the message codec, not here.)
"""

from anabranch.model.errors import ErrorCode, KafkaError

_VARINT_BITS = 32
_VARLONG_BITS = 64


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """An int32 at `pos`: its value and the position after it."""
    # Nearly every length and delta in a batch is below 64, so one byte is the fast path.
    if pos < len(data) and (byte := data[pos]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read(data, pos, _VARINT_BITS)


def read_varlong(data: bytes, pos: int) -> tuple[int, int]:
    """An int64 at `pos`: its value and the position after it."""
    return _read(data, pos, _VARLONG_BITS)


def _read(data: bytes, pos: int, bits: int) -> tuple[int, int]:
    raw = 0
    shift = 0
    try:
        while True:
            byte = data[pos]
            pos += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise _malformed(f"a varint is longer than {bits} bits allow")
    except IndexError:
        raise _malformed("a varint runs past the end of the batch") from None
    if raw >> bits:
        raise _malformed(f"a varint does not fit in {bits} bits")
    return (raw >> 1) ^ -(raw & 1), pos


def append_varint(out: bytearray, value: int) -> None:
    """Append an int32 or int64; the encoding is the same."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def _malformed(what: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{what}; send the batch again")
