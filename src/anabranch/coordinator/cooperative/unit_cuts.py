"""Units of one partition in a group agree: any two are equal, or have no slot in common.

Rules
- Units are compared by equality. So at any time the units of one partition in a group, whether
  held, still to be given back or only targeted, are pairwise equal or disjoint. A new target with
  other cuts is therefore never written beside what members hold: both are first rewritten in
  their common refinement (`recut`). A unit becomes several; which slots a member holds, and since
  which epoch, does not change.
- The common refinement is the coarsest one: neighbouring slots that have the same holder, epoch
  and state, and go to the same member, are one unit. So cuts that nobody needs any more vanish,
  and the number of units stays in proportion to what is really cut.
- A member does not know these cuts. What it says it has are any ranges, which are looked up among
  the units that it holds (`covered`, `uncovered`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from anabranch.coordinator.cooperative.cuts import Partition, Piece, common, joined, merge, split
from anabranch.model.units import ALL_SLOTS, SlotRange, Unit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member holds: units with the epochs they were assigned at, as the group records it."""

    assigned: Mapping[Unit, int] = field(default_factory=dict)
    pending_revocation: Mapping[Unit, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recut:
    """Who holds and who should have what, in common cuts.

    `holdings` names only members whose units are written in another way than before, `targets` is
    complete.
    """

    holdings: Mapping[str, Holding]
    targets: Mapping[str, frozenset[Unit]]


class _Claim(NamedTuple):
    """What is said about some slots: held by whom since when, and whether to be given back."""

    holder: str
    epoch: int
    is_pending: bool


def recut(holdings: Mapping[str, Holding], targets: Mapping[str, Collection[Unit]]) -> Recut:
    """Held and targeted units in their coarsest common refinement.

    Slots that two members hold, or that two targets have, are an error: ValueError.
    """
    cut = {
        unit[:2]
        for units in (
            *targets.values(),
            *(holding.assigned for holding in holdings.values()),
            *(holding.pending_revocation for holding in holdings.values()),
        )
        for unit in units
        if unit.slots != ALL_SLOTS
    }
    if not cut:
        return Recut({}, {member_id: frozenset(units) for member_id, units in targets.items()})
    held: dict[Partition, list[Piece[_Claim]]] = {partition: [] for partition in cut}
    wanted: dict[Partition, list[Piece[str]]] = {partition: [] for partition in cut}
    for member_id, holding in holdings.items():
        for is_pending, units in enumerate((holding.assigned, holding.pending_revocation)):
            for unit, epoch in units.items():
                if unit[:2] in cut:
                    claim = _Claim(member_id, epoch, bool(is_pending))
                    held[unit[:2]].append(Piece(*unit.slots, claim))
    for member_id, target in targets.items():
        for unit in target:
            if unit[:2] in cut:
                wanted[unit[:2]].append(Piece(*unit.slots, member_id))
    bounds = {partition: _bounds(held[partition], wanted[partition]) for partition in sorted(cut)}
    rewritten = {
        member_id: Holding(
            _rewrite(holding.assigned, bounds), _rewrite(holding.pending_revocation, bounds)
        )
        for member_id, holding in holdings.items()
    }
    return Recut(
        {
            member_id: holding
            for member_id, holding in rewritten.items()
            if holding != holdings[member_id]
        },
        {
            member_id: frozenset(_rewrite(dict.fromkeys(target, 0), bounds))
            for member_id, target in targets.items()
        },
    )


def _bounds(held: list[Piece[_Claim]], wanted: list[Piece[str]]) -> list[int]:
    """The slots at which it changes who holds, since when, or who should have."""
    return sorted({*_changes(held), *_changes(wanted)})


def _changes(pieces: list[Piece[T]]) -> Iterator[int]:
    """The slots at which another owner's range begins or one ends."""
    at = 0
    for piece in merge(sorted(pieces, key=lambda piece: piece[:2])):
        if piece.first < at:
            raise ValueError(f"Slot {piece.first} is with two members: {pieces}")
        yield from piece[:2]
        at = piece.end


def _rewrite(
    units: Mapping[Unit, int], bounds: Mapping[Partition, Sequence[int]]
) -> dict[Unit, int]:
    """The same slots in units that begin and end at all bounds inside them, and only there."""
    found: dict[Unit, int] = {}
    by_partition: dict[tuple[Partition, int], list[SlotRange]] = {}
    for unit, epoch in units.items():
        if unit[:2] in bounds:
            by_partition.setdefault((unit[:2], epoch), []).append(unit.slots)
        else:
            found[unit] = epoch
    for ((topic_id, partition), epoch), ranges in by_partition.items():
        for slots in split(joined(ranges), bounds[topic_id, partition]):
            found[Unit(topic_id, partition, slots)] = epoch
    return found


def joined_units(units: Mapping[Unit, int]) -> dict[Unit, int]:
    """The same slots since the same epochs, in as few units as can be, in order."""
    by_place: dict[tuple[bytes, int, int], list[SlotRange]] = {}
    for (topic_id, partition, slots), epoch in units.items():
        by_place.setdefault((topic_id, partition, epoch), []).append(slots)
    found = {
        Unit(topic_id, partition, slots): epoch
        for (topic_id, partition, epoch), ranges in by_place.items()
        for slots in joined(ranges)
    }
    return dict(sorted(found.items()))


def covered(units: Iterable[Unit], listed: Iterable[Unit]) -> list[Unit]:
    """The units that a member that lists these ranges has with all their slots."""
    by_partition = ranges_by_partition(listed)
    return [
        unit
        for unit in units
        if common([unit.slots], by_partition.get(unit[:2], ())) == [unit.slots]
    ]


def uncovered(listed: Iterable[Unit], known: Iterable[Unit]) -> list[Unit]:
    """What is in ranges that a member lists and in none of these units."""
    by_partition = ranges_by_partition(known)
    found = []
    for place, ranges in ranges_by_partition(listed).items():
        bounds = [slot for slots in by_partition.get(place, ()) for slot in slots]
        for slots in split(ranges, bounds):
            if not common([slots], by_partition.get(place, ())):
                found.append(Unit(*place, slots))
    return found


def are_whole(units: Iterable[Unit]) -> bool:
    """Whether all of them are whole partitions."""
    return all(unit.slots == ALL_SLOTS for unit in units)


def ranges_by_partition(units: Iterable[Unit]) -> dict[Partition, list[SlotRange]]:
    """The slots of units by partition, in order and in as few ranges as can be."""
    found: dict[Partition, list[SlotRange]] = {}
    for unit in units:
        found.setdefault(unit[:2], []).append(unit.slots)
    return {partition: joined(ranges) for partition, ranges in found.items()}
