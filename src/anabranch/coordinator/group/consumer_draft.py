"""A decision about a consumer group in the making: the group as it would be, and what follows.

A draft lives inside one `decide` call. It lies over the group: what is written to it is seen
through it, and the group itself stays as it is until the records are replayed.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.coordinator.cooperative.commands import AbortTransactions
from anabranch.coordinator.cooperative.cuts import Partition
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.group.assignors.crews import MemberSpec
from anabranch.coordinator.group.assignors.index import Target
from anabranch.coordinator.group.assignors.registry import AssignorRegistry
from anabranch.coordinator.group.cadence import heartbeat_interval_ms, session_timeout_ms
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_records import (
    CurrentWritten,
    GroupEpochWritten,
    MemberWritten,
    RegexWritten,
    TargetEpochWritten,
    TargetWritten,
)
from anabranch.coordinator.group.consumer_settings import ConsumerSettings
from anabranch.coordinator.group.consumer_state import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
)
from anabranch.coordinator.group.draft import session_timer
from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.units import Unit


def rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """The end of the time that a member has to give up what it was told to."""
    return ("rebalance", group_id, member_id)


def member_join_timer(group_id: str, member_id: str) -> TimerKey:
    """The end of the time that a classic member has to rejoin when it was told to."""
    return ("member-join", group_id, member_id)


def member_sync_timer(group_id: str, member_id: str) -> TimerKey:
    """The end of the time that a classic member has to ask for its assignment after it joined."""
    return ("member-sync", group_id, member_id)


def target_timer(group_id: str) -> TimerKey:
    """The time for a new target, where the last one was made only just now."""
    return ("target", group_id)


def refresh_timer(group_id: str) -> TimerKey:
    """The time to look at the topics again: after a start, and for regular expressions."""
    return ("refresh", group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a decision may know beside the group."""

    image: ClusterImage
    assignors: AssignorRegistry
    settings: ConsumerSettings
    # How much work the slots of partitions are that the group shares, as far as it was measured.
    slot_weights: Callable[[], Mapping[Partition, SlotWeights]] = dict
    # All members of consumer groups of this broker: they share the budget of heartbeats.
    broker_members: int = 0
    # Whether records of a unit are acknowledged, and whether offsets of its partition are
    # committed, in transactions that are open.
    is_acknowledged: Callable[[Unit], bool] = lambda unit: False
    is_committed: Callable[[Unit], bool] = lambda unit: False
    # The producers in whose transactions a member has acknowledged something.
    producers_of: Callable[[str], tuple[tuple[int, int], ...]] = lambda member_id: ()


class ConsumerDraft:
    """A group with the changes of one decision."""

    def __init__(self, group: ConsumerGroup, environment: Environment, now_ms: int) -> None:
        self.group = group
        self.group_id = group.group_id
        self.environment = environment
        self.settings = environment.settings
        self.now_ms = now_ms
        self.group_epoch = group.group_epoch
        self.target_epoch = group.target_epoch
        self.target_timestamp_ms = group.target_timestamp_ms
        self.records: list[Any] = []
        self.spec_changes: dict[str, MemberSpec | None] = {}
        self.target_changes: dict[str, Target | None] = {}
        self._members: dict[str, ConsumerMember | None] = {}
        # Who holds units that were cut by this decision.
        self._owners: dict[Unit, str] = {}
        self._regexes: dict[str, ResolvedRegex | None] = {}
        self._timers: dict[TimerKey, TimerChange] = {}
        self._tasks: list[Any] = []

    # Looking --------------------------------------------------------------------------------------

    def member(self, member_id: str) -> ConsumerMember | None:
        if member_id in self._members:
            return self._members[member_id]
        return self.group.members.get(member_id)

    @property
    def member_count(self) -> int:
        count = len(self.group.members)
        for member_id, member in self._members.items():
            count += (member is not None) - (member_id in self.group.members)
        return count

    @property
    def has_sharers(self) -> bool:
        """Whether any member takes key ranges."""
        count = self.group.sharing_members
        for member_id, member in self._members.items():
            before = self.group.members.get(member_id)
            count += (member is not None and member.shares) - (before is not None and before.shares)
        return count > 0

    @property
    def classic_count(self) -> int:
        """How many members speak the classic protocol."""
        count = self.group.classic_members
        for member_id, member in self._members.items():
            before = self.group.members.get(member_id)
            count += (member is not None and member.classic is not None) - (
                before is not None and before.classic is not None
            )
        return count

    def members(self) -> Mapping[str, ConsumerMember]:
        """All members; costs a copy where there are changes."""
        if not self._members:
            return self.group.members
        merged: dict[str, Any] = {**self.group.members, **self._members}
        return {member_id: member for member_id, member in merged.items() if member is not None}

    def holder_of(self, instance_id: str) -> ConsumerMember | None:
        """The member with an instance id."""
        for member in self._members.values():
            if member is not None and member.instance_id == instance_id:
                return member
        holder_id = self.group.static_members.get(instance_id)
        if holder_id is None:
            return None
        holder = self.member(holder_id)
        return holder if holder is not None and holder.instance_id == instance_id else None

    def target(self, member_id: str) -> Target:
        if member_id in self.target_changes:
            return self.target_changes[member_id] or frozenset()
        return self.group.target(member_id)

    def regex(self, regex: str) -> ResolvedRegex | None:
        if regex in self._regexes:
            return self._regexes[regex]
        return self.group.regexes.get(regex)

    def regex_subscribers(self, regex: str) -> int:
        count = self.group.regex_subscribers[regex]
        for member_id, member in self._members.items():
            before = self.group.members.get(member_id)
            count += (member is not None and member.subscribed_topic_regex == regex) - (
                before is not None and before.subscribed_topic_regex == regex
            )
        return count

    def regexes(self) -> tuple[str, ...]:
        """The expressions that any member is subscribed to, in order."""
        candidates = set(self.group.regex_subscribers)
        for member in self._members.values():
            if member is not None and member.subscribed_topic_regex:
                candidates.add(member.subscribed_topic_regex)
        return tuple(sorted(regex for regex in candidates if self.regex_subscribers(regex)))

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        topics = frozenset(member.subscribed_topic_names)
        resolved = self.regex(member.subscribed_topic_regex or "")
        return topics | resolved.topics if resolved is not None else topics

    def votes(self) -> Counter[str]:
        """How many members ask for each assignor."""
        votes = self.group.votes.copy()
        for member_id, member in self._members.items():
            before = self.group.members.get(member_id)
            if before is not None and before.server_assignor is not None:
                votes[before.server_assignor] -= 1
            if member is not None and member.server_assignor is not None:
                votes[member.server_assignor] += 1
        return votes

    def is_free_for(self, member_id: str, unit: Unit) -> bool:
        """Whether nobody else holds a unit, and nobody's transaction may yet change what is done.

        Stock members ask for stable offsets where that matters to them, and wait for these.
        """
        if self.environment.is_acknowledged(unit):
            return False
        member = self.member(member_id)
        if member is not None and member.shares and self.environment.is_committed(unit):
            return False
        owner_id = self._owners.get(unit) or self.group.owners.get(unit)
        if owner_id is None or owner_id == member_id:
            return True
        return owner_id in self._members and self._members[owner_id] is None

    # Changing -------------------------------------------------------------------------------------

    def write_member(self, member: ConsumerMember) -> None:
        """A member as it describes itself now."""
        self._put(member)
        self.records.append(
            MemberWritten(group_id=self.group_id, member_id=member.member_id, member=member)
        )

    def write_current(self, member: ConsumerMember) -> None:
        """What a member owns now; its time to give things up runs while it owes any."""
        before = self.member(member.member_id)
        self._put(member)
        self.records.append(
            CurrentWritten(group_id=self.group_id, member_id=member.member_id, member=member)
        )
        key = rebalance_timer(self.group_id, member.member_id)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self.set_timer(key, member.rebalance_timeout_ms)
        elif before is not None and before.state is MemberState.UNREVOKED_PARTITIONS:
            self.cancel(key)

    def rewrite_units(self, member: ConsumerMember) -> None:
        """The same slots in other units; nothing else about the member changes."""
        self._put(member)
        self._owners.update(dict.fromkeys(member.held, member.member_id))
        self.records.append(
            CurrentWritten(group_id=self.group_id, member_id=member.member_id, member=member)
        )

    def write_target(self, member_id: str, target: Target | None) -> None:
        self.target_changes[member_id] = target
        self.records.append(
            TargetWritten(group_id=self.group_id, member_id=member_id, target=target)
        )

    def write_target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        self.target_epoch, self.target_timestamp_ms = epoch, timestamp_ms
        self.records.append(
            TargetEpochWritten(group_id=self.group_id, epoch=epoch, timestamp_ms=timestamp_ms)
        )

    def write_epoch(self, epoch: int, metadata_hash: int, cause: Cause) -> None:
        self.group_epoch = epoch
        self.records.append(
            GroupEpochWritten(
                group_id=self.group_id, epoch=epoch, metadata_hash=metadata_hash, cause=cause
            )
        )

    def write_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        before = self.regex(regex)
        self._regexes[regex] = resolved
        self.records.append(RegexWritten(group_id=self.group_id, regex=regex, resolved=resolved))
        if (before.topics if before else None) == (resolved.topics if resolved else None):
            return
        for member in self.members().values():
            if member.subscribed_topic_regex == regex:
                self.spec_changes[member.member_id] = self._spec(member)

    def remove(self, member: ConsumerMember) -> None:
        """Everything that is known of a member, in the order that Kafka forgets it."""
        group_id, member_id = self.group_id, member.member_id
        self.records.append(CurrentWritten(group_id=group_id, member_id=member_id, member=None))
        self.write_target(member_id, None)
        self.records.append(MemberWritten(group_id=group_id, member_id=member_id, member=None))
        self._members[member_id] = None
        self.spec_changes[member_id] = None
        for key in (session_timer(group_id, member_id), rebalance_timer(group_id, member_id)):
            self.cancel(key)
        if member.classic is not None:
            self.cancel(member_join_timer(group_id, member_id))
            self.cancel(member_sync_timer(group_id, member_id))
        self.abort_transactions(member_id)

    def abort_transactions(self, member_id: str) -> None:
        """Have the transactions ended in which a member has acknowledged records: it is gone."""
        producers = self.environment.producers_of(member_id)
        if producers:
            self.ask(
                AbortTransactions(group_id=self.group_id, member_id=member_id, producers=producers)
            )

    @property
    def aborts(self) -> tuple[AbortTransactions, ...]:
        """The transactions that are to be ended, whatever becomes of the group."""
        return tuple(task for task in self._tasks if isinstance(task, AbortTransactions))

    def _put(self, member: ConsumerMember) -> None:
        self._members[member.member_id] = member
        spec = self._spec(member)
        if self.group.index.members.get(member.member_id) != spec:
            self.spec_changes[member.member_id] = spec
        else:
            self.spec_changes.pop(member.member_id, None)

    def _spec(self, member: ConsumerMember) -> MemberSpec:
        return MemberSpec(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            topics=self.topics_of(member),
        )

    # Effects --------------------------------------------------------------------------------------

    def set_timer(self, key: TimerKey, delay_ms: int, *, only_if_absent: bool = False) -> None:
        self._timers[key] = TimerChange(key, self.now_ms + max(0, delay_ms), only_if_absent)

    def cancel(self, key: TimerKey) -> None:
        self._timers[key] = TimerChange(key, None)

    def ask(self, task: Any) -> None:
        """Have work done that takes longer than a decision may."""
        self._tasks.append(task)

    def interval_ms(self, member: ConsumerMember) -> int:
        """When to hear from a member again."""
        group = self.group
        is_behind = member.state is not MemberState.STABLE
        is_behind |= member.member_epoch != self.target_epoch
        return heartbeat_interval_ms(
            self.settings,
            broker_members=max(self.environment.broker_members, self.member_count),
            group_members=self.member_count,
            waiting_members=1
            + group.count_in_state(MemberState.UNREVOKED_PARTITIONS)
            + group.count_in_state(MemberState.UNRELEASED_PARTITIONS),
            is_waiting=is_behind,
            is_group_settled=self.group_epoch == self.target_epoch
            and self.target_epoch == group.target_epoch
            and group.is_settled,
            on_its_way_ms=max(0, self.now_ms - self.target_timestamp_ms),
        )

    def restart_session(self, member: ConsumerMember) -> None:
        """The member was heard from: its time starts anew."""
        timer = session_timer(self.group_id, member.member_id)
        self.set_timer(timer, self.session_ms(member))

    def session_ms(self, member: ConsumerMember) -> int:
        """How long a member may be silent."""
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return session_timeout_ms(self.settings, self.settings.heartbeat_interval_ms)

    def result(self, response: Any = None) -> Result:
        return Result(
            records=tuple(self.records),
            response=response,
            timers=tuple(self._timers.values()),
            tasks=tuple(self._tasks),
        )
