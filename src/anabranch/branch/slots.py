"""Which slot a record belongs to, and which slots a branch has.

The key's XXH64 (seed 0) loses its lowest bit, so that it fits a signed 64-bit integer, and its
upper 16 bits are the slot:

    h63 = xxh64(key) >> 1              0 .. 2^63 - 1
    slot = h63 >> 47                   0 .. 65,535

Never the producer's partitioner: of the keys of one of eight partitions, murmur2 modulo 4,096
reaches only 512 values, because the partition took the same bits.

A record without a key has no order to keep. By default its slot is that of its block of 64
offsets, the XXH64 of the block's number as eight bytes, big-endian: neighbours stay together, the
load spreads, and reading again gives the same slot. With `branch.null.key=ordered` all of them
are in slot 0 and keep their order. An empty key is a key.

With an ordering header, the value of the record's last header of that name takes the key's place;
a record without the header falls back to its key.

Branch i of n has the slots from i * 65,536 // n up to (i + 1) * 65,536 // n, without the latter.
"""

from dataclasses import dataclass

from anabranch.branch._kernels import xxh64
from anabranch.model.units import SLOT_COUNT, SlotRange

NULL_KEY_BLOCK_BITS = 6
BRANCHES_MAX = 1024
"""Ranges that one partition may be cut into."""


@dataclass(frozen=True, slots=True)
class SlotRule:
    """How a topic's records find their slots; the same for all of its branch topics."""

    is_null_key_ordered: bool = False
    ordering_header: bytes | None = None


DEFAULT_RULE = SlotRule()


def slot_of_key(key: bytes) -> int:
    """The slot of a key, the empty one included."""
    return xxh64(key) >> 48


def slot_of_offset(offset: int) -> int:
    """The slot of a record without a key, where those are not ordered."""
    return slot_of_key((offset >> NULL_KEY_BLOCK_BITS).to_bytes(8, "big"))


def slots_of_branch(branch: int, branches: int) -> SlotRange:
    """The slots of one of `branches` equal ranges."""
    return SlotRange(branch * SLOT_COUNT // branches, (branch + 1) * SLOT_COUNT // branches)


def branch_of_slot(slot: int, branches: int) -> int:
    """The one of `branches` equal ranges that has the slot; the inverse of `slots_of_branch`."""
    return ((slot + 1) * branches - 1) // SLOT_COUNT
