"""Key ranges as units of a consumer group: cuts that all members' units agree on.

Who holds a unit is found by the unit itself, so two units of a partition must be equal or have no
slot in common. A new target may cut a partition elsewhere than the last one did. Before it is
written, what members hold and what they shall hold is cut into the same pieces: a member's unit
becomes several without changing which slots it holds, and moves then go piece by piece. Pieces
that a member holds side by side since the same epoch become one again whenever a target is made,
so that cuts do not pile up.

A member does not know pieces. What it says it owns are any ranges, which are looked up among the
units that it holds.
"""

from collections.abc import Iterable, Mapping, Sequence

from anabranch.coordinator.cooperative.cuts import RangeMember, RangeTopic
from anabranch.coordinator.cooperative.line_cut import line_cut
from anabranch.coordinator.group.assignors.index import Target
from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.consumer_state import ConsumerMember
from anabranch.model.units import ALL_SLOTS, SlotRange, Unit

_Place = tuple[bytes, int]


def shares_partitions(draft: ConsumerDraft) -> bool:
    """Whether there is a member that shares, and a topic of its that may be shared."""
    if not draft.has_sharers:
        return False
    topics = draft.environment.image.topics
    return any(
        name in topics and topics[name].is_shareable
        for member in draft.members().values()
        if member.shares
        for name in draft.topics_of(member)
    )


def range_targets(draft: ConsumerDraft) -> dict[str, Target]:
    """What every member should have when partitions are shared."""
    image = draft.environment.image.topics
    members = [
        RangeMember(
            member_id=member.member_id,
            topics=draft.topics_of(member),
            is_sharing=member.shares,
            instance_id=member.instance_id,
        )
        for member in draft.members().values()
    ]
    names = {name for member in members for name in member.topics if name in image}
    topics = [
        RangeTopic(topic.name, topic.topic_id, topic.partitions, topic.is_shareable)
        for topic in (image[name] for name in sorted(names))
    ]
    held = {member.member_id: draft.target(member.member_id) for member in members}
    return dict(line_cut(members, topics, held).targets)


def owned_units(member: ConsumerMember, owned: tuple[Unit, ...] | None) -> tuple[Unit, ...] | None:
    """What a member says it owns, in the units that it holds; what it does not hold stays as is."""
    if owned is None:
        return None
    held = list(member.held)
    if _are_whole(held) and _are_whole(owned):
        return owned
    said = _ranges_by_place(owned)
    known = [unit for unit in held if _covers(said.get(_place(unit), ()), unit.slots)]
    strange = _without(said, _ranges_by_place(known))
    return (*known, *strange)


def joined(units: Mapping[Unit, int]) -> dict[Unit, int]:
    """The same slots since the same epochs, in as few units as possible."""
    result: dict[Unit, int] = {}
    last: Unit | None = None
    for unit in sorted(units):
        epoch = units[unit]
        if (
            last is not None
            and _place(last) == _place(unit)
            and last.slots.end == unit.slots.first
            and result[last] == epoch
        ):
            del result[last]
            unit = Unit(*_place(unit), SlotRange(last.slots.first, unit.slots.end))
        result[unit] = epoch
        last = unit
    return result


def cut_alike(draft: ConsumerDraft, targets: Mapping[str, Target]) -> dict[str, Target]:
    """All targets in pieces that what members hold agrees with, which is rewritten if need be."""
    holdings = {
        member.member_id: (joined(member.assigned), joined(member.pending_revocation))
        for member in draft.members().values()
    }
    merged = {member_id: joined(dict.fromkeys(target, 0)) for member_id, target in targets.items()}
    edges: dict[_Place, set[int]] = {}
    for units in (*merged.values(), *(one for pair in holdings.values() for one in pair)):
        for unit in units:
            edges.setdefault(_place(unit), set()).update(unit.slots)
    cuts = {place: sorted(slots) for place, slots in edges.items()}
    for member in list(draft.members().values()):
        assigned, pending = (_cut(units, cuts) for units in holdings[member.member_id])
        if assigned != member.assigned or pending != member.pending_revocation:
            draft.rewrite_units(member.with_(assigned=assigned, pending_revocation=pending))
    return {member_id: frozenset(_cut(units, cuts)) for member_id, units in merged.items()}


def whole_partitions_of(units: Sequence[Unit]) -> Sequence[Unit]:
    """The partitions that units cover entirely, each as one unit: all that a stock member knows."""
    if _are_whole(units):
        return units
    return [
        Unit(topic_id, partition)
        for (topic_id, partition), ranges in _ranges_by_place(units).items()
        if ranges == [ALL_SLOTS]
    ]


def _place(unit: Unit) -> _Place:
    return unit.topic_id, unit.partition


def _are_whole(units: Iterable[Unit]) -> bool:
    return all(unit.slots == ALL_SLOTS for unit in units)


def _ranges_by_place(units: Iterable[Unit]) -> dict[_Place, list[SlotRange]]:
    """The slots of units by partition, in order, neighbours and overlaps joined."""
    found: dict[_Place, list[SlotRange]] = {}
    for unit in sorted(units):
        ranges = found.setdefault(_place(unit), [])
        if ranges and unit.slots.first <= ranges[-1].end:
            ranges[-1] = SlotRange(ranges[-1].first, max(ranges[-1].end, unit.slots.end))
        else:
            ranges.append(unit.slots)
    return found


def _covers(ranges: Iterable[SlotRange], slots: SlotRange) -> bool:
    return any(one.first <= slots.first and slots.end <= one.end for one in ranges)


def _without(
    said: Mapping[_Place, list[SlotRange]], known: Mapping[_Place, list[SlotRange]]
) -> list[Unit]:
    rest: list[Unit] = []
    for place, ranges in said.items():
        for first, end in ranges:
            for taken in known.get(place, ()):
                if first <= taken.first and taken.end <= end:
                    if first < taken.first:
                        rest.append(Unit(*place, SlotRange(first, taken.first)))
                    first = taken.end
            if first < end:
                rest.append(Unit(*place, SlotRange(first, end)))
    return rest


def _cut(units: Mapping[Unit, int], cuts: Mapping[_Place, list[int]]) -> dict[Unit, int]:
    pieces: dict[Unit, int] = {}
    for unit, epoch in units.items():
        first, end = unit.slots
        for edge in cuts[_place(unit)]:
            if first < edge <= end:
                pieces[Unit(*_place(unit), SlotRange(first, edge))] = epoch
                first = edge
    return pieces
