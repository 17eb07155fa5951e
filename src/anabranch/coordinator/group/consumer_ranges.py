"""Key ranges as units of a consumer group: what assignors are told, and cuts that all agree on.

Who holds a unit is found by the unit itself, so two units of a partition must be equal or have no
slot in common. A new target may cut a partition elsewhere than the last one did. Before it is
written, what members hold and what they shall hold is cut into the same pieces (`cut_alike`, see
`unit_cuts`).
"""

from collections.abc import Mapping, Sequence

from anabranch.coordinator.cooperative.cuts import RangeMember, RangeTopic
from anabranch.coordinator.cooperative.unit_cuts import (
    Holding,
    are_whole,
    covered,
    ranges_by_partition,
    recut,
    uncovered,
)
from anabranch.coordinator.group.assignors.index import Target
from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.consumer_state import ConsumerMember
from anabranch.model.units import ALL_SLOTS, Unit


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


def range_members(draft: ConsumerDraft) -> list[RangeMember]:
    """The members as an assignor of ranges knows them."""
    return [
        RangeMember(
            member_id=member.member_id,
            topics=draft.topics_of(member),
            is_sharing=member.shares,
            instance_id=member.instance_id,
        )
        for member in draft.members().values()
    ]


def range_topics(draft: ConsumerDraft, members: Sequence[RangeMember]) -> list[RangeTopic]:
    """The topics that these subscribe to, as far as there are such."""
    image = draft.environment.image.topics
    names = {name for member in members for name in member.topics if name in image}
    return [
        RangeTopic(topic.name, topic.topic_id, topic.partitions, topic.is_shareable)
        for topic in (image[name] for name in sorted(names))
    ]


def owned_units(member: ConsumerMember, owned: tuple[Unit, ...] | None) -> tuple[Unit, ...] | None:
    """What a member says it owns, in the units that it holds; what it does not hold stays as is."""
    if owned is None:
        return None
    held = list(member.held)
    if are_whole(held) and are_whole(owned):
        return owned
    known = covered(held, owned)
    return (*known, *uncovered(owned, known))


def cut_alike(draft: ConsumerDraft, targets: Mapping[str, Target]) -> Mapping[str, Target]:
    """All targets in pieces that what members hold agrees with, which is rewritten if need be."""
    members = draft.members()
    found = recut(
        {
            member.member_id: Holding(member.assigned, member.pending_revocation)
            for member in members.values()
        },
        targets,
    )
    for member_id, holding in found.holdings.items():
        draft.rewrite_units(
            members[member_id].with_(
                assigned=holding.assigned, pending_revocation=holding.pending_revocation
            )
        )
    return found.targets


def whole_partitions_of(units: Sequence[Unit]) -> Sequence[Unit]:
    """The partitions that units cover entirely, each as one unit: all that a stock member knows."""
    if are_whole(units):
        return units
    return [
        Unit(topic_id, partition)
        for (topic_id, partition), ranges in ranges_by_partition(units).items()
        if ranges == [ALL_SLOTS]
    ]
