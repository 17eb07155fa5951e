"""SyncGroup, Heartbeat and LeaveGroup of classic groups."""

from anabranch.coordinator.group.classic_join import check_member
from anabranch.coordinator.group.classic_rebalance import (
    complete_if_all_joined,
    rebalance_or_complete,
    remove_member,
)
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.commands import (
    Heartbeat,
    HeartbeatAnswer,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    LeftMember,
    SyncAnswer,
    SyncGroup,
)
from anabranch.coordinator.group.draft import Draft
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode

# SyncGroup --------------------------------------------------------------------------------------


def sync_group(group: ClassicGroup | None, command: SyncGroup, now_ms: int) -> Result:
    """Wait for the leader's assignment; if this is the leader, hand it out."""
    if not command.group_id:
        return Result(response=SyncAnswer(error=ErrorCode.INVALID_GROUP_ID))
    if group is None:
        return Result(response=SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
    error = _check_sync(group, command)
    if error is not ErrorCode.NONE:
        return Result(response=SyncAnswer(error=error))
    draft = Draft(group, now_ms)
    member = group.members[command.member_id]
    draft.no_longer_awaits_sync(command.member_id)
    draft.restart_session(member)
    if group.state is ClassicState.STABLE:
        return draft.result(_sync_answer(draft.group, member))
    if group.leader_id == command.member_id:
        return _assign(draft, command)
    # The client may have given up on an earlier request and ask again; that one is superseded.
    draft.wake(member.sync_waiter, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
    draft.put_member(member.with_(sync_waiter=command.waiter))
    return draft.result()


def _check_sync(group: ClassicGroup, command: SyncGroup) -> ErrorCode:
    error = check_generation(
        group, command.member_id, command.group_instance_id, command.generation_id
    )
    if error is not ErrorCode.NONE:
        return error
    if command.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if command.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is ClassicState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _assign(draft: Draft, command: SyncGroup) -> Result:
    """The leader's assignment makes the group Stable, durably, and answers all who wait."""
    assignments = dict(command.assignments)
    members = {}
    answer = SyncAnswer()
    for member in draft.group.members.values():
        assigned = member.with_(assignment=assignments.get(member.member_id, b""), sync_waiter=None)
        members[member.member_id] = assigned
        if member.member_id == command.member_id:
            answer = _sync_answer(draft.group, assigned)
        elif member.sync_waiter is not None:
            draft.wake(member.sync_waiter, _sync_answer(draft.group, assigned))
            draft.restart_session(member)
    draft.change(members=members, state=ClassicState.STABLE, state_timestamp_ms=draft.now_ms)
    draft.write()
    return draft.result(answer)


def _sync_answer(group: ClassicGroup, member: ClassicMember) -> SyncAnswer:
    return SyncAnswer(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


# Heartbeat --------------------------------------------------------------------------------------


def heartbeat(group: ClassicGroup | None, command: Heartbeat, now_ms: int) -> Result:
    """A sign of life; the answer tells the member when it has to rejoin."""
    if not command.group_id:
        return Result(response=HeartbeatAnswer(error=ErrorCode.INVALID_GROUP_ID))
    if group is None:
        return Result(response=HeartbeatAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
    error = check_generation(
        group, command.member_id, command.group_instance_id, command.generation_id
    )
    if error is not ErrorCode.NONE:
        return Result(response=HeartbeatAnswer(error=error))
    draft = Draft(group, now_ms)
    draft.restart_session(group.members[command.member_id])
    if group.state is ClassicState.PREPARING_REBALANCE:
        return draft.result(HeartbeatAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
    return draft.result(HeartbeatAnswer())


def check_generation(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation_id: int
) -> ErrorCode:
    """Whether a member of the present generation speaks."""
    error = check_member(group, member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if group.members[member_id].is_new:
        # It has not been in a generation yet, whatever number it guesses (Kafka believes it).
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


# LeaveGroup -------------------------------------------------------------------------------------


def leave_group(
    group: ClassicGroup | None, command: LeaveGroup, settings: GroupSettings, now_ms: int
) -> Result:
    """Members go, each with an answer of its own; one rebalance for all of them."""
    if not command.group_id:
        return Result(response=LeaveAnswer(error=ErrorCode.INVALID_GROUP_ID))
    draft = Draft(group or ClassicGroup(group_id=command.group_id), now_ms)
    size = len(draft.group.members)
    left = tuple(
        LeftMember(
            member_id=leaving.member_id,
            group_instance_id=leaving.group_instance_id,
            error=_leave(draft, leaving),
        )
        for leaving in command.members
    )
    if len(draft.group.members) < size:
        rebalance_or_complete(draft, settings)
    else:
        # A pending member may have been the last one awaited. Where nobody is awaited, its going is
        # no reason to rebalance (Kafka does so nevertheless).
        complete_if_all_joined(draft)
    return draft.result(LeaveAnswer(members=left))


def _leave(draft: Draft, leaving: LeavingMember) -> ErrorCode:
    group = draft.group
    member_id = leaving.member_id
    if member_id in group.pending_members:
        draft.drop_pending(member_id)
        return ErrorCode.NONE
    if not member_id and leaving.group_instance_id is not None:
        # By instance id alone: how an administrator removes a static member.
        static = group.static_member(leaving.group_instance_id)
        if static is not None:
            member_id = static.member_id
    error = check_member(group, member_id, leaving.group_instance_id)
    if error is ErrorCode.NONE:
        remove_member(draft, member_id)
    return error
