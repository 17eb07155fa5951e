"""What `line-cut` is asked: members by number, partitions as lanes of lines, and who has what.

A lane is a partition, or one partition of each of several co-partitioned topics: they are cut
alike. Lanes with the same subscribers are a line. A cover says of each slot of a lane whose it is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from anabranch.coordinator.cooperative.cuts import (
    Partition,
    Piece,
    RangeMember,
    RangeTopic,
    best_matching,
    member_order,
    merge,
    split,
)
from anabranch.coordinator.cooperative.load import SlotWeights, sum_of
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit

# Owners are numbers of members; these two are not. A hot slot is beyond leveling: it is pinned, and
# its owner is PINNED minus the member's number.
FREE = -1
PINNED = -2

Cover = list[Piece[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCutRules:
    """How even is even enough, and how much may be cut for it."""

    # How far a load may be from that of a new cut, as a share of it.
    tolerance: float = 0.1
    # Of how many partitions of a line a member may have a part, and in how many ranges each.
    partials_max: int = 2
    ranges_max: int = 8
    # Once something has to move anyway: how much load more may move for one partition less that is
    # cut, and for one range less, as shares of a fair load. Whole partitions are read without
    # filtering, and every range is something to keep account of.
    cut_cost: float = 0.25
    range_cost: float = 0.05
    # A cut this near to an edge that is there, as a share of a fair load, is made at that edge: a
    # slot or two that change hands because of rounding cost a hand-over like any others.
    sliver: float = 0.01
    # Names of topics that are cut alike.
    co_partitioned: tuple[frozenset[str], ...] = ()


DEFAULT_RULES = LineCutRules()


class Way(Enum):
    """How an assignment came about."""

    KEPT = "kept"
    LEVELED = "leveled"
    CUT = "cut"


class HotSlot(NamedTuple):
    """A slot that is more than a fair load by itself: no assignment can be more even than it."""

    topic_id: bytes
    partition: int
    slot: int
    member_id: str
    # Of the load of the whole subscription.
    share: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who should have what; `targets` and `loads` name every member."""

    targets: Mapping[str, frozenset[Unit]]
    loads: Mapping[str, int]
    hot: tuple[HotSlot, ...]
    # The weight of the slots that go from one member to another.
    moved: int
    way: Way


class Lane(NamedTuple):
    """A partition, or one of each of several topics that are cut alike."""

    number: int
    line: int
    topic_ids: tuple[bytes, ...]
    partition: int
    weights: SlotWeights
    is_divisible: bool


class Line(NamedTuple):
    """Everybody who may have some of its lanes; `sharers` may have parts."""

    members: frozenset[int]
    sharers: list[int]


class LineGroup:
    """The question: members by number, in order, and lanes."""

    def __init__(
        self,
        members: Iterable[RangeMember],
        topics: Iterable[RangeTopic],
        weights: Mapping[Partition, SlotWeights],
        rules: LineCutRules,
    ) -> None:
        self.rules = rules
        self.members = sorted(members, key=member_order)
        # Members that may stand in for each other.
        self.crews: dict[tuple[frozenset[str], bool], list[int]] = {}
        for number, member in enumerate(self.members):
            self.crews.setdefault((member.topics, member.is_sharing), []).append(number)
        self.lines: list[Line] = []
        self.lanes: list[Lane] = []
        self._lay(sorted(topics, key=lambda topic: topic.name), weights)
        self.total = sum(lane.weights.total for lane in self.lanes)
        # What a slot weighs on average: nothing is finer.
        self.grain = self.total / max(1, len(self.lanes) * SLOT_COUNT)

    def _lay(self, topics: Sequence[RangeTopic], weights: Mapping[Partition, SlotWeights]) -> None:
        numbers: dict[frozenset[int], int] = {}
        bundles: dict[tuple[frozenset[str] | str, int, int], list[RangeTopic]] = {}
        for topic in topics:
            crews = [crew for (names, _), crew in self.crews.items() if topic.name in names]
            subscribers = frozenset(number for crew in crews for number in crew)
            if not subscribers:
                continue
            if subscribers not in numbers:
                numbers[subscribers] = len(self.lines)
                sharers = [n for n in sorted(subscribers) if self.members[n].is_sharing]
                self.lines.append(Line(subscribers, sharers))
            alike = (names for names in self.rules.co_partitioned if topic.name in names)
            key = (next(alike, topic.name), topic.partitions, numbers[subscribers])
            bundles.setdefault(key, []).append(topic)
        known = [
            weights[topic.topic_id, partition].total
            for bundle in bundles.values()
            for topic in bundle
            for partition in range(topic.partitions)
            if (topic.topic_id, partition) in weights
        ]
        # A partition of which nothing is known counts like the others on average.
        usual = SlotWeights(base=max(1, sum(known) // (len(known) * SLOT_COUNT)) if known else 1)
        for (_, _, line), bundle in bundles.items():
            ids = tuple(topic.topic_id for topic in bundle)
            is_divisible = all(topic.is_shareable for topic in bundle)
            is_divisible = is_divisible and len(self.lines[line].sharers) > 0
            for partition in range(bundle[0].partitions):
                some = [weights.get((topic_id, partition), usual) for topic_id in ids]
                summed = some[0] if len(some) == 1 else sum_of(some)
                number = len(self.lanes)
                self.lanes.append(Lane(number, line, ids, partition, summed, is_divisible))

    # Covers ---------------------------------------------------------------------------------------

    def covers_of(self, held: Mapping[str, Collection[Unit]]) -> list[Cover]:
        """Who has what of each lane, whether it may or not."""
        pieces: dict[Partition, Cover] = {}
        for number, member in enumerate(self.members):
            for topic_id, partition, slots in held.get(member.member_id, ()):
                pieces.setdefault((topic_id, partition), []).append(Piece(*slots, number))
        covers = []
        for lane in self.lanes:
            some = [_completed(pieces.get((t, lane.partition), [])) for t in lane.topic_ids]
            covers.append(some[0] if len(some) == 1 else _blended(some))
        return covers

    def legal(self, covers: Sequence[Cover]) -> list[Cover]:
        """Without what owners may not have, or not in parts."""
        found = []
        for lane, cover in zip(self.lanes, covers, strict=True):
            allowed, of = self.lines[lane.line].members, lane.weights.of
            if len(cover) > 1 and not lane.is_divisible:
                most: dict[int, int] = {}
                for piece in cover:
                    most[piece.owner] = most.get(piece.owner, 0) + of(piece.first, piece.end)
                most.pop(FREE, None)
                owner = max(sorted(most), key=lambda number: most[number]) if most else FREE
                cover = [Piece(0, SLOT_COUNT, owner)]
            found.append(
                merge(
                    piece
                    if piece.owner in allowed
                    and (len(cover) == 1 or self.members[piece.owner].is_sharing)
                    else Piece(piece.first, piece.end, FREE)
                    for piece in cover
                )
            )
        return found

    def is_complete(self, covers: Sequence[Cover]) -> bool:
        return not any(piece.owner == FREE for cover in covers for piece in cover)

    def loads(self, covers: Sequence[Cover]) -> list[int]:
        loads = [0] * (len(self.members) + 1)
        for lane, cover in zip(self.lanes, covers, strict=True):
            of = lane.weights.of
            for first, end, owner in cover:
                loads[owner] += of(first, end)
        # Last is what is free: the place of FREE.
        return loads[:-1]

    def is_even(self, loads: Sequence[int], fair: Sequence[int]) -> bool:
        """Whether loads are about what they are in a new cut, if not by the same members."""
        for (_, is_sharing), crew in self.crews.items():
            # Who does not share may have more than the others, and would rather have nothing.
            served, due = (sum(some[number] > 0 for number in crew) for some in (loads, fair))
            if not is_sharing and served < due:
                return False
        if sum(load * load for load in loads) <= sum(load * load for load in fair):
            return True
        for crew in self.crews.values():
            have, want = (sorted(some[number] for number in crew) for some in (loads, fair))
            for load, due in zip(have, want, strict=True):
                if abs(load - due) > self.rules.tolerance * due + self.grain:
                    return False
        return True

    def ranked(self, fair: Sequence[int], loads: Sequence[int]) -> list[int]:
        """The loads of a new cut, the highest to whoever has most of those who are alike."""
        found = [0] * len(fair)
        for crew in self.crews.values():
            by_load = sorted(crew, key=lambda number: (-loads[number], number))
            due = sorted((fair[number] for number in crew), reverse=True)
            for number, load in zip(by_load, due, strict=True):
                found[number] = load
        return found

    def is_well_shaped(self, covers: Sequence[Cover], before: Sequence[Cover]) -> bool:
        """Whether nobody has parts of more partitions, or more ranges, than is good or was."""
        rules = self.rules
        partials, ranges = self._shape(covers)
        partials_before, ranges_before = self._shape(before)
        return all(
            count <= max(rules.partials_max, partials_before.get(key, 0))
            for key, count in partials.items()
        ) and all(
            count <= max(rules.ranges_max, ranges_before.get(key, 0))
            for key, count in ranges.items()
        )

    def _shape(
        self, covers: Sequence[Cover]
    ) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        """Of how many lanes of each line members have parts, and in how many ranges each."""
        partials: dict[tuple[int, int], int] = {}
        ranges: dict[tuple[int, int], int] = {}
        for lane, cover in zip(self.lanes, covers, strict=True):
            if len(cover) == 1:
                continue
            for owner in {piece.owner for piece in cover}:
                key = (lane.line, owner)
                partials[key] = partials.get(key, 0) + 1
            for piece in cover:
                key = (lane.number, piece.owner)
                ranges[key] = ranges.get(key, 0) + 1
        return partials, ranges

    # Answers --------------------------------------------------------------------------------------

    def cost(self, covers: Sequence[Cover], before: Sequence[Cover]) -> float:
        """What moves, and what the ranges are worth."""
        fair = self.total / max(1, len(self.members))
        ranges = self.rules.range_cost * sum(map(len, covers))
        cuts = self.rules.cut_cost * sum(len(cover) > 1 for cover in covers)
        return self.moved(covers, before) + fair * (ranges + cuts)

    def without_slivers(self, covers: Sequence[Cover], before: Sequence[Cover]) -> list[Cover]:
        """The covers with cuts that are very near to edges that were there moved onto these."""
        least = self.rules.sliver * self.total / max(1, len(self.members))
        return [
            cover if cover == was or len(cover) == 1 else _at_edges(lane, was, cover, least)
            for lane, cover, was in zip(self.lanes, covers, before, strict=True)
        ]

    def moved(self, covers: Sequence[Cover], before: Sequence[Cover]) -> int:
        """The weight of the slots that go from one member to another."""
        return sum(
            lane.weights.of(first, end)
            for lane, cover, was in zip(self.lanes, covers, before, strict=True)
            if cover is not was
            for first, end, (old, new) in _crossed(was, cover)
            if old not in (new, FREE)
        )

    def handed_out(self, covers: Sequence[Cover], before: Sequence[Cover]) -> list[Cover]:
        """The same pieces, each crew's among its members so that as little as can be moves."""
        kind = [0] * len(self.members)
        for number, crew in enumerate(self.crews.values()):
            for member in crew:
                kind[member] = number
        gains: list[dict[int, int]] = [{} for _ in self.members]
        for lane, was, now in zip(self.lanes, before, covers, strict=True):
            for first, end, (old, new) in _crossed(was, now):
                if old != FREE and kind[old] == kind[new]:
                    gains[old][new] = gains[old].get(new, 0) + lane.weights.of(first, end)
        matched = best_matching(gains)
        taken = set(matched.values())
        new_owner = {piece: member for member, piece in matched.items()}
        for crew in self.crews.values():
            left = (piece for piece in crew if piece not in taken)
            for member in crew:
                if member not in matched:
                    new_owner[next(left)] = member
        return [
            [Piece(first, end, new_owner[owner]) for first, end, owner in cover] for cover in covers
        ]

    def assignment(
        self,
        covers: Sequence[Cover],
        before: Sequence[Cover],
        hot: Iterable[tuple[Lane, int]],
        way: Way,
    ) -> Assignment:
        targets: list[list[Unit]] = [[] for _ in self.members]
        for lane, cover in zip(self.lanes, covers, strict=True):
            for first, end, owner in cover:
                slots = SlotRange(first, end) if end - first < SLOT_COUNT else ALL_SLOTS
                targets[owner].extend(Unit(t, lane.partition, slots) for t in lane.topic_ids)
        ids = [member.member_id for member in self.members]
        hot_slots = []
        for lane, slot in hot:
            (owner,) = (p.owner for p in covers[lane.number] if p.first <= slot < p.end)
            share = lane.weights.of(slot, slot + 1) / self.total
            for topic_id in lane.topic_ids:
                hot_slots.append(HotSlot(topic_id, lane.partition, slot, ids[owner], share))
        hot_slots.sort(key=lambda some: (-some.share, some))
        loads = dict(zip(ids, self.loads(covers), strict=True))
        units = dict(zip(ids, map(frozenset, targets), strict=True))
        return Assignment(units, loads, tuple(hot_slots), self.moved(covers, before), way)


def _completed(pieces: Cover) -> Cover:
    """A cover of all slots; of several who claim one the first has it."""
    found: Cover = []
    at = 0
    for first, end, owner in sorted(pieces):
        if first > at:
            found.append(Piece(at, first, FREE))
        if end > at:
            found.append(Piece(max(first, at), end, owner))
            at = end
    if at < SLOT_COUNT:
        found.append(Piece(at, SLOT_COUNT, FREE))
    return merge(found)


def _blended(covers: Sequence[Cover]) -> Cover:
    """One cover for lanes that are cut alike: each slot is with whoever has it in most topics."""
    bounds = {piece.first for cover in covers for piece in cover}
    found = []
    for first, end in split([ALL_SLOTS], bounds):
        owners = [p.owner for cover in covers for p in cover if p.first <= first < p.end]
        owner = max(sorted(set(owners)), key=lambda one: (one != FREE, owners.count(one)))
        found.append(Piece(first, end, owner))
    return merge(found)


def _at_edges(lane: Lane, was: Cover, cover: Cover, least: float) -> Cover:
    """The cover without tiny pieces that neighbours can have as well.

    A piece goes with its neighbour if both come from one member, or stays if the neighbour comes to
    its owner: either way there is a range less.
    """
    pieces = list(_crossed(was, cover))
    found = []
    for at, (first, end, (old, new)) in enumerate(pieces):
        if lane.weights.of(first, end) <= least:
            beside = [pieces[near][2] for near in (at - 1, at + 1) if 0 <= near < len(pieces)]
            heirs = [heir for owner, heir in beside if owner == old or heir == old]
            if heirs:
                new = old if old in heirs else heirs[0]
        found.append(Piece(first, end, new))
    return merge(found)


def _crossed(one: Cover, other: Cover) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Both covers at once: ranges with both owners."""
    a = b = first = 0
    while first < SLOT_COUNT:
        end = min(one[a].end, other[b].end)
        yield first, end, (one[a].owner, other[b].owner)
        a += one[a].end == end
        b += other[b].end == end
        first = end
