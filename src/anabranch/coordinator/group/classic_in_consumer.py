"""Members that speak the classic protocol, in a consumer group (KIP-848 migration)."""

from anabranch.coordinator.group.commands import (
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    LeftMember,
    SyncAnswer,
    SyncGroup,
)
from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode


def join_consumer_group(
    draft: ConsumerDraft, command: JoinGroup, settings: GroupSettings
) -> Result:
    error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return Result(response=JoinAnswer(error=error, member_id=command.member_id))


def sync_in_consumer_group(draft: ConsumerDraft, command: SyncGroup) -> Result:
    return Result(response=SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))


def heartbeat_in_consumer_group(draft: ConsumerDraft, command: Heartbeat) -> Result:
    return Result(response=HeartbeatAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))


def leave_consumer_group(
    draft: ConsumerDraft, command: LeaveGroup, settings: GroupSettings
) -> Result:
    return Result(
        response=LeaveAnswer(
            members=tuple(
                LeftMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for member in command.members
            )
        )
    )


def join_time_is_up_in_consumer_group(draft: ConsumerDraft, member_id: str) -> None:
    """A member was told to rejoin and did not."""


def sync_time_is_up_in_consumer_group(draft: ConsumerDraft, member_id: str) -> None:
    """A member joined and never asked for its assignment."""
