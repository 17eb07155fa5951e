"""Members that speak the classic protocol, in a consumer group (KIP-848 migration).

To such a member the group is a classic one in which somebody else leads: its epoch is the
generation, its JoinGroup is what a heartbeat is to the others, and the assignment that it gets from
SyncGroup was made here. It is never made to wait: what it does not get now it is told to come back
for, by REBALANCE_IN_PROGRESS to its heartbeat.

How it gives up partitions: an eager client owns nothing when it joins; a cooperative one says in
its subscription what it owns, gets what it may keep, and joins again without the rest.
"""

from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.classic_state import CONSUMER_PROTOCOL_TYPE, Protocol
from anabranch.coordinator.group.commands import (
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    LeftMember,
    SyncAnswer,
    SyncGroup,
)
from anabranch.coordinator.group.consumer_downgrade import (
    begin_rebalance,
    classic_draft,
    downgrade_if_alone,
    may_downgrade,
    with_tombstones,
)
from anabranch.coordinator.group.consumer_draft import (
    ConsumerDraft,
    member_join_timer,
    member_sync_timer,
)
from anabranch.coordinator.group.consumer_heartbeat import (
    check_room,
    fenced_instance,
    replace_static,
    take_step,
)
from anabranch.coordinator.group.consumer_leave import forget
from anabranch.coordinator.group.consumer_protocol import (
    ConsumerProtocolError,
    Subscription,
    decode_subscription,
)
from anabranch.coordinator.group.consumer_settings import MigrationPolicy
from anabranch.coordinator.group.consumer_state import (
    ClassicMembership,
    ConsumerMember,
    MemberState,
)
from anabranch.coordinator.group.embedded import assignment_bytes, units_of
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode, KafkaError

# JoinGroup ----------------------------------------------------------------------------------------


def join_consumer_group(
    draft: ConsumerDraft, command: JoinGroup, settings: GroupSettings
) -> Result:
    """A classic member comes, or comes to catch up."""
    try:
        _check_join(draft, command, settings)
        subscription = _subscription(command)
        instance_id = command.group_instance_id
        member_id = command.member_id
        if not member_id:
            member_id = (
                f"{command.client_id if instance_id is None else instance_id}-{command.unique}"
            )
            if instance_id is None and command.requires_known_member_id:
                error = ErrorCode.MEMBER_ID_REQUIRED
                return Result(response=JoinAnswer(error=error, member_id=member_id))
        holder = None if instance_id is None else draft.holder_of(instance_id)
        before = _joining_member(draft, command, holder, member_id)
        member = _described(before, command, subscription)
        owned = tuple(units_of(subscription.owned_partitions, draft.environment.image))
        # What a classic member lists is what it has: it takes nothing while it joins.
        current = take_step(draft, before, member, owned, starts_over=True)
    except KafkaError as error:
        return Result(response=_refused(command, error))
    # As in Kafka, only the place of one that spoke the other protocol makes a difference.
    if holder is not None and holder.classic is None and may_downgrade(draft, settings):
        return _downgraded(draft, command, settings, current)
    group_id = draft.group_id
    draft.restart_session(current)
    draft.cancel(member_join_timer(group_id, member_id))
    draft.set_timer(member_sync_timer(group_id, member_id), command.rebalance_timeout_ms)
    return draft.result(_answer(current, current.member_epoch, command.protocols[0][0]))


def _refused(command: JoinGroup, error: KafkaError) -> JoinAnswer:
    code = error.code
    if code is ErrorCode.FENCED_MEMBER_EPOCH:
        # A code that classic clients do not know; this one has them start over.
        code = ErrorCode.UNKNOWN_MEMBER_ID
    return JoinAnswer(error=code, member_id=command.member_id)


def _answer(member: ConsumerMember, generation_id: int, protocol_name: str | None) -> JoinAnswer:
    """Nobody leads here, and nobody is told who the others are."""
    return JoinAnswer(
        member_id=member.member_id,
        generation_id=generation_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol_name,
    )


def _check_join(draft: ConsumerDraft, command: JoinGroup, settings: GroupSettings) -> None:
    longest_ms = settings.max_session_timeout_ms
    if not settings.min_session_timeout_ms <= command.session_timeout_ms <= longest_ms:
        raise KafkaError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"The session timeout must be {settings.min_session_timeout_ms} to {longest_ms} ms.",
        )
    if draft.settings.migration_policy is MigrationPolicy.DISABLED:
        raise _inconsistent(
            f"Group {draft.group_id} is a consumer group, and group.consumer.migration.policy is "
            "disabled: it takes no members of the classic protocol."
        )
    instance_id = command.group_instance_id
    is_known = instance_id is not None and draft.holder_of(instance_id) is not None
    if not is_known and draft.member(command.member_id) is None:
        check_room(draft)
    if command.protocol_type != CONSUMER_PROTOCOL_TYPE or not _is_common(draft, command):
        raise _inconsistent(
            f"Group {draft.group_id} has no protocol in common with member {command.member_id}."
        )


def _inconsistent(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)


def _is_common(draft: ConsumerDraft, command: JoinGroup) -> bool:
    """Whether all classic members, the former self of this one among them, share a protocol."""
    names = _names(command.protocols)
    former = draft.group.members.get(command.member_id)
    if former is not None and names and names == _names(_protocols(former)):
        return True  # nearly every join; looking at all the others would cost the square
    for member in draft.group.members.values():
        if member.classic is not None:
            names &= _names(_protocols(member))
    return bool(names)


def _names(protocols: tuple[Protocol, ...]) -> set[str]:
    return {name for name, _ in protocols}


def _subscription(command: JoinGroup) -> Subscription:
    """All protocols of a member carry the same subscription."""
    try:
        return decode_subscription(command.protocols[0][1])
    except ConsumerProtocolError as error:
        raise _inconsistent(f"The metadata of {command.protocols[0][0]} is {error}.") from None


def _joining_member(
    draft: ConsumerDraft, command: JoinGroup, holder: ConsumerMember | None, member_id: str
) -> ConsumerMember:
    """The member that speaks, known or new; refused when it is not who it says."""
    instance_id = command.group_instance_id
    if instance_id is None:
        # Ids that were handed out are not remembered, so that any is taken for one.
        return draft.member(member_id) or ConsumerMember(member_id=member_id)
    if not command.member_id:
        if holder is None:
            return ConsumerMember(member_id=member_id)
        return replace_static(draft, holder, member_id)
    return _static_member(draft, member_id, instance_id)


def _described(
    before: ConsumerMember, command: JoinGroup, subscription: Subscription
) -> ConsumerMember:
    """The member with what it says of itself; the same object when there is no news."""
    member = before.with_(
        instance_id=command.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        # Classic clients resolve their expressions themselves.
        subscribed_topic_regex=""
        if before.subscribed_topic_regex
        else before.subscribed_topic_regex,
        classic=ClassicMembership(
            session_timeout_ms=command.session_timeout_ms, protocols=command.protocols
        ),
    )
    return before if member == before else member


def _downgraded(
    draft: ConsumerDraft,
    command: JoinGroup,
    settings: GroupSettings,
    current: ConsumerMember,
) -> Result:
    """The last other member was replaced by this one: the group goes on as a classic one."""
    group = draft.group
    classic = classic_draft(draft)
    is_settled = draft.group_epoch == group.target_epoch and all(
        group.has_caught_up(member) for member in draft.members().values()
    )
    if is_settled:
        classic.write()
        answer = _answer(current, classic.group.generation_id, classic.group.protocol_name)
        return with_tombstones(draft, classic.result(answer))
    joining = classic.group.members[current.member_id]
    begin_rebalance(classic, settings, joining.with_(join_waiter=command.waiter))
    return with_tombstones(draft, classic.result())


# SyncGroup ----------------------------------------------------------------------------------------


def sync_in_consumer_group(draft: ConsumerDraft, command: SyncGroup) -> Result:
    """Tell a classic member what it owns."""
    try:
        member = _classic_member(
            draft, command.member_id, command.group_instance_id, command.generation_id
        )
        protocol_name, subscription = _protocols(member)[0]
        if command.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
            raise _inconsistent(f"The protocol type is {CONSUMER_PROTOCOL_TYPE}.")
        if command.protocol_name not in (None, protocol_name):
            raise _inconsistent(f"The protocol of member {member.member_id} is {protocol_name}.")
    except KafkaError as error:
        return Result(response=SyncAnswer(error=error.code))
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    if draft.target_epoch > member.member_epoch and not is_revoking:
        _is_to_rejoin(draft, member)
        return draft.result(SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
    draft.cancel(member_sync_timer(draft.group_id, member.member_id))
    draft.restart_session(member)
    return draft.result(
        SyncAnswer(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocol_name,
            assignment=assignment_bytes(member.assigned, subscription, draft.environment.image),
        )
    )


def _is_to_rejoin(draft: ConsumerDraft, member: ConsumerMember) -> None:
    """A member is told to rejoin: its time runs from the first time it was told."""
    key = member_join_timer(draft.group_id, member.member_id)
    draft.set_timer(key, member.rebalance_timeout_ms, only_if_absent=True)


def _protocols(member: ConsumerMember) -> tuple[Protocol, ...]:
    return member.classic.protocols if member.classic is not None else ()


def _classic_member(
    draft: ConsumerDraft, member_id: str, instance_id: str | None, generation_id: int
) -> ConsumerMember:
    """The classic member of this generation that speaks; refused when there is none."""
    if instance_id is None:
        member = _dynamic_member(draft, member_id)
    else:
        member = _static_member(draft, member_id, instance_id)
    if member.classic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} speaks the consumer protocol."
        )
    if generation_id != member.member_epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"Member {member_id} is in generation {member.member_epoch}, not {generation_id}.",
        )
    return member


def _dynamic_member(draft: ConsumerDraft, member_id: str) -> ConsumerMember:
    member = draft.member(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {draft.group_id}.",
        )
    return member


def _static_member(draft: ConsumerDraft, member_id: str, instance_id: str) -> ConsumerMember:
    member = draft.holder_of(instance_id)
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Instance id {instance_id} is not a member of group {draft.group_id}.",
        )
    if member.member_id != member_id:
        raise fenced_instance(draft.group_id, instance_id, member_id)
    return member


# Heartbeat ----------------------------------------------------------------------------------------


def heartbeat_in_consumer_group(draft: ConsumerDraft, command: Heartbeat) -> Result:
    """A sign of life; the answer tells the member when there is something to come back for."""
    try:
        member = _classic_member(
            draft, command.member_id, command.group_instance_id, command.generation_id
        )
    except KafkaError as error:
        return Result(response=HeartbeatAnswer(error=error.code))
    draft.restart_session(member)
    if not _has_to_rejoin(draft, member):
        return draft.result(HeartbeatAnswer())
    _is_to_rejoin(draft, member)
    return draft.result(HeartbeatAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))


def _has_to_rejoin(draft: ConsumerDraft, member: ConsumerMember) -> bool:
    if member.member_epoch < draft.target_epoch:
        return True
    match member.state:
        case MemberState.UNREVOKED_PARTITIONS:
            return True
        case MemberState.UNRELEASED_PARTITIONS:
            # Only for all of what it waits for: each rejoin may stop its client for a while.
            missing = draft.target(member.member_id) - member.assigned.keys()
            return all(draft.is_free_for(member.member_id, unit) for unit in missing)
        case _:
            return False


# LeaveGroup ---------------------------------------------------------------------------------------


def leave_consumer_group(
    draft: ConsumerDraft, command: LeaveGroup, settings: GroupSettings
) -> Result:
    """Members go, each with an answer of its own, and one epoch for all of them.

    An administrator removes members of either protocol so.
    """
    leaving: dict[str, ConsumerMember] = {}
    left = []
    for asked in command.members:
        error = ErrorCode.NONE
        try:
            member = _leaving_member(draft, asked)
            leaving[member.member_id] = member
        except KafkaError as refusal:
            error = refusal.code
        left.append(
            LeftMember(
                member_id=asked.member_id, group_instance_id=asked.group_instance_id, error=error
            )
        )
    if leaving:
        forget(draft, list(leaving.values()), Cause.LEAVE)
    return downgrade_if_alone(draft, settings, LeaveAnswer(members=tuple(left)))


def _leaving_member(draft: ConsumerDraft, asked: LeavingMember) -> ConsumerMember:
    instance_id = asked.group_instance_id
    if instance_id is None:
        return _dynamic_member(draft, asked.member_id)
    member_id = asked.member_id
    if not member_id:
        # By instance id alone: how an administrator removes a static member.
        holder = draft.holder_of(instance_id)
        member_id = "" if holder is None else holder.member_id
    return _static_member(draft, member_id, instance_id)


# Time ---------------------------------------------------------------------------------------------


def join_time_is_up_in_consumer_group(draft: ConsumerDraft, member_id: str) -> None:
    """A member was told to rejoin and did not."""
    _is_over(draft, member_id)


def sync_time_is_up_in_consumer_group(draft: ConsumerDraft, member_id: str) -> None:
    """A member joined and never asked for its assignment."""
    _is_over(draft, member_id)


def _is_over(draft: ConsumerDraft, member_id: str) -> None:
    member = draft.member(member_id)
    if member is not None and member.classic is not None:
        forget(draft, [member], Cause.REBALANCE_TIMEOUT)
