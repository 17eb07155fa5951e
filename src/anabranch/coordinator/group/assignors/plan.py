"""An assignor's answer in the making: who keeps what, and who gets which piece of what is new.

Units to be handed out lie on strips, topic after topic; a member's share is a piece of a strip. So
the answer for ten thousand members is as many pairs of numbers, made in bulk; a target as a set of
units comes into being when somebody asks for it, one at a time.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat

from anabranch.coordinator.group.assignors.index import NO_TARGET, Target, TargetIndex
from anabranch.model.units import Unit, whole_partitions

# Partitions of one topic, in order.
Segment = tuple[bytes, Sequence[int]]


class Strip:
    """Units in a row."""

    __slots__ = ("_ends", "_segments")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = [segment for segment in segments if segment[1]]
        self._ends = list(accumulate(len(partitions) for _, partitions in self._segments))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def units(self, start: int, end: int) -> Iterator[Unit]:
        """The units from `start` up to but without `end`."""
        pieces = []
        at = bisect_right(self._ends, start)
        while start < end:
            topic_id, partitions = self._segments[at]
            first = self._ends[at] - len(partitions)
            pieces.append(whole_partitions(topic_id, partitions[start - first : end - first]))
            start = self._ends[at]
            at += 1
        return chain.from_iterable(pieces)


class Pool:
    """Partitions by topic, as many as they may be; used up when they are handed out."""

    __slots__ = ("_index", "_mixed", "_parts", "size")

    def __init__(self, index: TargetIndex) -> None:
        self._index = index
        self._parts: dict[bytes, Sequence[int]] = {}
        # Parts that were put together here: ours to add to, and not in order.
        self._mixed: dict[bytes, list[int]] = {}
        self.size = 0

    def add_free(self, topic_id: bytes) -> None:
        """All free partitions of a topic; those of a whole topic stay a range."""
        topic = self._index.topics[topic_id]
        count = topic.image.partitions
        whole = len(topic.free) == count
        self.add_partitions(topic_id, range(count) if whole else sorted(topic.free))

    def add_units(self, units: Sequence[Unit]) -> None:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, partition, _ in units:
            by_topic.setdefault(topic_id, []).append(partition)
        for topic_id, partitions in by_topic.items():
            self.add_partitions(topic_id, partitions)

    def add_partitions(self, topic_id: bytes, partitions: Sequence[int]) -> None:
        self.size += len(partitions)
        known = self._parts.get(topic_id)
        if known is None:
            self._parts[topic_id] = partitions
        elif topic_id in self._mixed:
            self._mixed[topic_id].extend(partitions)
        else:
            self._parts[topic_id] = self._mixed[topic_id] = [*known, *partitions]

    def of_topic(self, topic_id: bytes) -> Segment:
        if topic_id in self._mixed:
            return topic_id, sorted(self._mixed[topic_id])
        return topic_id, self._parts[topic_id]

    def segments(self) -> list[Segment]:
        """What is in it, by topic name and partition."""
        topics = self._index.topics
        topic_ids = sorted(self._parts, key=lambda topic_id: topics[topic_id].image.name)
        return [self.of_topic(topic_id) for topic_id in topic_ids]


class Stack:
    """Segments from which so many units at a time are taken, in order."""

    __slots__ = ("_at", "_segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(reversed(segments))
        self._at = 0

    def take(self, count: int) -> list[Segment]:
        taken = []
        while count:
            topic_id, partitions = self._segments[-1]
            piece = partitions[self._at : self._at + count]
            taken.append((topic_id, piece))
            count -= len(piece)
            self._at += len(piece)
            if self._at == len(partitions):
                self._segments.pop()
                self._at = 0
        return taken


EMPTY = Strip(())
# What a member keeps, and the piece of a strip that comes to it.
_Entry = tuple[Target, Strip, int, int]


class Plan(Mapping[str, Target]):
    """The targets that change, by member id; those who give come before those who get."""

    __slots__ = ("_entries", "_index")

    def __init__(self, index: TargetIndex) -> None:
        self._entries: dict[str, _Entry] = {}
        self._index: TargetIndex | None = index
        for by_unit in index.astray.values():
            for strays in by_unit.values():
                for holder in strays.values():
                    if holder.member_id not in self._entries:
                        kept = index.owned(holder.member_id)
                        self._entries[holder.member_id] = (kept, EMPTY, 0, 0)

    # Writing --------------------------------------------------------------------------------------

    def kept(self, member_id: str) -> Target:
        """What a member has left so far."""
        assert self._index is not None, "the plan is finished"
        entry = self._entries.get(member_id)
        return entry[0] if entry else self._index.targets.get(member_id, NO_TARGET)

    def take(self, member_id: str, units: Iterable[Unit]) -> None:
        """A member gives units up."""
        self._entries[member_id] = (self.kept(member_id).difference(units), EMPTY, 0, 0)

    def give(self, member_ids: Sequence[str], count: int, strip: Strip, start: int) -> int:
        """Each member gets so many units from a strip, one after the other; where they ended."""
        kept = map(self.kept, member_ids) if self._entries else self._all_kept(member_ids)
        end = start + count * len(member_ids)
        starts = range(start, end, count)
        ends = range(start + count, end + count, count)
        entries = zip(kept, repeat(strip), starts, ends, strict=False)
        self._entries.update(zip(member_ids, entries, strict=True))
        return end

    def _all_kept(self, member_ids: Sequence[str]) -> Iterable[Target]:
        assert self._index is not None, "the plan is finished"
        return map(self._index.targets.get, member_ids, repeat(NO_TARGET))

    def finished(self) -> "Plan":
        """From now on the plan stands on its own: the index may change."""
        self._index = None
        return self

    # Reading --------------------------------------------------------------------------------------

    def __getitem__(self, member_id: str) -> Target:
        kept, strip, start, end = self._entries[member_id]
        if start == end:
            return kept
        got = strip.units(start, end)
        return kept.union(got) if kept else frozenset(got)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
