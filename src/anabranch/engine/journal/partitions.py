"""Which partition of an internal topic keeps what belongs to a group.

Kafka's clients do not care, but its tools and a journal taken over from it do: a group must be
where Kafka would have put it.
"""

import functools
import sys

_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_INT32_MASK = 0xFFFF_FFFF
_INT32_MIN_BITS = 0x8000_0000


@functools.lru_cache(1024)
def partition_for(group_id: str, partitions: int) -> int:
    """The partition, of so many, that holds the records of a group."""
    hashed = java_hash_code(group_id)
    # The smallest number has no positive counterpart: Kafka takes 0 for it.
    return 0 if hashed == -_INT32_MIN_BITS else abs(hashed) % partitions


def java_hash_code(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in 32 bits."""
    hashed = 0
    units = text.encode() if text.isascii() else _utf_16_units(text)
    for unit in units:
        hashed = (31 * hashed + unit) & _INT32_MASK
    return hashed - (1 << 32) if hashed & _INT32_MIN_BITS else hashed


def _utf_16_units(text: str) -> memoryview:
    return memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
