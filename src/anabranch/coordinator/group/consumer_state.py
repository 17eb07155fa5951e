"""What a consumer group of the next-generation protocol is (KIP-848).

Three epochs order everything. The group epoch grows with every change that calls for a new
assignment; the target epoch is the group epoch that the target assignment was computed for; a
member's epoch is the target epoch it has caught up with. A member catches up by itself, heartbeat
by heartbeat (see `reconcile`), while the others go on.

States of a group, derived and never stored
    Empty         no members
    Assigning     the target is older than the group epoch
    Reconciling   some member has not caught up with the target
    Stable        all have

States of a member
    STABLE                 owns what it should at its epoch
    UNREVOKED_PARTITIONS   has been told to give units up and has not confirmed it
    UNRELEASED_PARTITIONS  waits for units that others have not released yet

Records: the group epoch (type 3), members as they describe themselves (5), the target epoch (6),
the target of each member (7), what each member owns (8), resolved regular expressions (16). The
journal is compacted, so that the records of a member may come in any order. `replay_*` below are
the only ways a group changes; everything else here is derived from them.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TypeVar

from anabranch.coordinator.group.assignors.crews import MemberSpec
from anabranch.coordinator.group.assignors.index import NO_TARGET, Target, TargetIndex
from anabranch.coordinator.group.classic_state import Protocol
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.units import ALL_SLOTS, Unit

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
# A group begins with an empty target at this epoch: a member that joins while the first real one is
# still to be computed has an epoch to be at (KAFKA-20268).
FIRST_EPOCH = 1

T = TypeVar("T")


class MemberState(IntEnum):
    """The numbers are those of the journal."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ConsumerGroupState(Enum):
    """The names are those that describe and list show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMembership:
    """What a member that speaks the classic protocol brought with its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member: what it says of itself, and what it owns since which epoch."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] = ()
    # None and "" both mean that there is none.
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    # None for a member that speaks the consumer protocol.
    classic: ClassicMembership | None = None
    # Whether it takes key ranges of partitions; all others own whole partitions only.
    shares: bool = False
    member_epoch: int = JOINING_EPOCH
    previous_member_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    # Each unit with the epoch it was assigned at (KIP-1251).
    assigned: Mapping[Unit, int] = field(default_factory=dict)
    pending_revocation: Mapping[Unit, int] = field(default_factory=dict)

    def with_(self, **changes: object) -> "ConsumerMember":
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def described_as(self, described: "ConsumerMember") -> "ConsumerMember":
        """This member's epochs and units under the description of another."""
        return described.with_(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned=self.assigned,
            pending_revocation=self.pending_revocation,
        )

    def owning_as(self, current: "ConsumerMember") -> "ConsumerMember":
        """This member's description with the epochs and units of another."""
        return current.described_as(self)

    @property
    def held(self) -> Iterator[Unit]:
        """All that nobody else may own: what it has, and what it has yet to give back."""
        yield from self.assigned
        yield from self.pending_revocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that a regular expression matched in one image of the cluster."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """One group; changed by replay only."""

    def __init__(self, group_id: str, image: ClusterImage) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        # Derived from here on. The index has the targets, and what an assignor wants to know.
        self.index = TargetIndex()
        self.index.set_image(image)
        self.owners: dict[Unit, str] = {}
        self.static_members: dict[str, str] = {}
        self.votes: Counter[str] = Counter()
        self.regex_subscribers: Counter[str] = Counter()
        self.classic_members = 0
        self.sharing_members = 0
        # How many of the units that members hold are less than a partition.
        self.held_ranges = 0
        # How many members are STABLE at each epoch, so that the state of ten thousand is one look.
        self._stable_at: Counter[int] = Counter()
        self._by_state: Counter[MemberState] = Counter()
        # Since when a unit has been on its way to another member; for people to look at.
        self.moving_since_ms: dict[Unit, int] = {}
        self._retargeted: set[Unit] = set()

    # Looking --------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if self._stable_at[self.target_epoch] < len(self.members):
            return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way."""
        return self.group_epoch == self.target_epoch and self._stable_at[self.target_epoch] == len(
            self.members
        )

    def has_caught_up(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.member_epoch == self.target_epoch

    def count_in_state(self, state: MemberState) -> int:
        return self._by_state[state]

    @property
    def targets(self) -> Mapping[str, Target]:
        return self.index.targets

    def target(self, member_id: str) -> Target:
        return self.index.targets.get(member_id, NO_TARGET)

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics that any member is subscribed to."""
        return frozenset(self.index.subscribed_topics)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Names and what the regular expression matched; one not resolved yet matches nothing."""
        topics = frozenset(member.subscribed_topic_names)
        resolved = self.regexes.get(member.subscribed_topic_regex or "")
        return topics | resolved.topics if resolved is not None else topics

    # Changing -------------------------------------------------------------------------------------

    def replay_image(self, image: ClusterImage) -> None:
        self.index.set_image(image)

    def replay_epoch(self, epoch: int, metadata_hash: int) -> None:
        self.group_epoch = epoch
        self.metadata_hash = metadata_hash

    def replay_member(self, member_id: str, described: ConsumerMember | None) -> None:
        """Type 5: how a member describes itself; what it owns is left as it is."""
        known = self.members.get(member_id)
        if known is not None:
            self._forget(known)
        if described is None:
            if known is not None:
                self._release(known)
                self.index.remove_member(member_id)
                del self.members[member_id]
            return
        self._remember(known.described_as(described) if known is not None else described)

    def replay_current(self, member_id: str, current: ConsumerMember | None) -> None:
        """Type 8: what a member owns now. `current` brings epochs, state and units only."""
        known = self.members.get(member_id)
        if current is None:
            if known is None:
                return
            current = ConsumerMember(
                member_id=member_id,
                member_epoch=LEAVING_EPOCH,
                previous_member_epoch=LEAVING_EPOCH,
            )
        if known is None:
            # Compaction may have kept it while the description was written again further down.
            self._remember(ConsumerMember(member_id=member_id).owning_as(current))
        else:
            self._release(known)
            self._forget(known)
            self._remember(known.owning_as(current))
        changed = self.members[member_id]
        target = self.target(member_id)
        for unit in changed.held:
            if unit.slots != ALL_SLOTS and unit not in self.owners:
                self.held_ranges += 1
            self.owners[unit] = member_id
            if unit in target:
                self.moving_since_ms.pop(unit, None)
                self._retargeted.discard(unit)
        self._forget_movements_if_settled()

    def replay_target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        self.target_epoch = epoch
        self.target_timestamp_ms = timestamp_ms
        for unit in self._retargeted:
            self.moving_since_ms.setdefault(unit, timestamp_ms)
        self._retargeted.clear()
        self._forget_movements_if_settled()

    def replay_target(self, member_id: str, target: Target | None) -> None:
        before, after = self.target(member_id), target or NO_TARGET
        for unit in after - before:
            if self.owners.get(unit) == member_id:
                self.moving_since_ms.pop(unit, None)
            else:
                self._retargeted.add(unit)
        for unit in before - after:
            if self.owners.get(unit) == member_id:
                self._retargeted.add(unit)
            else:
                self.moving_since_ms.pop(unit, None)
        self.index.set_target(member_id, target)

    def _forget_movements_if_settled(self) -> None:
        """Units of topics that are gone, or that nobody wants any more, arrive nowhere."""
        if self.moving_since_ms and self.is_settled:
            self.moving_since_ms.clear()

    def replay_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        known = self.regexes.get(regex)
        if resolved is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = resolved
        if (known.topics if known else None) == (resolved.topics if resolved else None):
            return
        for member in self.members.values():
            if member.subscribed_topic_regex == regex:
                self.index.set_member(self.spec_of(member))

    def spec_of(self, member: ConsumerMember) -> MemberSpec:
        """What an assignor is told of a member."""
        return MemberSpec(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            topics=self.topics_of(member),
        )

    def _remember(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if member.server_assignor is not None:
            self.votes[member.server_assignor] += 1
        if member.subscribed_topic_regex:
            self.regex_subscribers[member.subscribed_topic_regex] += 1
        if member.classic is not None:
            self.classic_members += 1
        self.sharing_members += member.shares
        self._by_state[member.state] += 1
        if member.state is MemberState.STABLE:
            self._stable_at[member.member_epoch] += 1
        self.index.set_member(self.spec_of(member))

    def _forget(self, member: ConsumerMember) -> None:
        """Take a member out of everything that is counted; `_remember` is its reverse."""
        instance_id = member.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]
        if member.server_assignor is not None:
            _count_down(self.votes, member.server_assignor)
        if member.subscribed_topic_regex:
            _count_down(self.regex_subscribers, member.subscribed_topic_regex)
        if member.classic is not None:
            self.classic_members -= 1
        self.sharing_members -= member.shares
        _count_down(self._by_state, member.state)
        if member.state is MemberState.STABLE:
            _count_down(self._stable_at, member.member_epoch)

    def _release(self, member: ConsumerMember) -> None:
        for unit in member.held:
            if self.owners.get(unit) == member.member_id:
                del self.owners[unit]
                self.held_ranges -= unit.slots != ALL_SLOTS


def _count_down(counter: Counter[T], key: T) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
