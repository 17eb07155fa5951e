"""JoinGroup: a member comes, comes back, or asks again.

Rules
- A new dynamic member is told its id first (KIP-394) and joins with it; until it does it is
  pending, and a rebalance waits for it as long as its session lasts.
- A static member that comes back under its instance id takes the place of its former self, which is
  fenced (KIP-345); in a Stable group this costs no rebalance unless the protocol or the topics it
  subscribes to would change.
- A member that asks again without news gets the answer it lost; with news it starts a rebalance.
"""

from anabranch.coordinator.group.classic_rebalance import (
    complete_if_all_joined,
    join_answer,
    joined_members,
    rebalance_or_complete,
)
from anabranch.coordinator.group.classic_state import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from anabranch.coordinator.group.commands import JoinAnswer, JoinGroup, SyncAnswer
from anabranch.coordinator.group.draft import Draft, session_timer
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.subscription import subscribed_topics
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode


def join_group(
    group: ClassicGroup | None, command: JoinGroup, settings: GroupSettings, now_ms: int
) -> Result:
    error = _check_request(group, command, settings)
    if error is not ErrorCode.NONE:
        return Result(response=JoinAnswer(error=error, member_id=command.member_id))
    draft = Draft(
        group or ClassicGroup(group_id=command.group_id, state_timestamp_ms=now_ms), now_ms
    )
    if not _has_room(draft.group, command, settings.max_size):
        return _turn_away(draft, command)
    if not draft.group.supports(command.member_id, command.protocol_type, command.protocols):
        return _refused(draft, command, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group is None:
        draft.write()  # so that the group is known, empty, even if nobody ever gets that far
    if command.member_id == "":
        return _join_new(draft, command, settings)
    if command.member_id in draft.group.pending_members:
        return _join_pending(draft, command, settings)
    return _join_known(draft, command, settings)


def _check_request(
    group: ClassicGroup | None, command: JoinGroup, settings: GroupSettings
) -> ErrorCode:
    if not command.group_id:
        return ErrorCode.INVALID_GROUP_ID
    longest_ms = settings.max_session_timeout_ms
    if not settings.min_session_timeout_ms <= command.session_timeout_ms <= longest_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if group is None and command.member_id:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE


def _has_room(group: ClassicGroup, command: JoinGroup, max_size: int) -> bool:
    """Whether one more fits; while members rejoin, the first to come are the ones that stay."""
    if len(group.members) < max_size:
        return True  # so that nobody is counted at every join of every member
    member = group.members.get(command.member_id)
    if member is None and command.group_instance_id is not None:
        # A static member that comes back takes no more room than it had (in Kafka a full group
        # refuses it, and with it every restart).
        member = group.static_member(command.group_instance_id)
    if group.state is ClassicState.PREPARING_REBALANCE:
        if member is not None and member.join_waiter is not None:
            return True
        waiting = sum(1 for m in group.members.values() if m.join_waiter is not None)
        return waiting < max_size
    return member is not None or len(group.members) < max_size


def _turn_away(draft: Draft, command: JoinGroup) -> Result:
    """The group is full: whoever was refused is no longer awaited either."""
    if command.member_id in draft.group.members:
        draft.drop_member(command.member_id)
    elif command.member_id in draft.group.pending_members:
        draft.drop_pending(command.member_id)
    # Kafka lets the others wait until the rebalance timeout.
    complete_if_all_joined(draft)
    return draft.result(JoinAnswer(error=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=""))


def _refused(draft: Draft, command: JoinGroup, error: ErrorCode) -> Result:
    return draft.result(JoinAnswer(error=error, member_id=command.member_id))


# New members ------------------------------------------------------------------------------------


def _join_new(draft: Draft, command: JoinGroup, settings: GroupSettings) -> Result:
    instance_id = command.group_instance_id
    member_id = f"{command.client_id if instance_id is None else instance_id}-{command.unique}"
    if instance_id is not None:
        former = draft.group.static_member(instance_id)
        if former is not None:
            return _replace_static(draft, command, former, member_id, settings)
        return _add(draft, command, member_id, settings)
    if command.requires_known_member_id:
        draft.change(pending_members=draft.group.pending_members | {member_id})
        timer = session_timer(draft.group.group_id, member_id)
        draft.set_timer(timer, command.session_timeout_ms)
        return draft.result(JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
    return _add(draft, command, member_id, settings)


def _join_pending(draft: Draft, command: JoinGroup, settings: GroupSettings) -> Result:
    """A new member comes with the id it was told."""
    if command.group_instance_id is not None:
        # Static members are never pending: this id was told to somebody else.
        return _refused(draft, command, ErrorCode.UNKNOWN_MEMBER_ID)
    draft.change(pending_members=draft.group.pending_members - {command.member_id})
    return _add(draft, command, command.member_id, settings)


def _add(draft: Draft, command: JoinGroup, member_id: str, settings: GroupSettings) -> Result:
    """Take a member in and park its request behind the barrier."""
    group = draft.group
    member = ClassicMember(
        member_id=member_id,
        group_instance_id=command.group_instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        session_timeout_ms=command.session_timeout_ms,
        protocols=command.protocols,
        is_new=True,
        join_waiter=command.waiter,
    )
    if group.is_initial:
        draft.change(has_new_member=True)
    draft.change(protocol_type=command.protocol_type)
    draft.put_member(member)
    if draft.group.leader_id is None:
        draft.change(leader_id=member_id)
    _start_session(draft, member, settings)
    rebalance_or_complete(draft, settings)
    return draft.result()


def _start_session(draft: Draft, member: ClassicMember, settings: GroupSettings) -> None:
    """Somebody new is given longer: it can send no heartbeats before its first generation."""
    delay_ms = settings.new_member_join_timeout_ms if member.is_new else member.session_timeout_ms
    draft.set_timer(session_timer(draft.group.group_id, member.member_id), delay_ms)


# Members that come again ------------------------------------------------------------------------


def _join_known(draft: Draft, command: JoinGroup, settings: GroupSettings) -> Result:
    group = draft.group
    error = check_member(group, command.member_id, command.group_instance_id)
    if error is not ErrorCode.NONE:
        return _refused(draft, command, error)
    member = group.members[command.member_id]
    if _asks_again(group, member, command):
        draft.restart_session(member)
        return draft.result(join_answer(draft, member))
    draft.put_member(_rejoined(draft, member, command))
    rebalance_or_complete(draft, settings)
    return draft.result()


def _asks_again(group: ClassicGroup, member: ClassicMember, command: JoinGroup) -> bool:
    """Whether it has no news and only lost the answer to its join in this generation."""
    if member.protocols != command.protocols:
        return False
    if group.state is ClassicState.STABLE:
        # A leader that rejoins may know of partitions that the group does not have yet.
        return group.leader_id != member.member_id
    return group.state is ClassicState.COMPLETING_REBALANCE


def _rejoined(draft: Draft, member: ClassicMember, command: JoinGroup) -> ClassicMember:
    """A member whose JoinGroup now waits; an older one of its own is answered as superseded."""
    draft.wake(
        member.join_waiter,
        JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id),
    )
    return member.with_(
        # Kafka keeps the first client id and host it saw, and describes a restarted process so.
        client_id=command.client_id,
        client_host=command.client_host,
        protocols=command.protocols,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        session_timeout_ms=command.session_timeout_ms,
        join_waiter=command.waiter,
    )


def check_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Whether the group knows this member, and as this instance."""
    if instance_id is not None:
        static = group.static_member(instance_id)
        if static is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if static.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE


# Static members that come back ------------------------------------------------------------------


def _replace_static(
    draft: Draft,
    command: JoinGroup,
    former: ClassicMember,
    member_id: str,
    settings: GroupSettings,
) -> Result:
    """The instance is back under a new member id; its former self is fenced."""
    fenced = ErrorCode.FENCED_INSTANCE_ID
    draft.wake(former.join_waiter, JoinAnswer(error=fenced, member_id=former.member_id))
    draft.wake(former.sync_waiter, SyncAnswer(error=fenced))
    former_leader_id = draft.group.leader_id
    was_leader = former_leader_id == former.member_id
    member = former.with_(
        member_id=member_id,
        client_id=command.client_id,
        client_host=command.client_host,
        protocols=command.protocols,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        session_timeout_ms=command.session_timeout_ms,
        join_waiter=command.waiter,
        sync_waiter=None,
    )
    draft.drop_member(former.member_id)
    draft.put_member(member)
    if was_leader:
        draft.change(leader_id=member_id)
    _start_session(draft, member, settings)
    if draft.group.state is ClassicState.STABLE and _keeps_assignment(draft.group, former, member):
        return _resume_static(draft, command, member, former_leader_id)
    # In CompletingRebalance too: the leader may already assign to the former member id.
    rebalance_or_complete(draft, settings)
    return draft.result()


def _keeps_assignment(group: ClassicGroup, former: ClassicMember, member: ClassicMember) -> bool:
    """Whether the assignment of its former self still fits.

    Kafka looks at the protocol alone, so that an instance restarted with other topics does not get
    them until something else causes a rebalance (KAFKA-12759).
    """
    protocol = group.protocol_name
    if group.select_protocol() != protocol:
        return False
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return True
    before = subscribed_topics(former.metadata(protocol))
    return before == subscribed_topics(member.metadata(protocol))


def _resume_static(
    draft: Draft, command: JoinGroup, member: ClassicMember, former_leader_id: str | None
) -> Result:
    """Nothing changes but the member id: persist it and answer with the current generation."""
    member = member.with_(join_waiter=None)
    draft.put_member(member)
    draft.write()
    group = draft.group
    is_leader = group.leader_id == member.member_id
    skips = command.can_skip_assignment
    return draft.result(
        JoinAnswer(
            member_id=member.member_id,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            # A client that cannot be told to skip the assignment must not think it leads.
            leader_id=(group.leader_id if skips else former_leader_id) or "",
            skip_assignment=skips and is_leader,
            members=joined_members(draft) if skips and is_leader else (),
        )
    )
