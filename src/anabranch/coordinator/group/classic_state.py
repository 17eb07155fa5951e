"""What a classic group is: values that are replaced, never changed.

States
    Empty                no members; offsets may live on
    PreparingRebalance   waiting for the members to rejoin (the join barrier)
    CompletingRebalance  generation begun, waiting for the leader's assignment
    Stable               every member has its assignment
    Dead                 forgotten: no group is ever kept in it, describe shows what is not there so

Transitions
    Empty -> PreparingRebalance                  a member joins
    Stable, CompletingRebalance -> Preparing...  a member joins, leaves, expires or changes
    PreparingRebalance -> CompletingRebalance    all rejoined, or the rebalance timeout ran out
    PreparingRebalance -> Empty                  ... and nobody is left
    CompletingRebalance -> Stable                the leader sent the assignment
    Empty -> Dead                                the group is deleted, or nothing of it is left

What is durable (record type 2 in Kafka's journal): protocol type, generation, protocol, leader, and
each member with its subscription and assignment, written when the group becomes Stable or Empty and
when a static member is replaced. Who waits, who is pending and who has yet to sync is known only to
the living process: after a restart a group is Stable or Empty as it was last written.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from anabranch.coordinator.runtime.result import WaiterId

CONSUMER_PROTOCOL_TYPE = "consumer"


class ClassicState(Enum):
    """The names are those that describe and list show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# A protocol that a member can take part in: its name and its metadata, which stays opaque.
Protocol = tuple[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """One member; what it waits for is soft."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    join_waiter: WaiterId | None = None
    sync_waiter: WaiterId | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a request of it is parked: it cannot send heartbeats meanwhile."""
        return self.join_waiter is not None or self.sync_waiter is not None

    @property
    def protocol_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol; nothing when it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def with_(self, **changes: object) -> "ClassicMember":
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroup:
    """One group; a new value stands for each change."""

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    # When it became Empty or Stable; offsets of an empty group expire by it.
    state_timestamp_ms: int = -1
    members: Mapping[str, ClassicMember] = field(default_factory=dict)
    # Soft: ids handed out with MEMBER_ID_REQUIRED that have not joined yet.
    pending_members: frozenset[str] = frozenset()
    # Soft: members of this generation that have not sent SyncGroup yet.
    pending_syncs: frozenset[str] = frozenset()
    # Soft: the rebalance under way is the first of an empty group, which waits for more to come;
    # somebody new has come, so wait on; and how long that may still go on.
    is_initial: bool = False
    has_new_member: bool = False
    join_delay_left_ms: int = 0

    def with_(self, **changes: object) -> "ClassicGroup":
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks to be waited for."""
        return max((0, *(m.rebalance_timeout_ms for m in self.members.values())))

    @property
    def has_all_joined(self) -> bool:
        if self.pending_members:
            return False
        return all(member.join_waiter is not None for member in self.members.values())

    def static_member(self, group_instance_id: str) -> ClassicMember | None:
        for member in self.members.values():
            if member.group_instance_id == group_instance_id:
                return member
        return None

    def common_protocols(self) -> list[str]:
        """The protocols that every member supports, in the leader's order of preference."""
        members = list(self.members.values())
        first = self.members.get(self.leader_id or "", members[0])
        shared = [name for name, _ in first.protocols]
        for member in members:
            names = [name for name, _ in member.protocols]
            if names != shared:  # most of the time they are the same
                shared = [name for name in shared if name in names]
        return shared

    def supports(self, member_id: str, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether a member with these protocols could take part.

        Its own former protocols count among those of the others, so somebody who is alone cannot
        exchange them for something else entirely either, as in Kafka.
        """
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        former = self.members.get(member_id)
        if former is not None and former.protocol_names == tuple(name for name, _ in protocols):
            # It was fit before, and comes again with the same: nearly every join of a rebalance.
            # Looking at all the others each time would cost the square of the group's size.
            return True
        shared = set(self.common_protocols())
        return any(name in shared for name, _ in protocols)

    def select_protocol(self) -> str:
        """The common protocol that most members name first; the leader's order breaks ties."""
        candidates = self.common_protocols()
        votes = dict.fromkeys(candidates, 0)
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if name in votes)] += 1
        return max(candidates, key=lambda name: votes[name])


def without_soft_state(group: ClassicGroup) -> ClassicGroup:
    """A Stable or Empty group as a restart would find it: of each member the chosen protocol."""
    members = {
        member.member_id: member.with_(
            protocols=((group.protocol_name or "", member.metadata(group.protocol_name)),)
        )
        for member in group.members.values()
    }
    return group.with_(
        members=members,
        pending_members=frozenset(),
        pending_syncs=frozenset(),
        has_new_member=False,
        join_delay_left_ms=0,
    )
