"""An assignor's answer in the making: who keeps what, and who gets which piece of what is new.

Units to be handed out lie on strips, topic after topic; a member's share is a piece of a strip. So
the answer for ten thousand members is as many pairs of numbers, made in bulk; a target as a set of
units comes into being when somebody asks for it, one at a time.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from anabranch.coordinator.group.assignors.crews import Holder
from anabranch.coordinator.group.assignors.index import NO_TARGET, Target, TargetIndex
from anabranch.model.units import Unit, whole_partitions


class Segment:
    """Partitions of one topic in a row; those that had an owner come with their units."""

    __slots__ = ("_units", "partitions", "topic_id")

    def __init__(
        self, topic_id: bytes, partitions: Sequence[int], units: Sequence[Unit] | None = None
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions
        self._units = units

    def __len__(self) -> int:
        return len(self.partitions)

    def cut(self, start: int, end: int) -> "Segment":
        units = self._units[start:end] if self._units is not None else None
        return Segment(self.topic_id, self.partitions[start:end], units)

    def pick(self, places: Sequence[int]) -> "Segment":
        """Only what is at these places."""
        if isinstance(self.partitions, range) and self.partitions.start == 0:
            return Segment(self.topic_id, places)
        units = [self._units[place] for place in places] if self._units is not None else None
        return Segment(self.topic_id, [self.partitions[place] for place in places], units)

    def units(self, start: int, end: int) -> Iterable[Unit]:
        if self._units is not None:
            return self._units[start:end]
        return whole_partitions(self.topic_id, self.partitions[start:end])


class Strip:
    """Units in a row."""

    __slots__ = ("_ends", "_segments")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = list(filter(len, segments))
        self._ends = list(accumulate(map(len, self._segments)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def units(self, start: int, end: int) -> Iterable[Unit]:
        """The units from `start` up to but without `end`."""
        pieces = []
        at = bisect_right(self._ends, start)
        while start < end:
            segment = self._segments[at]
            first = self._ends[at] - len(segment)
            pieces.append(segment.units(start - first, end - first))
            start = self._ends[at]
            at += 1
        return chain.from_iterable(pieces)


class Pool:
    """Units that need an owner, as many as they may be."""

    __slots__ = ("_given", "_index", "_segments", "size")

    def __init__(self, index: TargetIndex) -> None:
        self._index = index
        self._segments: list[Segment] = []
        # What members gave up, by topic.
        self._given: dict[bytes, list[Unit]] = {}
        self.size = 0

    def add_free(self, topic_id: bytes) -> None:
        """All free partitions of a topic; those of a whole topic stay a range."""
        topic = self._index.topics[topic_id]
        count = topic.image.partitions
        whole = len(topic.free) == count
        self.add(Segment(topic_id, range(count) if whole else sorted(topic.free)))

    def add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self.size += len(segment)

    def add_units(self, units: Sequence[Unit]) -> None:
        """What a member gave up."""
        self.size += len(units)
        given = self._given
        for unit in units:
            topic_id = unit.topic_id
            if topic_id in given:
                given[topic_id].append(unit)
            else:
                given[topic_id] = [unit]

    def segments(self) -> list[Segment]:
        """What is in it, by topic name; of each topic what was free before what was given up."""
        names = self._index.topics
        segments = self._segments.copy()
        for topic_id, units in self._given.items():
            units.sort()
            segments.append(Segment(topic_id, [unit.partition for unit in units], units))
        segments.sort(key=lambda segment: names[segment.topic_id].image.name)
        return segments


class Stack:
    """Segments from which so many units at a time are taken, in order."""

    __slots__ = ("_at", "_segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(reversed(segments))
        self._at = 0

    def take(self, count: int) -> list[Segment]:
        taken = []
        while count:
            segment = self._segments[-1]
            piece = segment.cut(self._at, self._at + count)
            taken.append(piece)
            count -= len(piece)
            self._at += len(piece)
            if self._at == len(segment):
                self._segments.pop()
                self._at = 0
        return taken


class Plan(Mapping[str, Target]):
    """The targets that change, by member id; those who give come before those who get.

    A target is made anew each time it is asked for.
    """

    __slots__ = ("_blocks", "_counts", "_index", "_kept", "_offsets", "_starts", "_strips")

    def __init__(self, index: TargetIndex) -> None:
        self._index: TargetIndex | None = index
        # What is left to members who give, and to those of the others who have anything.
        self._kept: dict[str, Target] = {}
        # Where the pieces of members begin, as places on all strips one after the other: numbers
        # in place of an object for each keep the garbage collector out of it.
        self._starts: dict[str, int] = {}
        # From which place on pieces have which length; both in order of places.
        self._blocks: list[int] = []
        self._counts: list[int] = []
        self._strips: list[Strip] = []
        self._offsets: list[int] = [0]
        for by_unit in index.astray.values():
            for strays in by_unit.values():
                for holder in strays.values():
                    self._kept[holder.member_id] = index.owned(holder.member_id)

    # Writing --------------------------------------------------------------------------------------

    def kept(self, member_id: str) -> Target:
        """What a member has left so far."""
        assert self._index is not None, "the plan is finished"
        kept = self._kept.get(member_id)
        return self._index.targets.get(member_id, NO_TARGET) if kept is None else kept

    def left(self, holder: Holder) -> Sequence[Unit]:
        """The same in order."""
        kept = self._kept.get(holder.member_id)
        return holder.units if kept is None else [unit for unit in holder.units if unit in kept]

    def take(self, member_id: str, units: Iterable[Unit]) -> None:
        """A member gives units up."""
        self._kept[member_id] = self.kept(member_id).difference(units)

    def add_strip(self, strip: Strip) -> int:
        """A strip to give from; the place of its first unit."""
        self._strips.append(strip)
        self._offsets.append(self._offsets[-1] + len(strip))
        return self._offsets[-2]

    def give(self, member_ids: Sequence[str], count: int, start: int, has_units: bool) -> int:
        """Each member gets so many units from a place on, one after the other; where they end.

        Places are given away in order.
        """
        end = start + count * len(member_ids)
        self._blocks.append(start)
        self._counts.append(count)
        self._starts.update(zip(member_ids, range(start, end, count), strict=True))
        if has_units:
            self._kept.update(zip(member_ids, list(map(self.kept, member_ids)), strict=True))
        return end

    def finished(self) -> "Plan":
        """From now on the plan stands on its own: the index may change."""
        self._index = None
        return self

    # Reading --------------------------------------------------------------------------------------

    def __getitem__(self, member_id: str) -> Target:
        start = self._starts.get(member_id)
        if start is None:
            return self._kept[member_id]
        end = start + self._counts[bisect_right(self._blocks, start) - 1]
        at = bisect_right(self._offsets, start) - 1
        offset = self._offsets[at]
        got = self._strips[at].units(start - offset, end - offset)
        kept = self._kept.get(member_id)
        return kept.union(got) if kept else frozenset(got)

    def __iter__(self) -> Iterator[str]:
        yield from self._kept
        for member_id in self._starts:
            if member_id not in self._kept:
                yield member_id

    def __len__(self) -> int:
        return len(self._kept.keys() | self._starts.keys())
