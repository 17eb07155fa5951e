"""The algebra of slot ranges: where partitions are cut, and who may have which piece.

Rules
- The pieces of a partition are disjoint and cover all 65,536 slots while somebody may have them.
- A member that does not share, stock clients among them, has whole partitions only; a topic that
  does not allow sharing is never cut.

How units that members hold are cut along with those they shall have is told in `unit_cuts`.

A cover is a list of pieces in order; a piece is a range with something said about it, mostly its
owner.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

T = TypeVar("T")
Partition = tuple[bytes, int]
"""A topic's id and a partition's number."""


class Piece(NamedTuple, Generic[T]):
    """Slots from `first` up to but without `end`, and whose they are."""

    first: int
    end: int
    owner: T


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeMember:
    """What an assignor of ranges knows of a member; who does not share has whole partitions."""

    member_id: str
    topics: frozenset[str]
    is_sharing: bool = True
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class RangeTopic:
    """A topic; one that is not shareable (`accept.range.fetch`) is never cut."""

    name: str
    topic_id: bytes
    partitions: int
    is_shareable: bool = True


def member_order(member: RangeMember) -> tuple[bool, str, str]:
    """Static members first by instance id, as in every assignor: they keep their place."""
    return member.instance_id is None, member.instance_id or "", member.member_id


# Ranges -------------------------------------------------------------------------------------------


def equal_cuts(count: int) -> list[SlotRange]:
    """All slots in `count` ranges of equal width, to within a slot."""
    bounds = [index * SLOT_COUNT // count for index in range(count + 1)]
    return list(map(SlotRange, bounds, bounds[1:]))


def split(ranges: Iterable[SlotRange], at: Iterable[int]) -> list[SlotRange]:
    """The same slots, cut also at these ones."""
    bounds = sorted(set(at))
    found: list[SlotRange] = []
    for first, end in ranges:
        inside = bounds[bisect_right(bounds, first) : bisect_left(bounds, end)]
        found.extend(map(SlotRange, [first, *inside], [*inside, end]))
    return found


def joined(ranges: Iterable[SlotRange]) -> list[SlotRange]:
    """The same slots in as few ranges as can be; what comes twice counts once."""
    found: list[SlotRange] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1].end:
            found[-1] = SlotRange(found[-1].first, max(end, found[-1].end))
        elif first < end:
            found.append(SlotRange(first, end))
    return found


def common(ranges: Iterable[SlotRange], others: Iterable[SlotRange]) -> list[SlotRange]:
    """The slots that are in both."""
    left, right = joined(ranges), joined(others)
    found = []
    a = b = 0
    while a < len(left) and b < len(right):
        first, end = max(left[a].first, right[b].first), min(left[a].end, right[b].end)
        if first < end:
            found.append(SlotRange(first, end))
        if left[a].end < right[b].end:
            a += 1
        else:
            b += 1
    return found


def first_fault(ranges: Iterable[SlotRange]) -> str | None:
    """What keeps these ranges from being disjoint and covering; None if they are both."""
    at = 0
    for first, end in sorted(ranges):
        if not 0 <= first < end <= SLOT_COUNT:
            return f"[{first}, {end}) is not a range of slots"
        if first < at:
            return f"slot {first} is in two ranges"
        if first > at:
            return f"slots [{at}, {first}) are in no range"
        at = end
    return None if at == SLOT_COUNT else f"slots [{at}, {SLOT_COUNT}) are in no range"


# Covers -------------------------------------------------------------------------------------------


def merge(pieces: Iterable[Piece[T]]) -> list[Piece[T]]:
    """Neighbours of one owner become one piece; the pieces come in order."""
    found: list[Piece[T]] = []
    for piece in pieces:
        if found and found[-1].end == piece.first and found[-1].owner == piece.owner:
            found[-1] = Piece(found[-1].first, piece.end, piece.owner)
        else:
            found.append(piece)
    return found


def overlay(cover: Sequence[Piece[T]], first: int, end: int, owner: T) -> list[Piece[T]]:
    """The cover after slots found another owner; neighbours of one owner are merged."""
    found = []
    for piece in cover:
        if piece.first < first:
            found.append(Piece(piece.first, min(piece.end, first), piece.owner))
    found.append(Piece(first, end, owner))
    for piece in cover:
        if piece.end > end:
            found.append(Piece(max(piece.first, end), piece.end, piece.owner))
    return merge(found)


def covers_of(
    owners: Mapping[str, Collection[Unit]], known: Collection[str]
) -> dict[Partition, list[Piece[str | None]]]:
    """Who has what of each partition, in order; what nobody who is known has is with None."""
    pieces: dict[Partition, list[Piece[str | None]]] = {}
    for name in sorted(owners):
        owner = name if name in known else None
        for unit in owners[name]:
            pieces.setdefault(unit[:2], []).append(Piece(*unit.slots, owner))
    covers = {}
    for key in sorted(pieces):
        cover: list[Piece[str | None]] = []
        at = 0
        for piece in sorted(pieces[key], key=lambda piece: piece[:2]):
            if piece.first > at:
                cover.append(Piece(at, piece.first, None))
            cover.append(piece)
            at = piece.end
        if at < SLOT_COUNT:
            cover.append(Piece(at, SLOT_COUNT, None))
        covers[key] = merge(cover)
    return covers


def units_of(
    covers: Mapping[Partition, Iterable[Piece[str | None]]],
) -> dict[str, frozenset[Unit]]:
    """What everybody has who has anything."""
    found: dict[str, set[Unit]] = {}
    for (topic_id, partition), cover in covers.items():
        for first, end, owner in cover:
            if owner is not None:
                slots = SlotRange(first, end) if end - first < SLOT_COUNT else ALL_SLOTS
                found.setdefault(owner, set()).add(Unit(topic_id, partition, slots))
    return {name: frozenset(units) for name, units in found.items()}


# Handing out pieces -------------------------------------------------------------------------------


def best_matching(gains: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """A piece for each of some members, no piece twice, so that the gains add up to the most.

    `gains` has for each member what each piece is worth to it, as far as that is not nothing; who
    gains nothing is left out. Shortest augmenting paths, member by member (Jonker and Volgenant
    1987): few members want the same piece, so that most paths are one step long.
    """
    # Prices keep every step at no less than zero. Piece -1 - n is "none" for member n alone.
    member_price: list[int] = []
    piece_price: dict[int, int] = {}
    owner: dict[int, int] = {}
    has: dict[int, int] = {}
    for newcomer, worth in enumerate(gains):
        member_price.append(-max(worth.values(), default=0))
        paid: dict[int, int] = {}
        reached: dict[int, int] = {}
        came_from: dict[int, int] = {}
        heap: list[tuple[int, int]] = []
        member, spent = newcomer, 0
        visited = [(member, 0)]
        while True:
            for piece, gain in (*gains[member].items(), (-1 - member, 0)):
                cost = spent - gain - member_price[member] - piece_price.get(piece, 0)
                if piece not in reached or cost < reached[piece]:
                    reached[piece] = cost
                    came_from[piece] = member
                    heappush(heap, (cost, piece))
            spent, piece = heappop(heap)
            while piece in paid:
                spent, piece = heappop(heap)
            if piece not in owner:
                break
            paid[piece] = spent
            member = owner[piece]
            visited.append((member, spent))
        for member, at in visited:
            member_price[member] += spent - at
        for other, at in paid.items():
            piece_price[other] = piece_price.get(other, 0) - (spent - at)
        while True:
            member = came_from[piece]
            owner[piece] = member
            before = has.get(member)
            has[member] = piece
            if before is None:
                break
            piece = before
    return {member: piece for member, piece in has.items() if piece >= 0}


# Checking an assignment ---------------------------------------------------------------------------


def target_fault(
    members: Iterable[RangeMember],
    topics: Iterable[RangeTopic],
    targets: Mapping[str, Collection[Unit]],
) -> str | None:
    """What is wrong with these targets; None if every rule above is kept.

    A partition that nobody subscribes to has no owner; one that only members who do not share may
    have is given whole.
    """
    by_id = {topic.topic_id: topic for topic in topics}
    known = {member.member_id: member for member in members}
    given: dict[Partition, list[SlotRange]] = {
        (topic.topic_id, partition): []
        for topic in by_id.values()
        if any(topic.name in member.topics for member in known.values())
        for partition in range(topic.partitions)
    }
    for member_id, units in targets.items():
        member = known.get(member_id)
        if member is None:
            return f"{member_id!r} is not in the group"
        for unit in units:
            if unit[:2] not in given:
                return f"{unit} of {member_id!r} does not exist"
            topic = by_id[unit.topic_id]
            if topic.name not in member.topics:
                return f"{member_id!r} does not subscribe to {topic.name!r}"
            if unit.slots != ALL_SLOTS and not (member.is_sharing and topic.is_shareable):
                return f"{member_id!r} has a part of partition {unit.partition} of {topic.name!r}"
            given[unit[:2]].append(unit.slots)
    for (topic_id, partition), ranges in given.items():
        fault = first_fault(ranges)
        if fault is not None:
            return f"partition {partition} of {by_id[topic_id].name!r}: {fault}"
    return None
