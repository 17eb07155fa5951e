"""Sets of offsets as bytes: the `OffsetSet` of our own tags and of the journal of progress.

Two forms, of which the shorter is written. Numbers are unsigned varints of at most 63 bits: seven
bits in each byte, lowest first, the high bit meaning that more follow.

    codec 0   ranges: of the first one its first offset, and its last minus its first; of each other
              one its first offset minus the last one before it minus 2, and its last minus its
              first
    codec 1   a bitmap: the offset of its first bit, then bytes; bit i, the lowest of a byte first,
              says whether that offset plus i is in the set

Ranges never touch (see `offset_ranges`), so that there is at least one offset between two of them:
hence the 2, by which [10-11], [13-13] are the numbers 10 1 0 0. No bytes at all are the empty set.

What is read may come from anybody: it has at most a million ranges, in a bitmap of at most 1 MiB.
"""

import re
from collections.abc import Iterator
from itertools import islice

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.wire.messages.cooperation import OffsetSet

RANGES = 0
BITMAP = 1

RANGES_MAX = 1_000_000
BITMAP_MAX_BYTES = 1024 * 1024

_OFFSET_BITS = 63
_OFFSET_MAX = (1 << _OFFSET_BITS) - 1
_RUN = re.compile("1+")


def encode(offsets: OffsetRanges) -> OffsetSet:
    """The set in its shorter form; what has more than a million ranges cannot be read again."""
    if not offsets:
        return OffsetSet(codec=RANGES, content=b"")
    ranges = _write_ranges(offsets)
    first = next(iter(offsets)).first
    bitmap_bytes = (offsets.last - first) // 8 + 1
    if bitmap_bytes <= BITMAP_MAX_BYTES and _varint_bytes(first) + bitmap_bytes < len(ranges):
        return OffsetSet(codec=BITMAP, content=_write_bitmap(offsets, first))
    return OffsetSet(codec=RANGES, content=ranges)


def decode(written: OffsetSet) -> OffsetRanges:
    """The set; INVALID_REQUEST when it is not one, or is larger than anybody needs."""
    content = bytes(written.content)
    if not content and written.codec in (RANGES, BITMAP):
        return EMPTY
    if written.codec == RANGES:
        found = list(islice(_read_ranges(content), RANGES_MAX + 1))
    elif written.codec == BITMAP:
        found = list(islice(_read_bitmap(content), RANGES_MAX + 1))
    else:
        raise _malformed(f"codec {written.codec} is not known")
    if len(found) > RANGES_MAX:
        raise _malformed(f"it has more than {RANGES_MAX} ranges")
    return OffsetRanges(found)


# Ranges -----------------------------------------------------------------------------------------


def _write_ranges(offsets: OffsetRanges) -> bytes:
    out = bytearray()
    # As if a range ended at -2: the first offset is then written as it is.
    end = -2
    for first, last in offsets:
        _append_varint(out, first - end - 2)
        _append_varint(out, last - first)
        end = last
    return bytes(out)


def _read_ranges(content: bytes) -> Iterator[tuple[int, int]]:
    numbers = _read_varints(content)
    end = -2
    for gap in numbers:
        length = next(numbers, None)
        if length is None:
            raise _malformed("it ends in the middle of a range")
        first = end + 2 + gap
        end = first + length
        if end > _OFFSET_MAX:
            raise _malformed(f"{end} is no offset")
        yield first, end


# Bitmaps ----------------------------------------------------------------------------------------


def _write_bitmap(offsets: OffsetRanges, base: int) -> bytes:
    bits = []
    end = base - 1
    for first, last in offsets:
        bits.append("0" * (first - end - 1))
        bits.append("1" * (last - first + 1))
        end = last
    out = bytearray()
    _append_varint(out, base)
    # Numbers of 2^n digits are converted in linear time.
    out += int("".join(bits)[::-1], 2).to_bytes((end - base) // 8 + 1, "little")
    return bytes(out)


def _read_bitmap(content: bytes) -> Iterator[tuple[int, int]]:
    base = next(_read_varints(content))
    position = next(i for i, byte in enumerate(content, 1) if byte < 0x80)
    size_bytes = len(content) - position
    if size_bytes > BITMAP_MAX_BYTES:
        raise _malformed(f"a bitmap may have {BITMAP_MAX_BYTES} bytes, not {size_bytes}")
    bits = f"{int.from_bytes(content[position:], 'little'):b}"[::-1]
    if base + len(bits) - 1 > _OFFSET_MAX:
        raise _malformed("its bitmap ends beyond the last offset there can be")
    for run in _RUN.finditer(bits):
        yield base + run.start(), base + run.end() - 1


# Varints ----------------------------------------------------------------------------------------


def _append_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)


def _varint_bytes(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)


def _read_varints(content: bytes) -> Iterator[int]:
    number, shift = 0, 0
    for byte in content:
        if byte < 0x80:
            yield number | byte << shift
            number, shift = 0, 0
            continue
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift >= _OFFSET_BITS:
            raise _malformed(f"a number does not fit in {_OFFSET_BITS} bits")
    if shift:
        raise _malformed("it ends in the middle of a number")


def _malformed(why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"A set of offsets cannot be read: {why}. Send it again, whole."
    )
