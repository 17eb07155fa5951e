"""Who holds which slots of a partition, as the group says: there is no second truth."""

from collections.abc import Iterable
from typing import NamedTuple

from anabranch.coordinator.cooperative.acks import Holdings
from anabranch.coordinator.group.consumer_state import ConsumerGroup, ConsumerMember
from anabranch.model.units import ALL_SLOTS, SlotRange, Unit

NO_EPOCH = -1
# What nobody in particular holds while a group has no members.
EVERYTHING = Holdings(NO_EPOCH, {ALL_SLOTS: NO_EPOCH})


def holdings_of(member: ConsumerMember, topic_id: bytes, partition: int) -> Holdings:
    """What a member holds of a partition, what it has yet to give back included."""
    whole = Unit(topic_id, partition)
    epoch = member.assigned.get(whole)
    if epoch is not None:
        return Holdings(member.member_epoch, {ALL_SLOTS: epoch})
    return Holdings(
        member.member_epoch,
        {
            unit.slots: epoch
            for units in (member.assigned, member.pending_revocation)
            for unit, epoch in units.items()
            if unit.topic_id == topic_id and unit.partition == partition
        },
    )


class OwnedSlots(NamedTuple):
    """Slots of a partition, their owner, and since which epoch it has them."""

    slots: SlotRange
    owner: str
    epoch: int


def owners_by_place(group: ConsumerGroup) -> dict[tuple[bytes, int], list[OwnedSlots]]:
    """The owners of all that is owned, by topic id and partition, in the order of the slots."""
    found: dict[tuple[bytes, int], list[OwnedSlots]] = {}
    for member in group.members.values():
        for units in (member.assigned, member.pending_revocation):
            for unit, epoch in units.items():
                owned = OwnedSlots(unit.slots, member.member_id, epoch)
                found.setdefault((unit.topic_id, unit.partition), []).append(owned)
    for owners in found.values():
        owners.sort()
    return found


def is_shared(units: Iterable[Unit], topic_id: bytes, partition: int) -> bool:
    """Whether some unit is a part of the partition."""
    return any(
        unit.topic_id == topic_id and unit.partition == partition and unit.slots != ALL_SLOTS
        for unit in units
    )
