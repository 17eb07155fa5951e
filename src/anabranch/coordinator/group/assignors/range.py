"""The `range` assignor: a contiguous range of every topic for each member.

Members are in order, static ones first by instance id, then the others by member id. Of a topic
with P partitions and M subscribers each gets P div M partitions in a row, the first P mod M one
more. Topics with the same subscribers and equally many partitions are co-partitioned: the same
member has the same partition numbers of all of them, so that it can join them locally.

It is not sticky: one member more shifts everybody's ranges. Kafka gave stickiness up for it too,
because the two cannot be had together. So there is nothing to be gained from what moves, and each
answer looks at all partitions; but owners are compared in bulk, and targets made when asked for.

Where racks are known members of different racks may change places, all topics with the same
subscribers alike, if more partitions are then near their owners: ranges stay ranges of the same
sizes, and co-partitioned.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import is_not

from anabranch.coordinator.group.assignors.crews import Crew, Holder, OwnedTopic
from anabranch.coordinator.group.assignors.index import Target, TargetIndex
from anabranch.model.units import Unit, whole_partitions


class RangeAssignor:
    """Contiguous ranges, co-partitioned, rack-aware."""

    name = "range"

    def assign(self, index: TargetIndex) -> Mapping[str, Target]:
        """The targets that change."""
        crews = sorted(index.crews.values(), key=lambda crew: crew.names)
        blocks = [
            _Block(
                topics, _in_order(index, [crews[number] for number in numbers]), bool(index.racks)
            )
            for numbers, topics in _same_subscribers(index, crews).items()
        ]
        changed: set[str] = set()
        for by_unit in index.astray.values():
            for strays in by_unit.values():
                changed.update(holder.member_id for holder in strays.values())
        for block in blocks:
            changed.update(block.changed())
        return RangeTargets(blocks, changed)


def _same_subscribers(
    index: TargetIndex, crews: Sequence[Crew]
) -> dict[tuple[int, ...], list[OwnedTopic]]:
    """Topics in order of names, by the numbers of the crews that subscribe to them."""
    numbers = {crew.topics: number for number, crew in enumerate(crews)}
    found: dict[tuple[int, ...], list[OwnedTopic]] = {}
    for topic in sorted(index.topics.values(), key=lambda topic: topic.image.name):
        found.setdefault(tuple(sorted(numbers[key] for key in topic.crews)), []).append(topic)
    return found


def _in_order(index: TargetIndex, crews: Sequence[Crew]) -> list[Holder]:
    buckets = (
        keys for crew in crews for racks in crew.buckets.by_load.values() for keys in racks.values()
    )
    keys = sorted(chain.from_iterable(buckets))
    return [index.holders[index.member_ids[key]] for key in keys]


class _Block:
    """Topics with the same subscribers."""

    def __init__(
        self, topics: Sequence[OwnedTopic], holders: list[Holder], has_racks: bool
    ) -> None:
        self._topics = topics
        self._sizes = [(topic.image.topic_id, topic.image.partitions) for topic in topics]
        self._holders = _by_rack(topics, holders) if has_racks else holders

    def changed(self) -> Iterator[str]:
        """The ids of members whose ranges change; some may come more than once."""
        expected: dict[int, list[Holder]] = {}
        all_named: set[int] = set()
        for topic in self._topics:
            count = topic.image.partitions
            if count not in expected:
                expected[count] = self._owners(count)
            if topic.owners == expected[count]:
                continue
            if len(topic.free) == count:
                # A new topic: once all its owners are named, those of another one like it are too.
                if count not in all_named:
                    all_named.add(count)
                    yield from (holder.member_id for holder in self._holders[:count])
                continue
            differs = list(map(is_not, topic.owners, expected[count]))
            before = compress(topic.owners, differs)
            after = compress(expected[count], differs)
            for owner in dict.fromkeys(chain(before, after)):
                if owner is not None:
                    yield owner.member_id

    def _owners(self, partitions: int) -> list[Holder]:
        """The owner of each partition of a topic of that size."""
        return list(map(self._holders.__getitem__, _places(partitions, len(self._holders))))

    def places(self) -> dict[str, int]:
        return {holder.member_id: at for at, holder in enumerate(self._holders)}

    def ranges(self, at: int) -> Iterator[Iterator[Unit]]:
        """What the member at a place gets of each topic."""
        for topic_id, partitions in self._sizes:
            first, end = range_at(at, partitions, len(self._holders))
            yield whole_partitions(topic_id, range(first, end))


class RangeTargets(Mapping[str, Target]):
    """The targets that change; each is made when it is asked for."""

    __slots__ = ("_blocks", "_member_ids")

    def __init__(self, blocks: Sequence[_Block], member_ids: Iterable[str]) -> None:
        self._blocks = [(block, block.places()) for block in blocks]
        self._member_ids = dict.fromkeys(sorted(member_ids))

    def __getitem__(self, member_id: str) -> Target:
        if member_id not in self._member_ids:
            raise KeyError(member_id)
        return frozenset(
            chain.from_iterable(
                units
                for block, places in self._blocks
                if member_id in places
                for units in block.ranges(places[member_id])
            )
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._member_ids)

    def __len__(self) -> int:
        return len(self._member_ids)


def range_at(at: int, partitions: int, members: int) -> tuple[int, int]:
    """The range of the member at one place, as first and end."""
    share, extras = divmod(partitions, members)
    first = at * share + min(at, extras)
    return first, first + share + (1 if at < extras else 0)


# Racks --------------------------------------------------------------------------------------------
# The cuts are given; what is free is who stands at which place. Each range has, for each rack, a
# number of partitions with a replica there. Ranges with most to lose choose first among the racks
# that still have members; the order stays as it was unless that is better as a whole.


def _by_rack(topics: Sequence[OwnedTopic], holders: list[Holder]) -> list[Holder]:
    """The members in an order that brings most ranges near to their owners."""
    nearness = _nearness(topics, len(holders))
    if not nearness:
        return holders
    seats = dict.fromkeys(sorted({holder.rack for holder in holders}), 0)
    for holder in holders:
        seats[holder.rack] += 1
    chosen = _choose_racks(nearness, holders, seats)
    before = sum(near.get(holders[at].rack, 0) for at, near in nearness.items())
    after = sum(nearness[at].get(rack, 0) for at, rack in chosen.items())
    if after <= before:
        return holders
    places: list[Holder | None] = [None] * len(holders)
    queues = {rack: deque(holder for holder in holders if holder.rack == rack) for rack in seats}
    for at in sorted(chosen):
        places[at] = queues[chosen[at]].popleft()
    seated = set(places)
    rest = (holder for holder in holders if holder not in seated)
    return [next(rest) if holder is None else holder for holder in places]


def _nearness(topics: Sequence[OwnedTopic], members: int) -> dict[int, dict[str, int]]:
    """How many partitions of the range at each place have a replica in each rack."""
    counts: Counter[tuple[int, frozenset[str]]] = Counter()
    for topic in topics:
        racks = topic.image.racks
        if racks:
            counts.update(zip(_places(topic.image.partitions, members), racks, strict=True))
    nearness: dict[int, dict[str, int]] = {}
    for (at, some), count in counts.items():
        near = nearness.setdefault(at, {})
        for rack in some:
            near[rack] = near.get(rack, 0) + count
    return nearness


def _places(partitions: int, members: int) -> Iterator[int]:
    """The place of the owner of each partition."""
    share, extras = divmod(partitions, members)
    longer = map(repeat, range(extras), repeat(share + 1))
    shorter = map(repeat, range(extras, members), repeat(share)) if share else ()
    return chain.from_iterable(chain(longer, shorter))


def _choose_racks(
    nearness: Mapping[int, dict[str, int]], holders: Sequence[Holder], seats: Mapping[str, int]
) -> dict[int, str]:
    """A rack for each range that has anything in it."""
    left = dict(seats)
    chosen: dict[int, str] = {}
    for at in sorted(nearness, key=lambda at: (-_regret(nearness[at], seats), at)):
        near = nearness[at]
        present = holders[at].rack
        rack = max(
            (rack for rack in left if left[rack]),
            key=lambda rack: (near.get(rack, 0), rack == present, left[rack], rack),
        )
        left[rack] -= 1
        chosen[at] = rack
    return chosen


def _regret(near: Mapping[str, int], seats: Mapping[str, int]) -> int:
    """What is lost if the best rack is taken by others."""
    counts = sorted((near.get(rack, 0) for rack in seats), reverse=True)
    return counts[0] - counts[1] if len(counts) > 1 else 0
