"""Which partition a record goes to, as Kafka's own producers choose it. Pure.

A record with a key goes where the hash of the key says (murmur2, with the seed that the Java client
has), so that whoever else writes to the topic puts the key in the same partition. Records without
a key stick to one partition for as long as a batch of it lasts, and then to another one: fewer and
larger batches than with a partition for each record.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF
_WORD = Struct("<I")


def murmur2(data: bytes) -> int:
    """The hash of a key, 32 bits without a sign."""
    hashed = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for (word,) in _WORD.iter_unpack(data[:whole]):
        word = word * _FACTOR & _MASK
        word ^= word >> _SHIFT
        hashed = (hashed * _FACTOR & _MASK) ^ (word * _FACTOR & _MASK)
    rest = data[whole:]
    if rest:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _FACTOR & _MASK
    hashed ^= hashed >> 13
    hashed = hashed * _FACTOR & _MASK
    return hashed ^ hashed >> 15


@lru_cache(maxsize=10_000)
def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition that has the key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitions:
    """The partition that records without a key go to at the moment, by topic."""

    def __init__(self, random_below: Callable[[int], int]) -> None:
        self._random_below = random_below
        self._chosen: dict[str, int] = {}

    def partition(self, topic: str, partitions: int) -> int:
        chosen = self._chosen.get(topic, partitions)
        if chosen >= partitions:
            chosen = self._chosen[topic] = self._random_below(partitions)
        return chosen

    def batch_is_full(self, topic: str, partitions: int) -> None:
        """Go on with another one, if there is another."""
        chosen = self._chosen.get(topic)
        if chosen is None or partitions < 2:
            return
        following = self._random_below(partitions - 1)
        self._chosen[topic] = following + (following >= chosen)
