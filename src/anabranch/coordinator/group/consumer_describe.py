"""What ConsumerGroupDescribe says of a consumer group, and who waits for whom.

A movement is a unit that is not where it should be: still with a member that has to give it up, or
free and not yet taken by the member that it is meant for.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.coordinator.group.consumer_draft import ConsumerDraft, Environment
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.consumer_target import assignor_of
from anabranch.model.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerMember:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    # What it holds, with what it has yet to give back (KAFKA-20431).
    assignment: tuple[Unit, ...]
    target: tuple[Unit, ...]
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A unit on its way; None stands for nobody."""

    unit: Unit
    from_member_id: str | None
    to_member_id: str | None
    # "revoking": its owner has been told, or will be with its next heartbeat, to give it up;
    # "assigning": it is free, and goes to the next owner with that one's next heartbeat.
    state: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    group_id: str
    state: str
    group_epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumerMember, ...]
    movements: tuple[Movement, ...]


def describe_consumer_group(
    group: ConsumerGroup, environment: Environment
) -> DescribedConsumerGroup:
    """A group with its members, and what is on its way."""
    return DescribedConsumerGroup(
        group_id=group.group_id,
        state=group.state.value,
        group_epoch=group.group_epoch,
        target_epoch=group.target_epoch,
        assignor=assignor_of(ConsumerDraft(group, environment, 0)).name,
        members=tuple(
            DescribedConsumerMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topic_names,
                subscribed_topic_regex=member.subscribed_topic_regex,
                assignment=tuple(sorted(member.held)),
                target=tuple(sorted(group.target(member.member_id))),
                is_classic=member.classic is not None,
            )
            for member in group.members.values()
        ),
        movements=tuple(movements(group)),
    )


def movements(group: ConsumerGroup) -> Iterable[Movement]:
    """The units that are not where they should be, in their order."""
    if group.is_settled:
        return []
    wanted = {unit: member_id for member_id, units in group.targets.items() for unit in units}
    found = []
    for unit in wanted.keys() | group.owners.keys():
        owner_id, heir_id = group.owners.get(unit), wanted.get(unit)
        if owner_id == heir_id:
            continue
        found.append(
            Movement(
                unit=unit,
                from_member_id=owner_id,
                to_member_id=heir_id,
                state="assigning" if owner_id is None else "revoking",
                since_ms=group.moving_since_ms.get(unit, group.target_timestamp_ms),
            )
        )
    return sorted(found, key=lambda movement: movement.unit)
