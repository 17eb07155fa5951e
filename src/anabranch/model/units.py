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

# A hash has 63 bits, a slot is its upper 16.
_SLOT_SHIFT = 47


def hashes_of(slots: SlotRange) -> tuple[int, int]:
    """The first and the last hash of some slots, both included, as KIP-X writes a key range."""
    return slots.first << _SLOT_SHIFT, (slots.end << _SLOT_SHIFT) - 1


def slot_of_hash(key_hash: int) -> int:
    """The slot of a key, by the 63 bits of its hash."""
    return key_hash >> _SLOT_SHIFT


def slots_between(first_hash: int, last_hash: int) -> SlotRange | None:
    """The slots of a key range; None when it does not begin and end at slots, or is empty."""
    slots = SlotRange(first_hash >> _SLOT_SHIFT, (last_hash + 1) >> _SLOT_SHIFT)
    is_sound = 0 <= slots.first < slots.end <= SLOT_COUNT
    return slots if is_sound and hashes_of(slots) == (first_hash, last_hash) else None


class Unit(NamedTuple):
    """One assignable thing: it has at most one owner at any time."""

    topic_id: bytes
    partition: int
    slots: SlotRange = ALL_SLOTS


def whole_partitions(topic_id: bytes, partitions: Iterable[int]) -> Iterator[Unit]:
    """Units of whole partitions, made without a Python frame for each."""
    return map(tuple.__new__, repeat(Unit), zip(repeat(topic_id), partitions, repeat(ALL_SLOTS)))
