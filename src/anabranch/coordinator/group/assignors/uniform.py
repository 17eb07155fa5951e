"""The `uniform` assignor: even loads first, then as few moves as can be, then near racks.

With one subscription for all it looks at nothing but members whose load is not what it should be,
which after one join or leave are those who give or get a unit. With several, numbers of units are
first shared out between crews (see `shares`), then each crew is leveled by itself.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

from anabranch.coordinator.group.assignors.crews import Buckets, Crew, Holder
from anabranch.coordinator.group.assignors.index import Target, TargetIndex
from anabranch.coordinator.group.assignors.level import Leveling
from anabranch.coordinator.group.assignors.plan import Plan, Pool, Segment, Stack
from anabranch.coordinator.group.assignors.rack_level import RackLeveling
from anabranch.coordinator.group.assignors.racks import RackView, rack_view
from anabranch.coordinator.group.assignors.shares import share_out
from anabranch.model.units import Unit


class UniformAssignor:
    """Even, sticky, rack-aware."""

    name = "uniform"

    def assign(self, index: TargetIndex) -> Mapping[str, Target]:
        """The targets that change."""
        plan = Plan(index)
        crews = sorted(index.crews.values(), key=lambda crew: crew.names)
        racks = rack_view(index)
        if len(crews) == 1:
            (crew,) = crews
            pool = Pool(index)
            for topic_id in index.open_topics:
                pool.add_free(topic_id)
            _level(plan, index, crew, crew.buckets, crew.load, pool, racks)
        elif crews:
            _assign_crews(plan, index, crews, racks)
        return plan.finished()


def _level(
    plan: Plan,
    index: TargetIndex,
    crew: Crew,
    buckets: Buckets,
    load: int,
    pool: Pool,
    racks: RackView | None,
) -> None:
    if racks is None:
        Leveling(plan, index, crew, buckets, load, pool).run()
    else:
        RackLeveling(plan, index, crew, buckets, load, pool, racks).run()


# Several subscriptions ----------------------------------------------------------------------------


def _assign_crews(
    plan: Plan, index: TargetIndex, crews: Sequence[Crew], racks: RackView | None
) -> None:
    changes = share_out(index, crews)
    spare = Pool(index)
    for topic_id in index.open_topics:
        spare.add_free(topic_id)
    buckets = []
    for crew, change in zip(crews, changes, strict=True):
        fewer = {topic_id: -count for topic_id, count in change.items() if count < 0}
        buckets.append(_give_away(plan, index, crew, fewer, spare) if fewer else crew.buckets)
    by_topic: dict[bytes, list[Segment]] = {}
    for segment in spare.segments():
        by_topic.setdefault(segment.topic_id, []).append(segment)
    stacks = {topic_id: Stack(segments) for topic_id, segments in by_topic.items()}
    for crew, left, change in zip(crews, buckets, changes, strict=True):
        pool = Pool(index)
        load = crew.load
        for topic_id in sorted(change):
            if change[topic_id] < 0:
                load += change[topic_id]
                continue
            for segment in stacks[topic_id].take(change[topic_id]):
                pool.add(segment)
        _level(plan, index, crew, left, load, pool, racks)


def _give_away(
    plan: Plan, index: TargetIndex, crew: Crew, fewer: Mapping[bytes, int], spare: Pool
) -> Buckets:
    """Take so many units of each topic from a crew; the crew's buckets afterwards."""
    taken: dict[Holder, list[Unit]] = {}
    for topic_id in sorted(fewer):
        _take_of_topic(index, crew, topic_id, fewer[topic_id], taken)
    buckets = crew.buckets.copy()
    for holder in sorted(taken, key=lambda holder: holder.key):
        units = taken[holder]
        buckets.remove(holder.load, holder.rack, holder.key)
        buckets.add(holder.load - len(units), holder.rack, holder.key)
        plan.take(holder.member_id, units)
        spare.add_units(units)
    return buckets


def _take_of_topic(
    index: TargetIndex, crew: Crew, topic_id: bytes, count: int, taken: dict[Holder, list[Unit]]
) -> None:
    """Take units of one topic from those members of a crew who have most."""
    owned: dict[Holder, list[int]] = {}
    for partition, owner in enumerate(index.topics[topic_id].owners):
        if owner is not None and owner.crew is crew:
            owned.setdefault(owner, []).append(partition)
    # Most units first, then in order; the number only keeps holders from being compared.
    heap = [
        (len(taken.get(holder, ())) - holder.load, number, holder)
        for number, holder in enumerate(sorted(owned, key=lambda owner: owner.key, reverse=True))
    ]
    heapify(heap)
    for _ in range(count):
        load, number, holder = heap[0]
        taken.setdefault(holder, []).append(Unit(topic_id, owned[holder].pop()))
        # Who has nothing left of the topic goes to the end.
        heapreplace(heap, (load + 1 if owned[holder] else 0, number, holder))
