"""Which partition a record goes to, as Kafka's own producers choose it. Pure.

A record with a key goes where the hash of the key says (murmur2, with the seed that the Java client
has), so that whoever else writes to the topic puts the key in the same partition. Records without
a key stick to one partition for as long as a batch of it lasts, and then to another one: fewer and
larger batches than with a partition for each record.
"""

from collections.abc import Callable

from anabranch.branch._kernels import murmur2


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
