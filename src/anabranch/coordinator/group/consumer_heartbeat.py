"""ConsumerGroupHeartbeat: join, stay, catch up, leave (KIP-848).

The way of a heartbeat
    1. check its form                                    -> INVALID_REQUEST, UNSUPPORTED_ASSIGNOR
    2. find or make the member, and fence                -> 25, 69, 81, 82, 110, 111
    3. take over what it says of itself                  -> member record
    4. bump the group epoch if that calls for it         -> group epoch record
    5. compute the target if it is older than the group  -> target records
    6. take this member one step towards it (reconcile)  -> current assignment record
    7. answer, with the assignment if it is news

Epochs: a heartbeat must carry the member's epoch. The epoch before it is accepted too when what the
member says it owns fits what it was last given, because then only our answer was lost. Epoch 0
joins, or joins again (KAFKA-19233); a static member that joins under its instance id takes over
from a former self that left with -2, and, unlike in Kafka, from itself: a static member whose join
answer was lost must not be locked out until its session ends.
"""

from collections.abc import Iterator

from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_commands import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
)
from anabranch.coordinator.group.consumer_downgrade import downgrade_if_alone
from anabranch.coordinator.group.consumer_draft import ConsumerDraft, Environment
from anabranch.coordinator.group.consumer_leave import leave, leave_for_a_while
from anabranch.coordinator.group.consumer_ranges import owned_units
from anabranch.coordinator.group.consumer_regex import (
    check_regex,
    drop_unused_regex,
    is_resolved,
    resolve_if_needed,
)
from anabranch.coordinator.group.consumer_state import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from anabranch.coordinator.group.consumer_target import assignor_of, settle_target
from anabranch.coordinator.group.reconcile import reconcile
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import Unit


def consumer_heartbeat(
    group: ConsumerGroup | None,
    command: ConsumerHeartbeat,
    environment: Environment,
    settings: GroupSettings,
    now_ms: int,
) -> Result:
    """The decision; a refusal is an answer too."""
    try:
        check_form(command, environment)
        if group is None:
            if command.member_epoch != JOINING_EPOCH:
                raise KafkaError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Group {command.group_id} not found. Join it with epoch 0.",
                )
            group = ConsumerGroup(command.group_id, environment.image)
        draft = ConsumerDraft(group, environment, now_ms)
        if command.member_epoch == LEAVING_EPOCH:
            return downgrade_if_alone(draft, settings, leave(draft, command))
        if command.member_epoch == STATIC_LEAVING_EPOCH:
            return leave_for_a_while(draft, command)
        return heartbeat_in(draft, command)
    except KafkaError as error:
        return refused(command, error)


def refused(command: ConsumerHeartbeat, error: KafkaError) -> Result:
    return Result(
        response=ConsumerHeartbeatAnswer(
            error=error.code,
            error_message=error.message,
            member_id=command.member_id or None,
            member_epoch=command.member_epoch,
        )
    )


# 1. Form ----------------------------------------------------------------------------------------


def check_form(command: ConsumerHeartbeat, environment: Environment) -> None:
    """Refuse what no state of any group could make right."""
    epoch = command.member_epoch
    needs_id = command.has_own_member_id or epoch > 0 or epoch == LEAVING_EPOCH
    if not command.member_id and needs_id:
        raise _invalid("MemberId can't be empty.")
    if not command.group_id:
        raise _invalid("GroupId can't be empty.")
    if command.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if command.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == JOINING_EPOCH:
        _check_join(command)
    elif epoch == STATIC_LEAVING_EPOCH:
        if command.instance_id is None:
            raise _invalid("InstanceId can't be null when a static member leaves for a while.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise _invalid(f"MemberEpoch is invalid: {epoch}.")
    assignors = environment.assignors
    if command.server_assignor is not None and command.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {command.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(command: ConsumerHeartbeat) -> None:
    if command.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if command.owned is None or command.owned:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if command.subscribed_topic_names is None and command.subscribed_topic_regex is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null "
            "when (re-)joining."
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


# 2. The member and its epoch ----------------------------------------------------------------------


def heartbeat_in(draft: ConsumerDraft, command: ConsumerHeartbeat) -> Result:
    """A heartbeat of a member that stays or comes."""
    before = _find_member(draft, command)
    if command.member_epoch == JOINING_EPOCH:
        before = _without_doubtful(draft, before)
    current = take_step(
        draft,
        before,
        _described(before, command),
        command.owned,
        starts_over=command.member_epoch == JOINING_EPOCH,
    )
    draft.restart_session(current)
    return draft.result(_answer(draft, command, before, current))


def _without_doubtful(draft: ConsumerDraft, member: ConsumerMember) -> ConsumerMember:
    """A member that joins again has lost what it acknowledged in transactions that are open.

    They are aborted, and until they have ended it does not have the ranges that they touch: it
    would do again what may yet be committed.
    """
    draft.abort_transactions(member.member_id)
    is_doubtful = draft.environment.is_acknowledged
    if not any(is_doubtful(unit) for unit in member.held):
        return member
    certain = member.with_(
        state=MemberState.UNRELEASED_PARTITIONS,
        assigned={u: epoch for u, epoch in member.assigned.items() if not is_doubtful(u)},
        pending_revocation={},
    )
    draft.write_current(certain)
    return certain


def take_step(
    draft: ConsumerDraft,
    before: ConsumerMember,
    member: ConsumerMember,
    owned: tuple[Unit, ...] | None,
    *,
    starts_over: bool,
) -> ConsumerMember:
    """Take over what a member says of itself, and all that follows from it (3 to 6)."""
    is_new = draft.member(before.member_id) is None
    has_new_regex = (member.subscribed_topic_regex or "") != (before.subscribed_topic_regex or "")
    if has_new_regex:
        check_regex(draft, member)
    if is_new or member is not before:
        draft.write_member(member)
    if has_new_regex:
        drop_unused_regex(draft, before.subscribed_topic_regex)
    is_news = member is not before or before.member_epoch == JOINING_EPOCH
    causes = _causes(draft, before, member) if is_news else ()
    settle_target(draft, causes, must_succeed=True)
    if has_new_regex:
        resolve_if_needed(draft)
    has_new_topics = has_new_regex or (
        member.subscribed_topic_names != before.subscribed_topic_names
    )
    # A new target may have cut what the member holds into other units.
    member = draft.member(member.member_id) or member
    current = reconcile_member(
        draft,
        member,
        owned_units(member, owned),
        has_new_topics=has_new_topics,
        starts_over=starts_over,
    )
    if current is not member:
        draft.write_current(current)
    return current


def _find_member(draft: ConsumerDraft, command: ConsumerHeartbeat) -> ConsumerMember:
    """The member that speaks, known or new; refused when it is not who it says."""
    member_id = command.member_id or command.unique
    if command.instance_id is not None:
        return _static_member(draft, command, command.instance_id, member_id)
    member = draft.member(member_id)
    if member is not None:
        check_epoch(member, command)
        return member
    if command.member_epoch != JOINING_EPOCH:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {draft.group_id}. It has to give up its "
            "partitions and join with epoch 0.",
        )
    check_room(draft)
    return ConsumerMember(member_id=member_id)


def _static_member(
    draft: ConsumerDraft, command: ConsumerHeartbeat, instance_id: str, member_id: str
) -> ConsumerMember:
    holder = draft.holder_of(instance_id)
    is_joining = command.member_epoch == JOINING_EPOCH
    if holder is None:
        if not is_joining:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Instance id {instance_id} is not a member of group {draft.group_id}. It has to "
                "give up its partitions and join with epoch 0.",
            )
        known = draft.member(member_id)
        if known is None:
            check_room(draft)
        return known or ConsumerMember(member_id=member_id)
    if holder.member_id == member_id:
        check_epoch(holder, command)
        return holder
    if not is_joining:
        raise fenced_instance(draft.group_id, instance_id, member_id)
    if holder.member_epoch != STATIC_LEAVING_EPOCH and holder.classic is None:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join group "
            f"{draft.group_id}: the instance id is held by member {holder.member_id}, whose "
            "session is alive. Stop that one, or wait until its session ends.",
        )
    return replace_static(draft, holder, member_id)


def replace_static(draft: ConsumerDraft, holder: ConsumerMember, member_id: str) -> ConsumerMember:
    """The same instance comes back under a new member id, to what it had."""
    target = draft.target(holder.member_id)
    draft.remove(holder)
    successor = holder.with_(
        member_id=member_id,
        member_epoch=JOINING_EPOCH,
        previous_member_epoch=JOINING_EPOCH,
        state=MemberState.STABLE,
    )
    if holder.shares:
        # Key ranges have fencing tokens, which must grow: it gets them anew, at a new epoch.
        successor = successor.with_(assigned={}, pending_revocation={})
    draft.write_member(successor)
    draft.write_target(member_id, target)
    draft.write_current(successor)
    return successor


def fenced_instance(group_id: str, instance_id: str, member_id: str) -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_INSTANCE_ID,
        f"Member {member_id} was fenced in group {group_id}: another member has its instance id "
        f"{instance_id}. Give every instance an id of its own.",
    )


def check_room(draft: ConsumerDraft) -> None:
    limit = draft.settings.max_size
    if draft.member_count >= limit:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"Group {draft.group_id} has {limit} members, the most it may have: stop one of them, "
            "or raise group.consumer.max.size.",
        )


def check_epoch(member: ConsumerMember, command: ConsumerHeartbeat) -> None:
    """Fence a member that speaks from another epoch than the one it is in."""
    epoch = command.member_epoch
    if epoch in (JOINING_EPOCH, member.member_epoch):
        return
    # The answer that moved the member on may have been lost; it may then still say its old
    # epoch, provided that it owns nothing it was not given.
    is_repeat = epoch == member.previous_member_epoch and command.owned is not None
    owned = owned_units(member, command.owned)
    if is_repeat and all(unit in member.assigned for unit in owned or ()):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"Member {member.member_id} is at epoch {member.member_epoch}, not {epoch}. "
        "It has to give up its partitions and rejoin with epoch 0.",
    )


# 3. What it says of itself ------------------------------------------------------------------------


def _described(member: ConsumerMember, command: ConsumerHeartbeat) -> ConsumerMember:
    """The member with the news of this heartbeat; the same object when there are none."""
    changes: dict[str, object] = {}
    if member.client_id != command.client_id:
        changes["client_id"] = command.client_id
    if member.client_host != command.client_host:
        changes["client_host"] = command.client_host
    if command.instance_id is not None and command.instance_id != member.instance_id:
        changes["instance_id"] = command.instance_id
    if command.rack_id is not None and command.rack_id != member.rack_id:
        changes["rack_id"] = command.rack_id
    timeout_ms = command.rebalance_timeout_ms
    if timeout_ms not in (-1, member.rebalance_timeout_ms):
        changes["rebalance_timeout_ms"] = timeout_ms
    if command.subscribed_topic_names is not None:
        names = tuple(sorted(set(command.subscribed_topic_names)))
        if names != member.subscribed_topic_names:
            changes["subscribed_topic_names"] = names
    regex = command.subscribed_topic_regex
    if regex is not None and regex != member.subscribed_topic_regex:
        changes["subscribed_topic_regex"] = regex
    assignor = command.server_assignor
    if assignor is not None and assignor != member.server_assignor:
        changes["server_assignor"] = assignor
    if member.classic is not None:
        changes["classic"] = None
    if command.shares != member.shares:
        changes["shares"] = command.shares
    return member.with_(**changes) if changes else member


# 4. Why there has to be a new assignment ----------------------------------------------------------


def _causes(
    draft: ConsumerDraft, before: ConsumerMember, member: ConsumerMember
) -> Iterator[Cause]:
    """What of this heartbeat an assignment depends on.

    A regular expression that nobody has resolved yet matches nothing so far; what it matches will
    be the cause. A change of the rack is none: it counts with the next assignment.
    """
    is_joining = before.member_epoch in (JOINING_EPOCH, STATIC_LEAVING_EPOCH)
    cause = Cause.JOIN if is_joining else Cause.SUBSCRIPTION
    if member.subscribed_topic_names != before.subscribed_topic_names:
        yield cause
    if member.shares != before.shares:
        yield cause
    if before.shares and before.member_epoch == JOINING_EPOCH:
        yield cause  # a static member that came back to its ranges
    regex, regex_before = member.subscribed_topic_regex or "", before.subscribed_topic_regex or ""
    if regex != regex_before and (not regex or is_resolved(draft, regex)):
        yield cause
    if draft.group.members and assignor_of(draft) is not assignor_of(draft, draft.group.votes):
        yield Cause.ASSIGNOR


# 6. Reconciliation --------------------------------------------------------------------------------


def reconcile_member(
    draft: ConsumerDraft,
    member: ConsumerMember,
    owned: tuple[Unit, ...] | None,
    *,
    has_new_topics: bool,
    starts_over: bool,
) -> ConsumerMember:
    """The member one step nearer to its target."""
    is_there = member.state is MemberState.STABLE and member.member_epoch == draft.target_epoch
    if is_there and not has_new_topics:
        return member  # nearly all heartbeats end here
    # Who never takes what it was given must not hold up the others for good.
    has_had_time = draft.now_ms - draft.target_timestamp_ms >= member.rebalance_timeout_ms
    topics = draft.topics_of(member)
    by_id = draft.environment.image.by_id
    member_id = member.member_id
    target = draft.target(member_id)
    if (
        member.shares
        and member.member_epoch == JOINING_EPOCH
        and draft.group_epoch > draft.target_epoch
    ):
        target = frozenset()  # ranges that it had before are given at an epoch that is new

    def is_subscribed(unit: Unit) -> bool:
        topic = by_id.get(unit.topic_id)
        return topic is not None and topic.name in topics

    return reconcile(
        member,
        target_epoch=draft.target_epoch,
        target=target,
        owned=owned,
        is_free=lambda unit: draft.is_free_for(member_id, unit),
        has_new_subscription=has_new_topics,
        is_subscribed=is_subscribed,
        starts_over=starts_over or has_had_time,
    )


# 7. The answer ------------------------------------------------------------------------------------


def _answer(
    draft: ConsumerDraft,
    command: ConsumerHeartbeat,
    before: ConsumerMember,
    current: ConsumerMember,
) -> ConsumerHeartbeatAnswer:
    is_news = (
        command.member_epoch == JOINING_EPOCH
        or command.is_full
        or current.assigned != before.assigned
    )
    if not is_news and command.owned is not None:
        # It was told and does not have it: a client may drop what it did not know yet.
        owned = owned_units(current, command.owned)
        is_news = set(owned or ()) != current.assigned.keys()
    return ConsumerHeartbeatAnswer(
        member_id=current.member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=draft.interval_ms(current),
        assignment=tuple(sorted(current.assigned)) if is_news else None,
        epochs=tuple(current.assigned[unit] for unit in sorted(current.assigned))
        if is_news and current.shares
        else None,
        shares=current.shares,
        lease_ms=draft.session_ms(current) if current.shares else 0,
    )
