"""What a group assigns: a partition, or a range of the key-hash slots of one.

The hash space of a partition's keys is cut into 65,536 slots. A whole partition is the full range;
shared partitions are assigned by smaller ones. Every rule about owners speaks of units, so that
sharing a partition by key needs no second set of rules.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

SLOT_COUNT = 65_536


class SlotRange(NamedTuple):
    """Slots from `first` up to but without `end`."""

    first: int
    end: int


ALL_SLOTS = SlotRange(0, SLOT_COUNT)


class Unit(NamedTuple):
    """One assignable thing: it has at most one owner at any time."""

    topic_id: bytes
    partition: int
    slots: SlotRange = ALL_SLOTS


def whole_partitions(topic_id: bytes, partitions: Iterable[int]) -> Iterator[Unit]:
    """Units of whole partitions, made without a Python frame for each."""
    return map(tuple.__new__, repeat(Unit), zip(repeat(topic_id), partitions, repeat(ALL_SLOTS)))
