"""Uneven cuts of the slots: which output each slot's records go to.

Branch topics have equal ranges; the members of a cooperative group have ranges that follow the
load, a member may have several of them, and what nobody has is left out. A `CutTable` says so for
each slot, so that sorting a record is one look-up, whatever the cuts. It is 128 KiB large and
takes longer to make than a small chunk takes to sort: make it once for each assignment and keep
it. Tables are compared by identity, so it can be (part of) the key of a cache.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from anabranch.branch.slots import BRANCHES_MAX
from anabranch.model.units import SLOT_COUNT, SlotRange

DROPPED: Final = 0xFFFF
"""What the table has for slots that no output has."""

_ENTRY = struct.Struct("<H")


@dataclass(frozen=True, slots=True, eq=False)
class CutTable:
    """The slots of each output, as a table by slot."""

    outputs: tuple[tuple[SlotRange, ...], ...]
    table: bytes = field(repr=False)
    """A uint16 for each slot: the number of its output, or `DROPPED`."""


def cut_table(cuts: Sequence[SlotRange]) -> CutTable:
    """A table with one output for each range, in the order given; ValueError as `joined_table`."""
    return joined_table([(cut,) for cut in cuts])


def joined_table(outputs: Sequence[Sequence[SlotRange]]) -> CutTable:
    """A table with one output for several ranges, such as all those of a member.

    ValueError when a slot is in two ranges, when a range is not one of slots, or when there are
    more than 1,024 outputs.
    """
    if len(outputs) > BRANCHES_MAX:
        raise ValueError(f"{len(outputs)} outputs; {BRANCHES_MAX} are possible")
    parts: list[bytes] = []
    reached = 0
    for cut, output in sorted(
        (SlotRange(*cut), output)
        for output, ranges in enumerate(outputs)
        for cut in ranges
        if cut[0] != cut[1]
    ):
        if not reached <= cut.first < cut.end <= SLOT_COUNT:
            raise ValueError(
                f"slots {cut.first} to {cut.end} overlap with another range, or are no slots"
            )
        parts.append(_ENTRY.pack(DROPPED) * (cut.first - reached))
        parts.append(_ENTRY.pack(output) * (cut.end - cut.first))
        reached = cut.end
    parts.append(_ENTRY.pack(DROPPED) * (SLOT_COUNT - reached))
    return CutTable(
        tuple(tuple(SlotRange(*cut) for cut in cuts) for cuts in outputs), b"".join(parts)
    )
