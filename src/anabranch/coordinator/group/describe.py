"""What DescribeGroups and ListGroups say of a group."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from anabranch.coordinator.group.classic_state import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicState,
)
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.model.errors import ErrorCode

CLASSIC_GROUP_TYPE = "classic"
CONSUMER_GROUP_TYPE = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    # GROUP_ID_NOT_FOUND is for those who know it (version 6 on); others are told the state, Dead.
    error: ErrorCode = ErrorCode.NONE
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    type: str


def describe_group(group_id: str, group: ClassicGroup | ConsumerGroup | None) -> DescribedGroup:
    """A group with its members; one that is not there, or of the other protocol, is Dead."""
    if not isinstance(group, ClassicGroup):
        return DescribedGroup(
            error=ErrorCode.GROUP_ID_NOT_FOUND, group_id=group_id, state=ClassicState.DEAD.value
        )
    # Between generations there is no protocol that a member's metadata could belong to; what it was
    # assigned in the last one is shown until the next.
    is_stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group_id,
        state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_name=(group.protocol_name or "") if is_stable else "",
        members=tuple(
            DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(group.protocol_name) if is_stable else b"",
                assignment=member.assignment,
            )
            for member in group.members.values()
        ),
    )


def list_groups(
    groups: Iterable[ClassicGroup | ConsumerGroup],
    states: Collection[str] = (),
    types: Collection[str] = (),
) -> list[ListedGroup]:
    """The groups in one of the states and of one of the types; no filter lets everything pass.

    Filters are names in any case. A name that means nothing here matches nothing.
    """
    wanted_states = {state.strip().lower() for state in states}
    wanted_types = {name.strip().lower() for name in types}
    return [
        listed
        for listed in map(_listed, groups)
        if (not wanted_states or listed.state.lower() in wanted_states)
        and (not wanted_types or listed.type in wanted_types)
    ]


def _listed(group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        protocol_type, group_type = CONSUMER_PROTOCOL_TYPE, CONSUMER_GROUP_TYPE
    else:
        protocol_type, group_type = group.protocol_type or "", CLASSIC_GROUP_TYPE
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=protocol_type,
        state=group.state.value,
        type=group_type,
    )
