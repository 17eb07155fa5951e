"""Classic groups that become consumer groups while their members live (KIP-848).

Rules
- The first heartbeat with epoch 0 to a classic group upgrades it, if `group.consumer.migration.
  policy` lets it; an empty group always becomes what the next member speaks.
- The group goes on from where it was: the generation is the epoch, what the leader last assigned is
  both the target and what the members own. Those who wait for an answer are told to rejoin, and are
  served as classic members of a consumer group from then on (see `classic_in_consumer`).
- Nobody gets a partition that a classic member may still have in hand. In a cooperative rebalance
  a member has more than it was last assigned, until it has rejoined without it; it said so when it
  joined, and owes it now like any member that was told to give something up. (Kafka looks at the
  assignment alone, and gives such partitions to others at once.)
- A group that was rebalancing, or has partitions that are nobody's, gets a new target in any case,
  also where the member that comes is none (a static one under another protocol).
- What cannot be carried over is refused with GROUP_ID_NOT_FOUND, and the classic group stays as it
  is: bytes that are not those of consumers, user data that only a custom assignor understands, a
  partition assigned to more than one member. (Kafka refuses user data under any assignor's name;
  librdkafka's cooperative-sticky writes some from its second generation on, which nobody reads.)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.coordinator.group.assignors.index import Target
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.classic_state import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from anabranch.coordinator.group.commands import JoinAnswer, SyncAnswer
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.coordinator.group.consumer_draft import (
    ConsumerDraft,
    Environment,
    rebalance_timer,
)
from anabranch.coordinator.group.consumer_heartbeat import (
    check_form,
    consumer_heartbeat,
    heartbeat_in,
    refused,
)
from anabranch.coordinator.group.consumer_protocol import (
    ConsumerProtocolError,
    Subscription,
    decode_assignment,
    decode_subscription,
)
from anabranch.coordinator.group.consumer_records import (
    CurrentWritten,
    GroupEpochWritten,
    MemberWritten,
    TargetEpochWritten,
    TargetWritten,
)
from anabranch.coordinator.group.consumer_state import (
    FIRST_EPOCH,
    ClassicMembership,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from anabranch.coordinator.group.consumer_target import metadata_hash
from anabranch.coordinator.group.draft import join_timer, session_timer, sync_timer
from anabranch.coordinator.group.embedded import units_of
from anabranch.coordinator.group.records import GroupRecord, GroupWritten
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey, Wake
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import Unit

# Assignors of stock clients: what they add to an assignment is of no use to anybody.
_STICKY = frozenset({"sticky", "cooperative-sticky"})


def heartbeat_that_upgrades(
    group: ClassicGroup,
    command: ConsumerHeartbeat,
    environment: Environment,
    settings: GroupSettings,
    now_ms: int,
) -> Result:
    """A consumer-protocol member joins a classic group."""
    if not group.members:
        result = consumer_heartbeat(None, command, environment, settings, now_ms)
        return _instead(group, (), result) if result.records else result
    try:
        check_form(command, environment)
        _check_group(group, environment)
        members = _members(group, environment.image)
        upgraded, records = _upgraded(group, members, environment.image)
        draft = ConsumerDraft(upgraded, environment, now_ms)
        result = heartbeat_in(draft, command)
        if draft.group_epoch == draft.target_epoch == upgraded.target_epoch and not _is_settled(
            group, upgraded
        ):
            # The member brought nothing that called for a target; the others still do.
            upgraded, records = _upgraded(group, members, environment.image, is_assigning=True)
            result = heartbeat_in(ConsumerDraft(upgraded, environment, now_ms), command)
    except KafkaError as error:
        return refused(command, error)
    return _instead(group, records, result, _timers(upgraded, now_ms))


def _is_settled(group: ClassicGroup, upgraded: ConsumerGroup) -> bool:
    """Whether the last assignment is one that the members can go on with."""
    index = upgraded.index
    return group.state is ClassicState.STABLE and not index.open_topics and not index.astray


def _instead(
    group: ClassicGroup,
    records: tuple[GroupRecord, ...],
    result: Result,
    timers: Mapping[TimerKey, TimerChange] | None = None,
) -> Result:
    """The classic group is forgotten, and then comes the rest."""
    group_id = group.group_id
    changes: dict[TimerKey, TimerChange] = {
        key: TimerChange(key, None)
        for key in (
            join_timer(group_id),
            sync_timer(group_id),
            *(session_timer(group_id, member_id) for member_id in sorted(group.pending_members)),
        )
    }
    changes |= timers or {}
    changes |= {change.key: change for change in result.timers}
    return Result(
        records=(GroupWritten(group_id=group_id, group=None), *records, *result.records),
        response=result.response,
        timers=tuple(changes.values()),
        wakes=tuple(wake for member in group.members.values() for wake in _told_to_rejoin(member)),
        tasks=result.tasks,
    )


def _told_to_rejoin(member: ClassicMember) -> list[Wake]:
    wakes = []
    error = ErrorCode.REBALANCE_IN_PROGRESS
    if member.join_waiter is not None:
        answer = JoinAnswer(error=error, member_id=member.member_id)
        wakes.append(Wake(member.join_waiter, answer))
    if member.sync_waiter is not None:
        wakes.append(Wake(member.sync_waiter, SyncAnswer(error=error)))
    return wakes


def _timers(group: ConsumerGroup, now_ms: int) -> dict[TimerKey, TimerChange]:
    """Everybody gets a whole session to come back, and time to give up what it owes."""
    changes = {}
    for member in group.members.values():
        assert member.classic is not None
        key = session_timer(group.group_id, member.member_id)
        changes[key] = TimerChange(key, now_ms + member.classic.session_timeout_ms)
        if member.pending_revocation:
            key = rebalance_timer(group.group_id, member.member_id)
            changes[key] = TimerChange(key, now_ms + member.rebalance_timeout_ms)
    return changes


# Whether it can be done ---------------------------------------------------------------------------


def _refusal(group: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {group.group_id} is a classic group with members and cannot become a consumer "
        f"group: {why}",
    )


def _check_group(group: ClassicGroup, environment: Environment) -> None:
    policy = environment.settings.migration_policy
    if not policy.allows_upgrade:
        raise _refusal(
            group,
            f"group.consumer.migration.policy is {policy.value}. Allow upgrades, or stop all "
            "members first.",
        )
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _refusal(
            group,
            f"its members speak the protocol type {group.protocol_type}, not "
            f"{CONSUMER_PROTOCOL_TYPE}. Use another group id.",
        )
    limit = environment.settings.max_size
    if len(group.members) > limit:
        raise _refusal(
            group,
            f"it has {len(group.members)} members, and a consumer group may have {limit} "
            "(group.consumer.max.size).",
        )


# What is carried over -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    """A member with what its bytes say."""

    member: ClassicMember
    subscription: Subscription
    assigned: Target


def _read(group: ClassicGroup, image: ClusterImage) -> list[_Read]:
    # In the first rebalance of a group there is no protocol yet: any that all can speak will do.
    protocol = group.protocol_name or group.select_protocol()
    read = []
    for member in group.members.values():
        who = f"member {member.member_id}"
        try:
            subscription = decode_subscription(member.metadata(protocol))
        except ConsumerProtocolError as error:
            raise _refusal(group, f"the subscription of {who} is {error}.") from None
        assigned: Target = frozenset()
        if member.assignment:  # there is none before the first one of a member
            try:
                assignment = decode_assignment(member.assignment)
            except ConsumerProtocolError as error:
                raise _refusal(group, f"the assignment of {who} is {error}.") from None
            if assignment.user_data and protocol not in _STICKY:
                raise _refusal(
                    group,
                    f"the assignment of {who} has user data, which only its custom assignor "
                    f"({protocol}) understands. Change the members to an assignor without user "
                    "data first, or stop all of them.",
                )
            assigned = frozenset(units_of(assignment.partitions, image))
        read.append(_Read(member, subscription, assigned))
    return read


def _members(group: ClassicGroup, image: ClusterImage) -> list[ConsumerMember]:
    """The members as those of a consumer group."""
    read = _read(group, image)
    epoch = max(group.generation_id, FIRST_EPOCH)
    holders: dict[Unit, str] = {}
    for one in read:
        for unit in one.assigned:
            if unit in holders:
                raise _refusal(
                    group,
                    f"its assignor gave partition {unit.partition} of "
                    f"{image.by_id[unit.topic_id].name} to more than one member.",
                )
            holders[unit] = one.member.member_id
    owed: dict[str, dict[Unit, int]] = {one.member.member_id: {} for one in read}
    # Who joined in a later generation knows better.
    for one in sorted(read, key=lambda one: -one.subscription.generation_id):
        for unit in units_of(one.subscription.owned_partitions, image):
            if unit not in holders:
                holders[unit] = one.member.member_id
                owed[one.member.member_id][unit] = epoch
    return [_member(one, epoch, owed[one.member.member_id]) for one in read]


def _member(read: _Read, epoch: int, owed: dict[Unit, int]) -> ConsumerMember:
    member, subscription = read.member, read.subscription
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        classic=ClassicMembership(
            session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
        ),
        member_epoch=epoch,
        previous_member_epoch=epoch,
        state=MemberState.UNREVOKED_PARTITIONS if owed else MemberState.STABLE,
        assigned=dict.fromkeys(read.assigned, epoch),
        pending_revocation=owed,
    )


def _upgraded(
    group: ClassicGroup,
    members: list[ConsumerMember],
    image: ClusterImage,
    *,
    is_assigning: bool = False,
) -> tuple[ConsumerGroup, tuple[GroupRecord, ...]]:
    """The consumer group, with a target yet to be made or not, and its records in Kafka's order."""
    group_id = group.group_id
    epoch = max(group.generation_id, FIRST_EPOCH)
    upgraded = ConsumerGroup(group_id, image)
    records: list[GroupRecord] = []
    for member in members:
        upgraded.replay_member(member.member_id, member)
        records.append(MemberWritten(group_id=group_id, member_id=member.member_id, member=member))
    hash_now = metadata_hash(upgraded.index.subscribed_topics, image)
    group_epoch = epoch + 1 if is_assigning else epoch
    upgraded.replay_epoch(group_epoch, hash_now)
    # A group that was rebalancing goes on with it.
    cause = Cause.OTHER if is_assigning else None
    records.append(
        GroupEpochWritten(group_id=group_id, epoch=group_epoch, metadata_hash=hash_now, cause=cause)
    )
    for member in members:
        target = frozenset(member.assigned)
        upgraded.replay_target(member.member_id, target)
        records.append(TargetWritten(group_id=group_id, member_id=member.member_id, target=target))
    # At no time at all, so that the member that comes gets a target at once.
    upgraded.replay_target_epoch(epoch, 0)
    records.append(TargetEpochWritten(group_id=group_id, epoch=epoch))
    for member in members:
        upgraded.replay_current(member.member_id, member)
        records.append(CurrentWritten(group_id=group_id, member_id=member.member_id, member=member))
    return upgraded, tuple(records)
