"""From what the coordinator says a member shall have to what it does about it. Pure.

An assignment names key ranges with the epoch each was given at, side by side or joined, as it
likes. It is compared slot by slot with what the member has:

- slots with the same epoch stay, and nothing happens to them, however they are cut now;
- slots that are missing are drained and then given back;
- slots that have another epoch were somebody else's in between: what was done for them is lost;
- slots that the member does not have are begun, also while others drain.

What drains is given back only after it has drained, and only together with all of its neighbours
that drain: the coordinator may hold them as one range, which is held while any part of it is. A
range that is assigned again while it drains drains to the end, and is then begun again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from anabranch.client.range_work import RangeState, RangeWork
from anabranch.client.records import TopicPartition
from anabranch.client.workload import Workload
from anabranch.model.units import SlotRange, Unit

Assignment = Mapping[Unit, int]
"""Ranges, disjoint, with the epoch that each was given at."""


@dataclass(slots=True)
class Changes:
    """What an assignment calls for."""

    begun: list[RangeWork] = field(default_factory=list)
    draining: list[RangeWork] = field(default_factory=list)
    lost: list[RangeWork] = field(default_factory=list)


class Holdings:
    """What a member has, and what it shall have."""

    def __init__(
        self, workload: Workload, place_of: Callable[[bytes, int], TopicPartition | None]
    ) -> None:
        """`place_of` names a partition; what it does not know yet is begun when it does."""
        self._workload = workload
        self._place_of = place_of
        self._target: dict[Unit, int] = {}

    def assign(self, target: Assignment) -> Changes:
        """Go over to a new assignment; what is lost is forgotten at once."""
        self._target = dict(target)
        changes = Changes()
        for work in list(self._workload):
            for part in self._cut_by_target(work):
                self._judge(part, changes)
        for work in changes.lost:
            self._workload.end(work)
        for work in changes.draining:
            self._workload.drain(work)
        changes.begun = self.begin_missing()
        return changes

    def lose_all(self) -> list[RangeWork]:
        """The group went on without this member."""
        self._target = {}
        lost = list(self._workload)
        for work in lost:
            self._workload.end(work)
        return lost

    def begin_missing(self) -> list[RangeWork]:
        """Begin what is assigned and not held."""
        begun = []
        for unit, epoch in sorted(self._target.items()):
            place = self._place_of(unit.topic_id, unit.partition)
            if place is None:
                continue
            held = [work.slots for work in self._workload.of_place(unit[:2])]
            for slots in _without(unit.slots, held):
                begun.append(self._workload.begin(place, Unit(*unit[:2], slots), epoch))
        return begun

    @property
    def missing_topics(self) -> set[bytes]:
        """Topics that are assigned and whose names are not known."""
        return {
            unit.topic_id
            for unit in self._target
            if self._place_of(unit.topic_id, unit.partition) is None
        }

    def drained(self, work: RangeWork) -> list[RangeWork]:
        """A range has drained and its progress is stored; returns what can be given back now."""
        if work.state is not RangeState.DRAINING:
            return []
        work.state = RangeState.DRAINED
        given_back = self._drained_chain(work)
        for one in given_back:
            self._workload.end(one)
        return given_back

    def _drained_chain(self, work: RangeWork) -> list[RangeWork]:
        """The drained ranges side by side with this one; none while one of them still drains."""
        works = list(self._workload.of_place(work.unit[:2]))
        chain: list[RangeWork] = []
        for one in works:
            is_leaving = one.state in (RangeState.DRAINING, RangeState.DRAINED)
            if not is_leaving or (chain and chain[-1].slots.end != one.slots.first):
                if work in chain:
                    break
                chain = []
            if is_leaving:
                chain.append(one)
        return chain if all(one.state is RangeState.DRAINED for one in chain) else []

    @property
    def held(self) -> dict[tuple[bytes, int], list[SlotRange]]:
        """What the coordinator must take for ours, by partition: also what is not begun yet."""
        found: dict[tuple[bytes, int], list[SlotRange]] = {}
        for unit in self._target:
            found.setdefault(unit[:2], []).append(unit.slots)
        for work in self._workload:
            found.setdefault(work.unit[:2], []).append(work.slots)
        return {place: list(_joined(ranges)) for place, ranges in sorted(found.items())}

    # Slots ----------------------------------------------------------------------------------------

    def _cut_by_target(self, work: RangeWork) -> list[RangeWork]:
        """The range in parts of which the target says one thing each."""
        if work.state in (RangeState.DRAINING, RangeState.DRAINED):
            return []
        edges = {
            edge
            for unit, epoch in self._target.items()
            if unit[:2] == work.unit[:2]
            for edge in unit.slots
            if work.slots.first < edge < work.slots.end
        }
        parts = [work]
        for edge in sorted(edges):
            last = parts[-1]
            parts.append(self._workload.cut(last, SlotRange(edge, last.slots.end)))
        return parts

    def _judge(self, work: RangeWork, changes: Changes) -> None:
        epoch = next(
            (
                epoch
                for unit, epoch in self._target.items()
                if unit[:2] == work.unit[:2]
                and unit.slots.first <= work.slots.first < unit.slots.end
            ),
            None,
        )
        if epoch is None:
            changes.draining.append(work)
        elif epoch != work.token.epoch:
            changes.lost.append(work)


def _joined(ranges: Iterable[SlotRange]) -> Iterator[SlotRange]:
    last: SlotRange | None = None
    for slots in sorted(ranges):
        if last is not None and slots.first <= last.end:
            last = SlotRange(last.first, max(last.end, slots.end))
            continue
        if last is not None:
            yield last
        last = slots
    if last is not None:
        yield last


def _without(slots: SlotRange, others: Iterable[SlotRange]) -> Iterator[SlotRange]:
    first = slots.first
    for other in sorted(others):
        if other.end <= first or other.first >= slots.end:
            continue
        if first < other.first:
            yield SlotRange(first, other.first)
        first = max(first, other.end)
    if first < slots.end:
        yield SlotRange(first, slots.end)
