"""Racks: which units go to which rack, so that as many as can be are read from nearby.

Only choices that are as good for balance and stickiness get here: units that need an owner anyhow,
and racks with as many places as their members are short of. What is left is a matter of flow from
kinds of units (by the racks of their replicas) to racks, of the size of the number of racks.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from anabranch.coordinator.group.assignors.index import TargetIndex
from anabranch.coordinator.group.assignors.plan import Segment
from anabranch.model.units import Unit

# The racks of a unit's replicas, as far as members are in them.
Kind = frozenset[str]

_SOURCE, _SINK, _EXTRAS = 0, 1, 2


class RackView:
    """The racks of units, as seen by a group."""

    __slots__ = ("_index", "_kinds", "_racks")

    def __init__(self, index: TargetIndex) -> None:
        self._index = index
        self._racks = frozenset(index.racks)
        self._kinds: dict[frozenset[str], Kind] = {}

    def of(self, unit: Unit) -> Kind:
        racks = self._index.topics[unit[0]].racks_of(unit[1])
        kind = self._kinds.get(racks)
        return self._kind(racks) if kind is None else kind

    def by_kind(self, segments: Iterable[Segment]) -> dict[Kind, list[Segment]]:
        """Units sorted into kinds; kinds and their units are in order."""
        found: dict[Kind, list[Segment]] = {}
        for segment in segments:
            topic = self._index.topics[segment.topic_id]
            if len(segment) == topic.image.partitions:
                by_racks = topic.by_racks
            else:
                by_racks = {}
                for place, partition in enumerate(segment.partitions):
                    by_racks.setdefault(topic.racks_of(partition), []).append(place)
            for racks, places in by_racks.items():
                found.setdefault(self._kind(racks), []).append(segment.pick(places))
        return {kind: found[kind] for kind in sorted(found, key=sorted)}

    def _kind(self, racks: frozenset[str]) -> Kind:
        kind = self._kinds.get(racks)
        if kind is None:
            kind = self._kinds[racks] = racks & self._racks
        return kind


def rack_view(index: TargetIndex) -> RackView | None:
    """None if racks make no difference: nobody has one, or no partition does."""
    if not index.racks or not any(topic.image.racks for topic in index.topics.values()):
        return None
    return RackView(index)


@dataclass(frozen=True, slots=True)
class Places:
    """What a rack can take: `need` units for members who are short, and one for each of `room`."""

    need: int
    room: int


@dataclass(slots=True)
class Allotment:
    """What a rack gets: so many units of each kind, `extras` of them beyond its need."""

    units: dict[Kind, int]
    extras: int = 0


def allot(
    supply: Mapping[Kind, int], places: Mapping[str, Places], extras: int
) -> dict[str, Allotment]:
    """Hand out all units: every need is met, and `extras` of the rest find room.

    As many units as possible go to a rack of their own; the number of units is that of the needs
    and extras together.
    """
    result = {rack: Allotment({}) for rack in places}
    left = dict(supply)
    need = {rack: place.need for rack, place in places.items()}
    for kind, rack, count in _near(supply, places, extras):
        result[rack].units[kind] = count
        left[kind] -= count
        met = min(count, need[rack])
        need[rack] -= met
        result[rack].extras += count - met
        extras -= count - met
    for kind in sorted(left, key=len):
        for rack, allotment in result.items():
            spare = min(extras, places[rack].room - allotment.extras)
            count = min(left[kind], need[rack] + spare)
            if count:
                met = min(count, need[rack])
                need[rack] -= met
                allotment.extras += count - met
                extras -= count - met
                allotment.units[kind] = allotment.units.get(kind, 0) + count
                left[kind] -= count
    return result


def _near(
    supply: Mapping[Kind, int], places: Mapping[str, Places], extras: int
) -> Iterable[tuple[Kind, str, int]]:
    """As many units as can go to a rack of their own, as (kind, rack, count)."""
    kinds = [kind for kind in supply if kind]
    network: dict[Hashable, dict[Hashable, int]] = {
        _SOURCE: {kind: supply[kind] for kind in kinds},
        _EXTRAS: {_SINK: extras},
        _SINK: {},
    }
    for kind in kinds:
        network[kind] = {rack: supply[kind] for rack in sorted(kind) if rack in places}
    for rack, place in places.items():
        network[rack] = {_SINK: place.need, _EXTRAS: place.room}
    _push_flow(network)
    for kind in kinds:
        for rack in sorted(kind):
            # What flowed is the capacity of the way back.
            if rack in places and (count := network[rack].get(kind, 0)):
                yield kind, rack, count


def _push_flow(capacity: dict[Hashable, dict[Hashable, int]]) -> None:
    """Push as much as can flow from source to sink; `capacity` is what is left afterwards."""
    while True:
        came_from: dict[Hashable, Hashable] = {_SOURCE: _SOURCE}
        queue: deque[Hashable] = deque([_SOURCE])
        while queue and _SINK not in came_from:
            node = queue.popleft()
            for after, room in capacity[node].items():
                if room and after not in came_from:
                    came_from[after] = node
                    queue.append(after)
        if _SINK not in came_from:
            return
        path: list[tuple[Hashable, Hashable]] = []
        node = _SINK
        while node != _SOURCE:
            path.append((came_from[node], node))
            node = came_from[node]
        amount = min(capacity[start][end] for start, end in path)
        for start, end in path:
            capacity[start][end] -= amount
            capacity[end][start] = capacity[end].get(start, 0) + amount
